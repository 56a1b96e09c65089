"""Decide the numbers: how many windows, how large, in which form. Nothing here changes a graph.

For ``N`` steps along the row dim and at most ``C`` steps a window::

    n     = (N + C - 1) // C          number of windows
    size  = (N + n - 1) // n          steps per window, <= C, the same for all
    start = (k * N) // n              k = 0 .. n-1; start_0 = 0, start_{n-1} + size = N, no gap

Neighbouring windows may overlap by a step, which is then computed twice from the same inputs. That is right because a
region is deterministic and reads nothing the loop writes. No ``min`` is needed, so the same formulas serve dynamic rows
(``min`` in a start expression ends as ``NameError: Min`` in Inductor's wrapper).

``N`` steps of ``P`` rows each (logits ``[B, T, V]`` cut along ``T``: ``P = B``) get ``C = row_chunk // P``, at least 1.
Where a step may have more rows than ``row_chunk``, each window is cut once more, along the other dim.

``unroll`` needs ``n`` as a literal number. Where ``N`` is dynamic, ``n`` is that of the largest ``N`` there can be; a
smaller one gets the same number of smaller pieces.

NOTE [Exported programs are unrolled]: a loop writes into its outputs, and the verifier of an ``ExportedProgram`` takes
functional ops only. A loop that carries its outputs through ``slice_scatter`` is functional, and copies them once a
window (13.6 bytes per logit where the writing loop takes 6.5 and ``cat`` 8). So ``auto`` unrolls an exported program,
or declines.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from sortpass.config import ChunkConfig
from sortpass.memory import RegionPeak, predict_peak
from sortpass.region import Region
from sortpass.report import Decline, DeclineCode
from sortpass.sites import SECONDARY_OPS, GraphKind, SortSite
from sortpass.torch_compat import in_forward_ad, size_hint_maybe, upper_bound_maybe


@dataclasses.dataclass(frozen=True)
class ChunkPlan:
    """Everything the emitters need to know.

    Attributes:
        region: what to chunk.
        scope: ``"region"`` or ``"sort"``, as configured.
        form: ``"loop"`` or ``"unroll"``.
        steps: size of the row dim.
        step_limit: the most steps along the row dim that one window may hold.
        may_be_empty: the number of steps is not known to be at least 1.
        num_windows: number of windows; text where a dynamic size decides how many steps a window may hold.
        window_steps: steps along the row dim that one window holds (the largest window, for ``unroll``).
        window_rows: rows one window holds at most, at compile-time sizes.
        is_bounded: no window holds more than ``row_chunk`` rows, whatever the sizes.
        peak: predicted bytes.
        exactness: how exact the results are; what :mod:`sortpass.exactness` made of the other fields.
    """

    region: Region
    scope: str
    form: str
    steps: int | torch.SymInt
    step_limit: int | torch.SymInt
    may_be_empty: bool
    num_windows: int | torch.SymInt | str
    window_steps: int | torch.SymInt
    window_rows: int
    is_bounded: bool
    peak: RegionPeak
    exactness: str = "close"


def count_windows(steps: Any, limit: Any, *, may_be_empty: bool) -> tuple[Any, Any]:
    """Number of windows and steps in each, for at most ``limit`` steps a window.

    Plain arithmetic, so that it serves ints, ``SymInt`` and FX proxies alike. Where ``steps`` may be 0 at run time, one
    window more is made, so that the number of windows, which ``steps`` is divided by, never is.

    >>> count_windows(10, 4, may_be_empty=False)
    (3, 4)
    """
    if isinstance(limit, int) and limit == 1:
        return steps, 1  # what the formulas give, but as an expression they would not simplify to it
    num_windows = steps // limit + 1 if may_be_empty else (steps + (limit - 1)) // limit
    return num_windows, (steps + (num_windows - 1)) // num_windows


def limit_steps(rows_per_step: Any, row_chunk: int) -> Any:
    """Most steps a window may hold: ``row_chunk`` rows, but at least one step.

    Plain arithmetic, as :func:`count_windows`: asking ``rows_per_step <= row_chunk`` of a dynamic size would be a
    guard, and so one more compile.

    >>> limit_steps(4, 64), limit_steps(100, 64)
    (16, 1)
    """
    return _at_least_one(row_chunk // _at_least_one(rows_per_step))


def _at_least_one(size: Any) -> Any:
    """``max(size, 1)`` for sizes from 0 up; ``max`` itself is missing from Inductor's wrapper, as ``min`` is."""
    return max(size, 1) if isinstance(size, int) else size + 1 // (size + 1)


def plan_chunks(region: Region, config: ChunkConfig, kind: GraphKind = GraphKind.COMPILED) -> ChunkPlan | Decline:
    """Windows and form for a region, or why it is better left alone.

    Args:
        region: what to chunk.
        config: the options.
        kind: whose graph it is; see NOTE [Exported programs are unrolled].
    """
    site = region.site
    steps: Any = site.steps
    step_limit = _step_limit(site, config, kind)
    may_be_empty = size_hint_maybe(steps) is None
    num_windows, window_steps = count_windows(steps, step_limit, may_be_empty=may_be_empty)
    if not isinstance(step_limit, int):
        # As an expression it would be spelled out to half a page.
        num_windows = f"ceil({steps} / max(1, {config.row_chunk} // ({site.rows_per_step})))"
    num_pieces = _count_pieces(steps, step_limit)
    fraction = _hint(window_steps, 1) / max(_hint(steps, 1), 1)
    if site.by_bound and num_pieces:
        fraction = 1 / num_pieces  # the size it was traced with says nothing about its use
    peak = predict_peak(region, fraction)
    form = _choose_form(region, num_pieces, peak, config, kind)
    if isinstance(form, Decline):
        return form
    if form == "unroll" and num_pieces is not None:
        num_windows = num_pieces
    at_most = upper_bound_maybe if site.by_bound else size_hint_maybe
    window_rows = min(_hint(step_limit, config.row_chunk), at_most(steps) or 2**62) * (at_most(site.rows_per_step) or 1)
    if site.is_last_dim:
        window_rows = min(window_rows, config.row_chunk)  # the steps of the dims already cut are few enough for this
    is_known = isinstance(step_limit, int) and at_most(site.rows_per_step) is not None
    return ChunkPlan(
        region=region,
        scope=config.scope,
        form=form,
        steps=steps,
        step_limit=step_limit,
        may_be_empty=may_be_empty,
        num_windows=num_windows,
        window_steps=window_steps,
        window_rows=window_rows,
        is_bounded=site.is_last_dim or (is_known and window_rows <= config.row_chunk),
        peak=peak,
    )


def _step_limit(site: SortSite, config: ChunkConfig, kind: GraphKind) -> Any:
    rows_per_step = site.rows_per_step
    if site.by_bound and (kind.is_exported or config.form == "unroll"):
        # Pieces are counted when the graph is made, so the limit must be literal; with no bound, that of large steps.
        bound = upper_bound_maybe(rows_per_step)
        rows_per_step = config.row_chunk if bound is None else bound
    return limit_steps(rows_per_step, config.row_chunk)


def _count_pieces(steps: Any, step_limit: Any) -> int | None:
    """Windows of the largest number of steps there can be; None where there is no such number."""
    most = upper_bound_maybe(steps)
    return None if most is None or not isinstance(step_limit, int) else -(-most // step_limit)


def _choose_form(
    region: Region, num_pieces: int | None, peak: RegionPeak, config: ChunkConfig, kind: GraphKind
) -> str | Decline:
    node, no_loop = region.site.node, _why_no_loop(kind)
    if no_loop and config.form == "loop":
        return Decline(DeclineCode.NOT_FUNCTIONAL, node.name, f"{no_loop}; use form='unroll' or 'auto'")
    unrollable = _decline_unroll(region, num_pieces, config, kind)
    must_unroll = config.form == "unroll" or no_loop is not None
    if must_unroll and unrollable is not None:
        return unrollable
    lowest = peak.loop if unrollable is not None else min(peak.loop, peak.unroll)
    lowest = peak.unroll if no_loop else lowest
    # A secondary anchor's own outputs are small: only what surrounds it can pay. Where cat is the only way to join,
    # outputs are held twice, which no anchor pays for by itself.
    forced = no_loop is not None and config.form == "auto"
    if (node.target in SECONDARY_OPS or forced) and lowest >= peak.whole > 0:
        detail = f"chunking it would not lower the peak (whole {peak.whole:,} bytes, chunked {lowest:,})"
        return Decline(DeclineCode.NO_GAIN, node.name, detail)
    is_static = isinstance(region.site.steps, int)
    better = config.form == "auto" and is_static and unrollable is None and peak.unroll < peak.loop
    return "unroll" if must_unroll or better else "loop"


def _why_no_loop(kind: GraphKind) -> str | None:
    if kind.is_exported:
        return "the loop writes into its outputs, which an exported program may not"
    if in_forward_ad():
        return "the loop hands no tangents on, and the graph is compiled for forward-mode AD"
    return None


def _decline_unroll(region: Region, num_pieces: int | None, config: ChunkConfig, kind: GraphKind) -> Decline | None:
    node, steps = region.site.node, region.site.steps
    instead = "" if _why_no_loop(kind) else ", or use form='loop' or 'auto'"
    if num_pieces is None:
        detail = (
            f"unrolling needs a literal number of windows, and its {steps} rows have no upper bound; give the dim a max"
            f" (torch.export.Dim(..., max=...), mark_dynamic(..., max=...)){instead}"
        )
        return Decline(DeclineCode.DYNAMIC_ROWS, node.name, detail)
    if kind is GraphKind.PROGRAM_GRAPH and not isinstance(steps, int):
        detail = "a program has to know the range of each piece, or it could not be loaded; rewrite the program itself"
        return Decline(DeclineCode.DYNAMIC_ROWS, node.name, f"{detail}, not its graph_module")
    if num_pieces > config.max_unroll:
        bound, fewer = "", "raise row_chunk or max_unroll"
        if not isinstance(steps, int):
            bound = f" for the {upper_bound_maybe(steps)} rows that its dim allows"
            fewer = f"give the dim a smaller max, {fewer}"
        detail = f"needs {num_pieces} windows{bound}, more than max_unroll={config.max_unroll}; {fewer}{instead}"
        return Decline(DeclineCode.TOO_MANY_WINDOWS, node.name, detail)
    return None


def _hint(size: Any, otherwise: int) -> int:
    hint = size_hint_maybe(size)
    return otherwise if hint is None else hint
