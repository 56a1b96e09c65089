"""Rewrite the region of one anchor: measure, grow, plan, emit, check; and once more inside its windows where needed."""

from __future__ import annotations

import dataclasses
import logging
import warnings

import torch
import torch.fx as fx

from sortpass.config import ChunkConfig
from sortpass.emit import Applied, apply_plan
from sortpass.exactness import judge_plan, weakest
from sortpass.graph_order import GraphOrder, call_of
from sortpass.memory import GraphMemory
from sortpass.plan import ChunkPlan, plan_chunks
from sortpass.predict import LEAST_GAIN
from sortpass.region import grow_region
from sortpass.report import Decline, DeclineCode
from sortpass.sites import SORT_OPS, GraphKind, SortSite, measure_site
from sortpass.torch_compat import fake_mode_of
from sortpass.verify import check_rewrite

log = logging.getLogger(__name__)


def rewrite_anchor(
    gm: fx.GraphModule,
    anchor: fx.Node,
    config: ChunkConfig,
    kind: GraphKind,
    already_cut: frozenset[int] = frozenset(),
) -> ChunkPlan | Decline:
    """Rewrite the region of one anchor, or say why not, with the graph as it was.

    Args:
        gm: the graph.
        anchor: the node in it.
        config: the options.
        kind: whose graph it is.
        already_cut: the dims of the anchor that windows around this graph are cut along.
    """
    site = measure_site(anchor, config, kind, already_cut)
    if isinstance(site, Decline):
        return site
    mode = fake_mode_of(gm)
    if mode is None:
        return Decline(
            DeclineCode.NO_SHAPE, anchor.name, "the graph has no shape metadata, and does not run with fake tensors"
        )
    order = GraphOrder(gm.graph)
    unfit: list[Decline] = []
    while True:
        plan = _plan_anchor(site, order, config, kind, unfit)
        if isinstance(plan, Decline):
            return plan
        applied = apply_plan(gm, plan, order, mode)
        if not isinstance(applied, Decline):
            break
        refused = next((node for node in plan.region.nodes if node.name == applied.node), anchor)
        call = call_of(refused)
        if call is anchor:
            return applied
        unfit.append(dataclasses.replace(applied, node=call.name))  # the region may do without it
    check_rewrite(gm, {**applied.replacements, **applied.copies})
    _warn_if_short(plan)
    if not plan.is_bounded:
        plan = _rewrite_inside(plan, applied, config, kind)
    return plan


def _warn_if_short(plan: ChunkPlan) -> None:
    if plan.rows.short_of is not None:
        warnings.warn(
            f"sortpass: {plan.rows.why} is less than the {plan.rows.short_of:,} bytes that one row of "
            f"{plan.region.site.node.name} needs; it runs one row at a time, which is slow",
            stacklevel=2,
        )


def _plan_anchor(
    site: SortSite, order: GraphOrder, config: ChunkConfig, kind: GraphKind, unfit: list[Decline]
) -> ChunkPlan | Decline:
    plans = [_plan_scope(site, order, config, kind, unfit, scope) for scope in _scopes(config, site)]
    plan = plans[0]
    for other in plans[1:]:
        # The region at about equal peaks: it is the one that may be cheaper in time.
        if isinstance(plan, Decline) or (
            not isinstance(other, Decline) and _judged_peak(other) < (1 - LEAST_GAIN) * _judged_peak(plan)
        ):
            plan = other
    if isinstance(plan, Decline):
        return plan
    verdict = judge_plan(plan, config)
    if config.exactness == "bitwise" and verdict.blamed is not None:
        return Decline(DeclineCode.NOT_BITWISE, verdict.blamed.name, verdict.why)
    return dataclasses.replace(plan, exactness=verdict.level)


def _scopes(config: ChunkConfig, site: SortSite) -> tuple[str, ...]:
    if config.scope != "auto":
        return (config.scope,)
    return ("region", "sort") if site.node.target in SORT_OPS else ("region",)


def _plan_scope(
    site: SortSite, order: GraphOrder, config: ChunkConfig, kind: GraphKind, unfit: list[Decline], scope: str
) -> ChunkPlan | Decline:
    region = grow_region(site, order, config, scope=scope, unfit=unfit)
    if isinstance(region, Decline):
        return region
    return plan_chunks(region, GraphMemory(order, region, config.inner), config, kind, scope=scope)


def _judged_peak(plan: ChunkPlan) -> int:
    """Predicted bytes beside a window, whose own are bounded either way and always fewer for the sort alone."""
    prediction = plan.prediction
    return prediction.bytes_of(prediction.chunked(plan.form).graph) - prediction.bytes_of(prediction.window)


def _rewrite_inside(plan: ChunkPlan, applied: Applied, config: ChunkConfig, kind: GraphKind) -> ChunkPlan:
    """Cut once more, along another dim, where one step along the row dim may hold more rows than a chunk.

    ``[B, T, V]`` cut along ``T``: with ``B`` above ``row_chunk``, the outer windows hold one position of ``T`` and the
    inner ones ``row_chunk`` rows of ``B``. A dynamic ``B`` may be either, in one graph: where it is below, the outer
    windows hold several positions, and there is one inner window.
    """
    already_cut = plan.region.site.already_cut | {plan.region.site.row_dim}
    config = dataclasses.replace(config, row_chunk=plan.rows.rows, scope=plan.scope)
    inner = [rewrite_anchor(gm, anchor, config, kind, already_cut) for gm, anchor in applied.anchors]
    if isinstance(inner[0], Decline):
        log.debug("windows of %s rows stay whole: %s", plan.window_rows, inner[0].detail)
        return plan
    num_windows = _times(plan.num_windows, inner[0].num_windows)
    exactness = weakest(plan.exactness, inner[0].exactness)
    return dataclasses.replace(plan, num_windows=num_windows, window_rows=inner[0].window_rows, exactness=exactness)


def _times(outer: int | torch.SymInt | str, inner: int | torch.SymInt | str) -> int | torch.SymInt | str:
    return f"{outer} * {inner}" if isinstance(outer, str) or isinstance(inner, str) else outer * inner
