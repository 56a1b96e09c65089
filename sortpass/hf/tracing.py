"""Which processors may join a graph: those whose trace holds for every longer sequence.

Each is traced alone, by Dynamo, with the length of ``input_ids`` symbolic; nothing is run. A processor that asks for
the length (a minimum length, a forced last token) gets guards on it. Where they hold from the present length on, it
joins; where they will fail at some later length, each failure would cost a compile, so it runs as it is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch
import torch.fx as fx
from torch._guards import TracingContext
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

from sortpass.measure import own_code

# A processor that loops over the sequences unrolls into a graph that grows with the batch.
MAX_OPS = 100
SORTS = frozenset({"sort", "argsort", "msort", "topk", "quantile", "nanquantile"})


@dataclasses.dataclass(frozen=True)
class Verdict:
    """On one processor.

    Attributes:
        why_not: why it cannot join a graph; None where it can.
        sorts: whether it sorts, so that a graph with it has something to chunk.
    """

    why_not: str | None = None
    sorts: bool = False


def run_all(processors: Sequence[Callable[..., Any]], input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    """What becomes one graph: as ``LogitsProcessorList.__call__``, without its look at signatures."""
    for processor in processors:
        scores = processor(input_ids, scores)
    return scores


def mark_growing(input_ids: torch.Tensor) -> None:
    """Let the first graph take any length, instead of one compile for the first and another for the second."""
    torch._dynamo.maybe_mark_dynamic(input_ids, 1)


def judge(processor: Callable[..., Any], input_ids: torch.Tensor, scores: torch.Tensor) -> Verdict:
    """Trace a processor without running it.

    Args:
        processor: called with ``input_ids`` and ``scores``.
        input_ids: ``[rows, length]``; the length at which generation starts, or goes on.
        scores: ``[rows, vocab]``.
    """
    if any(isinstance(value, torch.nn.Module) for value in getattr(processor, "__dict__", {}).values()):
        return Verdict("it runs a model of its own")
    # Dynamo takes sizes 0 and 1 for constants, whatever the mark.
    ids = input_ids if input_ids.shape[1] > 1 else input_ids.new_zeros(input_ids.shape[0], 2)
    mark_growing(ids)
    captured: list[tuple[fx.GraphModule, list[Any]]] = []

    def capture(gm: fx.GraphModule, example_inputs: Any) -> Callable[..., Any]:
        mode = TracingContext.get().fake_mode
        captured.append((gm, [] if mode is None or mode.shape_env is None else mode.shape_env.guards))
        raise _Captured

    def run_one(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        # The copy: a graph without an op would not be handed to the backend, but run.
        return processor(input_ids, scores).clone()

    try:
        torch.compile(own_code(run_one), backend=capture, fullgraph=True)(ids, scores)
    except Exception as error:  # tracing may raise anything; an error of the processor's own comes again as it runs
        if not captured:
            return Verdict(f"it cannot be traced: {_first_line(error)}")
    if not captured:
        return Verdict("torch.compile left it alone")
    gm, guards = captured[0]
    if len(gm.graph.nodes) > MAX_OPS:
        return Verdict(f"its graph has {len(gm.graph.nodes)} nodes; more than {MAX_OPS} cost more than they save")
    for guard in guards:
        if not _holds_from(guard.expr, ids.shape[1]):
            return Verdict("it does something else at another length")
    return Verdict(sorts=any(_name(node) in SORTS for node in gm.graph.nodes))


class _Captured(Exception):
    """Ends a compile once the graph is there, before anything runs."""


def _holds_from(guard: sympy.Basic, length: int) -> bool:
    """Whether a guard is true of every size from ``length`` on. The length is the only symbolic size there is."""
    ranges = {symbol: ValueRanges(length, int_oo) for symbol in guard.free_symbols}
    try:
        bounds = bound_sympy(guard, ranges)
    except (AttributeError, KeyError, NotImplementedError, TypeError):
        return False  # an expression it has no bounds for
    return bool(bounds.is_singleton()) and bool(bounds.lower)


def _name(node: fx.Node) -> str:
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0]
