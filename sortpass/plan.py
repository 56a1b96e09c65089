"""Decide the numbers: how many windows, how large, in which form. Nothing here changes a graph.

For ``N`` steps along the row dim and at most ``C`` steps a window::

    n     = (N + C - 1) // C          number of windows
    size  = (N + n - 1) // n          steps per window, <= C, the same for all
    start = (k * N) // n              k = 0 .. n-1; start_0 = 0, start_{n-1} + size = N, no gap

Neighbouring windows may overlap by a step, which is then computed twice from the same inputs. That is right because a
region is deterministic and reads nothing the loop writes. No ``min`` is needed, so the same formulas serve dynamic rows
(``min`` in a start expression ends as ``NameError: Min`` in Inductor's wrapper).

``N`` steps of ``P`` rows each (logits ``[B, T, V]`` cut along ``T``: ``P = B``) get ``C = row_chunk // P``.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from sortpass.config import ChunkConfig
from sortpass.memory import RegionPeak, predict_peak
from sortpass.region import Region
from sortpass.report import Decline, DeclineCode
from sortpass.sites import SECONDARY_OPS
from sortpass.torch_compat import guard_all, size_hint_maybe


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
        num_windows: number of windows.
        window_steps: steps along the row dim that one window holds (the largest window, for ``unroll``).
        window_rows: rows one window holds at most.
        peak: predicted bytes.
    """

    region: Region
    scope: str
    form: str
    steps: int | torch.SymInt
    step_limit: int | torch.SymInt
    may_be_empty: bool
    num_windows: int | torch.SymInt
    window_steps: int | torch.SymInt
    window_rows: int
    peak: RegionPeak


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


def plan_chunks(region: Region, config: ChunkConfig) -> ChunkPlan | Decline:
    """Windows and form for a region, or why it is better left alone."""
    site = region.site
    steps: Any = site.steps
    step_limit = _step_limit(site.rows_per_step, config.row_chunk)
    may_be_empty = size_hint_maybe(steps) is None
    num_windows, window_steps = count_windows(steps, step_limit, may_be_empty=may_be_empty)
    peak = predict_peak(region, _hint(window_steps, 1) / max(_hint(steps, 1), 1))
    # A secondary anchor's own outputs are small: only what surrounds it can pay.
    if site.node.target in SECONDARY_OPS and peak.loop >= peak.whole:
        detail = f"chunking it would not lower the peak (whole {peak.whole:,} bytes, chunked {peak.loop:,})"
        return Decline(DeclineCode.NO_GAIN, site.node.name, detail)
    form = _choose_form(site.node.name, num_windows, peak, config)
    if isinstance(form, Decline):
        return form
    window_rows = min(_hint(step_limit, config.row_chunk), _hint(steps, 2**62)) * _hint(site.rows_per_step, 1)
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
        peak=peak,
    )


def _step_limit(rows_per_step: Any, row_chunk: int) -> Any:
    """Most steps a window may hold; one step where a single step already has more rows than ``row_chunk``."""
    if isinstance(rows_per_step, int):
        return max(1, row_chunk // max(rows_per_step, 1))
    hint = size_hint_maybe(rows_per_step)
    return row_chunk // rows_per_step if hint is not None and guard_all(rows_per_step <= row_chunk) else 1


def _choose_form(name: str, num_windows: Any, peak: RegionPeak, config: ChunkConfig) -> str | Decline:
    unrollable = _decline_unroll(name, num_windows, config)
    if config.form == "unroll":
        return unrollable or "unroll"
    if config.form == "auto" and unrollable is None and peak.unroll < peak.loop:
        return "unroll"
    return "loop"


def _decline_unroll(name: str, num_windows: Any, config: ChunkConfig) -> Decline | None:
    if not isinstance(num_windows, int):
        return Decline(
            DeclineCode.DYNAMIC_ROWS, name, "form='unroll' needs a static number of rows; use 'loop' or 'auto'"
        )
    if num_windows > config.max_unroll:
        detail = f"needs {num_windows} windows, more than max_unroll={config.max_unroll}; use form='loop' or 'auto'"
        return Decline(DeclineCode.TOO_MANY_WINDOWS, name, detail)
    return None


def _hint(size: Any, otherwise: int) -> int:
    hint = size_hint_maybe(size)
    return otherwise if hint is None else hint
