"""``on_oom="shrink"``: run a call that ran out of memory again, with half the rows a window.

    call(x)    64 rows a window   out of memory         log a warning, compile the captured graph again
               32 rows a window   out of memory         the same
               16 rows a window   returns               later calls start here

What is run again must not have done anything yet, so only graphs that draw no random numbers, write into none of their
inputs and have no other effects are. Others, and those with nothing left to shrink, raise the error as
``on_oom="raise"`` does, with one sentence why.

NOTE [Memory of the failed attempt]: an exception holds the frames it went through, and they hold every tensor the
attempt made. Their locals are cleared before anything is compiled or run again.
"""

from __future__ import annotations

import dataclasses
import logging
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx as fx
from torch._dynamo.backends.debugging import boxed_nop

from sortpass.chunk_pass import rewrite_graph
from sortpass.config import ChunkConfig
from sortpass.fallback import Compiler, explained, is_out_of_memory, same_graph
from sortpass.graph_order import GraphOrder, is_fixed
from sortpass.report import PassReport, op_name, reports_of
from sortpass.torch_compat import captured_inputs, compiling_again, guards_hold, guards_of, writes_outside_graph

log = logging.getLogger(__name__)

CompileGraph = Callable[[fx.GraphModule, Sequence[Any], ChunkConfig], Compiler]
TraceGraph = Callable[[fx.GraphModule, Sequence[Any], Compiler], Any]

aten = torch.ops.aten
CHECKS = (
    aten._assert_async.msg,
    aten._assert_scalar.default,
    aten._assert_tensor_metadata.default,
    aten.sym_constrain_range.default,
    aten.sym_constrain_range_for_size.default,
)
"""Ops that stay in place because they may raise, and change nothing."""


@dataclasses.dataclass(frozen=True)
class _Version:
    """The graph compiled with one config.

    Attributes:
        call: the compiled function.
        config: its options.
        reports: what the pass did while it was compiled; empty where a cache had it.
        guards: on sizes, beyond those that Dynamo checks before each call.
    """

    call: Compiler
    config: ChunkConfig
    reports: tuple[PassReport, ...]
    guards: tuple[Any, ...] = ()


class ShrinkingCall:
    """A compiled graph that is compiled again with fewer rows a window when a call runs out of memory.

    Threads may call it at once: one compiles, the others wait and use what it made.

    Args:
        gm: the graph Dynamo captured; a copy is kept.
        example_inputs: its inputs; not kept.
        config: the options.
        compile_graph: compiles a graph, of which it may do what it likes.
        trace_graph: hands the ATen graph behind a graph to its last argument.
    """

    def __init__(
        self,
        gm: fx.GraphModule,
        example_inputs: Sequence[Any],
        config: ChunkConfig,
        compile_graph: CompileGraph,
        trace_graph: TraceGraph,
    ) -> None:
        self._graph, self._inputs = same_graph(gm), captured_inputs(gm)
        self._compile_graph, self._trace_graph = compile_graph, trace_graph
        self._lock = threading.Lock()
        with reports_of() as reports:
            call = compile_graph(gm, example_inputs, config)
        self._versions: tuple[_Version, ...] = (_Version(call, config, tuple(reports)),)
        self._num_guards = len(guards_of(self._inputs))

    def __call__(self, *args: Any) -> Any:
        while True:
            version = self._version_for(args)
            result, error = _attempt(version.call, args)
            if error is None:
                return result
            try:
                _release(error)
                self._shrink(version, error, args)
            finally:
                del error  # its frames lead back to this one: a cycle, which would keep the arguments alive

    def _version_for(self, args: Sequence[Any]) -> _Version:
        return next(version for version in self._versions if guards_hold(version.guards, self._inputs, args))

    def _shrink(self, failed: _Version, error: RuntimeError, args: Sequence[Any]) -> None:
        """Put a version with fewer rows in front of the one that failed.

        Raises:
            torch.OutOfMemoryError, RuntimeError: ``error``, explained; there is no such version.
        """
        with self._lock:
            if self._version_for(args) is not failed:
                return  # another thread was here first
            try:
                smaller = self._compile_smaller(failed)
            except Exception as trouble:  # a compiler may raise anything
                log.warning("out of memory, and compiling the graph again failed", exc_info=trouble)
                smaller = f"compiling it again failed ({type(trouble).__name__}: {str(trouble).strip()})".split("\n")[0]
            if isinstance(smaller, _Version) and not guards_hold(smaller.guards, self._inputs, args):
                smaller = "compiled again, it serves only other sizes"
            if isinstance(smaller, str):
                raise explained(error, failed.config, f"on_oom='shrink' did not run it again: {smaller}") from error
            self._versions = (smaller, *self._versions)

    def _compile_smaller(self, failed: _Version) -> _Version | str:
        """The graph with half the rows a window, or why there is none."""
        with compiling_again(self._inputs):
            config = self._halve(failed)
        if isinstance(config, str):
            return config
        with compiling_again(self._inputs), reports_of() as reports:
            call = self._compile_graph(same_graph(self._graph), self._inputs, config)
        return _Version(call, config, tuple(reports), guards_of(self._inputs)[self._num_guards :])

    def _halve(self, failed: _Version) -> ChunkConfig | str:
        """The config of half the rows a window, or why the graph is not to be run with it."""
        graph = self._trace()
        if reason := why_not_again(graph.graph):
            return reason
        if writes_outside_graph():
            return "it writes into its inputs"
        reports = failed.reports or (rewrite_graph(same_graph(graph), failed.config),)
        rows = _window_rows(reports)
        if rows is None:
            return f"there is nothing to shrink; {reports[0]}"
        if rows == 1:
            return "it already runs one row at a time"
        config = dataclasses.replace(failed.config, row_chunk=rows // 2)
        outlook = rewrite_graph(graph, config)
        if (_window_rows([outlook]) or rows) >= rows:
            return f"row_chunk={rows // 2} would not make it smaller; {outlook}"
        log.warning(
            "out of memory with %d rows a chunk; compiling the graph again with row_chunk=%d (on_oom='shrink'; the "
            "option row_chunk=%d would start there)",
            rows,
            rows // 2,
            rows // 2,
        )
        return config

    def _trace(self) -> fx.GraphModule:
        """The ATen graph of the forward, as the pass gets it."""
        graphs: list[fx.GraphModule] = []

        def look_at(gm: fx.GraphModule, example_inputs: Any) -> Any:
            graphs.append(same_graph(gm))
            return boxed_nop(gm, example_inputs)

        self._trace_graph(same_graph(self._graph), self._inputs, look_at)
        return graphs[0]


def _attempt(call: Compiler, args: Sequence[Any]) -> tuple[Any, RuntimeError | None]:
    # A frame of its own, which ends before anything is cleared: a running one cannot be.
    try:
        return call(*args), None
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        return None, error


def _release(error: BaseException | None) -> None:
    """Free what the frames of an error hold; its traceback still prints. See NOTE [Memory of the failed attempt]."""
    handled = sys.exc_info()[1]  # the caller's, in whose except block the call was made: not ours to clear
    while error is not None and error is not handled:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def why_not_again(graph: fx.Graph) -> str | None:
    """What a second run of a graph would do twice, as a sentence; None where nothing."""
    for node in graph.nodes:
        if is_fixed(node) and node.target not in CHECKS:
            return f"{node.name} ({op_name(node)}) {GraphOrder.why_fixed(node) or 'may have effects'}"
    return None


def _window_rows(reports: Sequence[PassReport]) -> int | None:
    """The most rows a window holds; None where nothing was rewritten."""
    rows = (site.row_chunk for report in reports for site in report.sites)
    return max((count for count in rows if count is not None), default=None)
