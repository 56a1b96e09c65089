"""What a plan would take, in bytes: the graph's peak as written, as a loop, unrolled; and what one window holds."""

from __future__ import annotations

import dataclasses
from typing import Any

import sympy

from sortpass.memory import GraphMemory, Span
from sortpass.sites import SortSite
from sortpass.sizes import ROWS, WINDOW, ZERO, Peak, as_expr
from sortpass.torch_compat import size_hint_maybe, upper_bound_maybe

LEAST_GAIN = 0.01
"""Of the peak. Less would be lost again to a loop's counter and the rounding of allocations."""

UNKNOWN_WINDOWS = 8
"""Windows that a number of rows is taken to have where nothing at all is known of it."""


@dataclasses.dataclass(frozen=True)
class Prediction:
    """Peaks of one region's graph, as expressions and at the sizes they are judged by.

    Attributes:
        whole: as written.
        loop: with the region as a loop.
        unroll: with the region unrolled.
        window: what one window holds above the graph's inputs and outputs.
        sizes: the value of each symbol.
        elements: of the tensor that is sorted.
    """

    whole: Span
    loop: Span
    unroll: Span
    window: Peak
    sizes: dict[sympy.Symbol, Any]
    elements: int

    def chunked(self, form: str) -> Span:
        return self.loop if form == "loop" else self.unroll

    def bytes_of(self, peak: Peak) -> int:
        return peak.at(self.sizes)

    def window_of_known_size(self) -> Peak:
        """The window's peak in terms of nothing but dynamic sizes."""
        return self.window.with_sizes({WINDOW: sympy.Integer(self.sizes[WINDOW])})

    def lowers(self, form: str, least_bytes: int = 0) -> bool:
        """Whether a form is lower than whole by these bytes and more than noise while the region runs, never higher."""
        chunked, whole = self.chunked(form), self.bytes_of(self.whole.region)
        enough = min(whole * (1 - LEAST_GAIN), whole - least_bytes + 1)
        return self.bytes_of(chunked.region) < enough and (
            self.bytes_of(chunked.graph) <= self.bytes_of(self.whole.graph)
        )


def window_bytes(memory: GraphMemory, site: SortSite, rows: int) -> int:
    """What a window of so many sorted sequences holds, at compile-time sizes."""
    steps = sympy.Rational(rows, judged_size(site.rows_per_step, site.by_bound) or 1)
    return memory.window(rows).at({**memory.hints, WINDOW: steps})


def predict(memory: GraphMemory, site: SortSite, row_chunk: int) -> Prediction:
    """Predict every form for windows of at most ``row_chunk`` rows."""
    per_step = judged_size(site.rows_per_step, site.by_bound) or 1
    most_steps = max(row_chunk // per_step, 1)
    num_steps = judged_size(site.steps, site.by_bound)
    num_steps = UNKNOWN_WINDOWS * most_steps if num_steps is None else max(num_steps, 1)
    num_windows = -(-num_steps // most_steps)
    steps = sympy.Integer(-(-num_steps // num_windows))
    rows = min(row_chunk, num_steps * per_step)
    window = memory.window(rows)
    outputs = memory.live_out_bytes().values()
    if per_step > row_chunk:
        # Cut once more inside: a window holds row_chunk rows of a step, and the step's live-outs.
        window = window.with_sizes({WINDOW: sympy.Rational(row_chunk, per_step)})
        window = window.plus(sum((size.xreplace({ROWS: sympy.Integer(1)}) for size in outputs), ZERO))
    # The last piece is computed beside all others; then each cat holds what it joins twice.
    joining = Peak.of([*window.counts, *outputs])
    sizes: dict[sympy.Symbol, Any] = {**memory.hints, ROWS: num_steps, WINDOW: steps}
    if isinstance(expr := as_expr(site.steps), sympy.Symbol):
        sizes[expr] = num_steps
    return Prediction(
        whole=memory.whole(num_steps * per_step),
        loop=memory.in_windows(window, num_steps * per_step, in_place=True),
        unroll=memory.in_windows(joining, num_steps * per_step, in_place=False),
        window=window,
        sizes=sizes,
        elements=num_steps * per_step * (judged_size(site.row_length, site.by_bound) or 1),
    )


def judged_size(size: Any, by_bound: bool) -> int | None:
    """The value a size is judged by: its bound where it has one and is judged by that, else the traced one."""
    bound = upper_bound_maybe(size) if by_bound else None
    return size_hint_maybe(size) if bound is None else bound
