"""What happens when something behind the pass fails.

An inner compiler that fails on a rewritten graph: the rewritten graph runs uncompiled, with one warning. Never the
graph as written: whoever asked for a bound would get an out-of-memory error instead, far from its cause. A graph in
which nothing was rewritten fails as it would without the pass.

An ``OutOfMemoryError`` of a compiled call is raised again with a sentence that names the option to lower, or with
``on_oom="shrink"`` the call is run again (:mod:`sortpass.shrink`).
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx as fx
from torch._dynamo.backends.debugging import boxed_nop
from torch._dynamo.exc import SkipFrame, TensorifyScalarRestartAnalysis

from sortpass.chunk_pass import rewrite_graph, run_pass
from sortpass.config import ChunkConfig
from sortpass.errors import SortPassError

Compiler = Callable[..., Any]


def compile_rewritten(inner: Compiler, config: ChunkConfig) -> Compiler:
    """A compiler for ATen graphs that runs the pass, then ``inner``, and runs the result uncompiled if that fails."""

    def compiler(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
        report = run_pass(gm, config)
        if not report.modified:
            return inner(gm, list(example_inputs))
        spare = same_graph(gm)
        try:
            return inner(gm, list(example_inputs))
        except (SkipFrame, TensorifyScalarRestartAnalysis):
            raise  # not failures: Dynamo's way to start over
        except Exception as error:  # a compiler we know nothing about may raise anything
            return _run_uncompiled(spare, example_inputs, error)

    return compiler


def compile_with_hook(inner: Compiler, config: ChunkConfig) -> Compiler:
    """The same for Inductor, which runs the pass itself, as a hook."""
    from torch._inductor.exc import InductorError

    def compiler(gm: fx.GraphModule, example_inputs: Sequence[Any], **kwargs: Any) -> Any:
        spare = same_graph(gm)
        try:
            return inner(gm, example_inputs, **kwargs)
        except InductorError as error:
            ours = isinstance(error.inner_exception, SortPassError)
            if ours or not rewrite_graph(spare, config).modified:
                raise
            return _run_uncompiled(spare, example_inputs, error)

    return compiler


def same_graph(gm: fx.GraphModule) -> fx.GraphModule:
    """A module with a copy of the graph, sharing parameters, buffers and submodules."""
    return fx.GraphModule(gm, copy.deepcopy(gm.graph))


def _run_uncompiled(gm: fx.GraphModule, example_inputs: Sequence[Any], error: Exception) -> Any:
    first_line = str(error).strip().split("\n")[0]
    warnings.warn(
        f"sortpass: the inner compiler failed ({type(error).__name__}: {first_line}); this graph runs in row chunks, "
        "but uncompiled",
        stacklevel=2,
    )
    return boxed_nop(gm, list(example_inputs))


def explain_out_of_memory(compiled: Compiler, config: ChunkConfig) -> Compiler:
    """The compiled function, with a sentence added to its out-of-memory errors."""

    def call(*args: Any) -> Any:
        try:
            return compiled(*args)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            raise explained(error, config) from error

    return call


def is_out_of_memory(error: RuntimeError) -> bool:
    # The CPU allocator has no exception of its own.
    is_cpu = "DefaultCPUAllocator: can't allocate memory" in str(error)
    return is_cpu or isinstance(error, torch.OutOfMemoryError)


def explained(error: RuntimeError, config: ChunkConfig, *more: str) -> RuntimeError:
    """An out-of-memory error like this one, which also names the option to lower, and says what ``more`` has to."""
    if config.row_chunk is not None:
        bound = f"row_chunk={config.row_chunk} rows"
    else:
        bound = f"memory_budget={config.memory_budget or 'the default'}"
    advice = (
        f"sortpass: sorts that were rewritten run in chunks of at most {bound}; lower row_chunk or memory_budget to "
        "lower the peak, or see what was rewritten with sortpass.capture_reports()"
    )
    kind = torch.OutOfMemoryError if isinstance(error, torch.OutOfMemoryError) else RuntimeError
    return kind("\n".join([str(error), advice, *more]))
