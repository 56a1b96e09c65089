"""Decide the numbers: how many windows, how large, in which form. Nothing here changes a graph.

``unroll`` needs the number of windows as a literal number. Where the number of rows is dynamic, it is that of the
largest there can be; a smaller one gets the same number of smaller pieces.

NOTE [Exported programs are unrolled]: a loop writes into its outputs, and the verifier of an ``ExportedProgram`` takes
functional ops only. A loop that carries its outputs through ``slice_scatter`` is functional, and copies them once a
window (13.6 bytes per logit where the writing loop takes 6.5 and ``cat`` 8). So ``auto`` unrolls an exported program,
or declines.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from sortpass.budget import RowChoice, choose_rows
from sortpass.config import ChunkConfig, format_bytes
from sortpass.devices import device_type
from sortpass.memory import GraphMemory
from sortpass.predict import Prediction, predict, window_bytes
from sortpass.region import Region
from sortpass.report import Decline, DeclineCode
from sortpass.sites import ROWWISE_OPS, GraphKind, SortSite, decline_small
from sortpass.torch_compat import fake_values, in_forward_ad, size_hint_maybe, upper_bound_maybe
from sortpass.windows import count_windows, limit_steps


@dataclasses.dataclass(frozen=True)
class ChunkPlan:
    """Everything the emitters need to know.

    Attributes:
        region: what to chunk.
        scope: ``"region"`` or ``"sort"``.
        form: ``"loop"`` or ``"unroll"``.
        rows: the most rows a window may hold, and what decided that.
        steps: size of the row dim.
        step_limit: the most steps along the row dim that one window may hold.
        may_be_empty: the number of steps is not known to be at least 1.
        num_windows: number of windows; text where a dynamic size decides how many steps a window may hold.
        window_steps: steps along the row dim that one window holds (the largest window, for ``unroll``).
        window_rows: rows one window holds at most, at compile-time sizes.
        row_length: elements of a row.
        is_bounded: no window holds more than ``rows.rows`` rows, whatever the sizes.
        prediction: predicted bytes.
        exactness: how exact the results are; what :mod:`sortpass.exactness` made of the other fields.
    """

    region: Region
    scope: str
    form: str
    rows: RowChoice
    steps: int | torch.SymInt
    step_limit: int | torch.SymInt
    may_be_empty: bool
    num_windows: int | torch.SymInt | str
    window_steps: int | torch.SymInt
    window_rows: int
    row_length: int | torch.SymInt
    is_bounded: bool
    prediction: Prediction
    exactness: str = "close"


def plan_chunks(
    region: Region, memory: GraphMemory, config: ChunkConfig, kind: GraphKind = GraphKind.COMPILED, *, scope: str
) -> ChunkPlan | Decline:
    """Windows and form for a region, or why it is better left alone.

    Args:
        region: what to chunk.
        memory: the graph around it.
        config: the options.
        kind: whose graph it is; see NOTE [Exported programs are unrolled].
        scope: how the region was grown.
    """
    site = region.site
    device = device_type(next(fake_values(site.node)))
    rows = choose_rows(lambda count: window_bytes(memory, site, count), config, device)
    if decline := decline_small(site, rows.rows, config):
        return decline
    steps: Any = site.steps
    step_limit = _step_limit(site, rows.rows, config, kind)
    may_be_empty = size_hint_maybe(steps) is None
    num_windows, window_steps = count_windows(steps, step_limit, may_be_empty=may_be_empty)
    if not isinstance(step_limit, int):
        # As an expression it would be spelled out to half a page.
        num_windows = f"ceil({steps} / max(1, {rows.rows} // ({site.rows_per_step})))"
    num_pieces = _count_pieces(steps, step_limit)
    prediction = predict(memory, site, rows.rows)
    form = _choose_form(region, num_pieces, prediction, config, kind)
    if isinstance(form, Decline):
        return form
    if form == "unroll" and num_pieces is not None:
        num_windows = num_pieces
    at_most = upper_bound_maybe if site.by_bound else size_hint_maybe
    window_rows = min(_hint(step_limit, rows.rows), at_most(steps) or 2**62) * (at_most(site.rows_per_step) or 1)
    if site.is_last_dim:
        window_rows = min(window_rows, rows.rows)  # the steps of the dims already cut are few enough for this
    is_known = isinstance(step_limit, int) and at_most(site.rows_per_step) is not None
    return ChunkPlan(
        region=region,
        scope=scope,
        form=form,
        rows=rows,
        steps=steps,
        step_limit=step_limit,
        may_be_empty=may_be_empty,
        num_windows=num_windows,
        window_steps=window_steps,
        window_rows=window_rows,
        row_length=site.row_length,
        is_bounded=site.is_last_dim or (is_known and window_rows <= rows.rows),
        prediction=prediction,
    )


def _step_limit(site: SortSite, row_chunk: int, config: ChunkConfig, kind: GraphKind) -> Any:
    rows_per_step = site.rows_per_step
    if site.by_bound and (kind.is_exported or config.form == "unroll"):
        # Pieces are counted when the graph is made, so the limit must be literal; with no bound, that of large steps.
        bound = upper_bound_maybe(rows_per_step)
        rows_per_step = row_chunk if bound is None else bound
    return limit_steps(rows_per_step, row_chunk)


def _count_pieces(steps: Any, step_limit: Any) -> int | None:
    """Windows of the largest number of steps there can be; None where there is no such number."""
    most = upper_bound_maybe(steps)
    return None if most is None or not isinstance(step_limit, int) else -(-most // step_limit)


def _choose_form(
    region: Region, num_pieces: int | None, prediction: Prediction, config: ChunkConfig, kind: GraphKind
) -> str | Decline:
    node, no_loop = region.site.node, _why_no_loop(kind)
    if no_loop and config.form == "loop":
        return Decline(DeclineCode.NOT_FUNCTIONAL, node.name, f"{no_loop}; use form='unroll' or 'auto'")
    no_unroll = _decline_unroll(region, num_pieces, config, kind)
    if config.form == "unroll" or no_loop:
        form = "unroll"
    else:
        loop, unroll = prediction.bytes_of(prediction.loop.region), prediction.bytes_of(prediction.unroll.region)
        may_unroll = config.form == "auto" and isinstance(region.site.steps, int) and no_unroll is None
        form = "unroll" if may_unroll and unroll < loop else "loop"
    if form == "unroll" and no_unroll is not None:
        return no_unroll
    # A compiler may fuse a softmax and all around it into a kernel that stores nothing; a loop would only cost time.
    least = config.min_bytes if node.target in ROWWISE_OPS else 0
    # An inner loop is judged with the outer one.
    if config.force or region.site.already_cut or prediction.lowers(form, least):
        return form
    texts = [format_bytes(prediction.bytes_of(s.region)) for s in (prediction.whole, prediction.chunked(form))]
    enough = f" by min_bytes={config.min_bytes:,}" if least else ""
    return Decline(
        DeclineCode.NO_GAIN,
        node.name,
        f"chunking it would not lower the peak{enough} (predicted: whole {texts[0]}, chunked {texts[1]}); force=True "
        "rewrites it all the same",
    )


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
