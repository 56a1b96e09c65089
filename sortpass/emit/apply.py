"""Put a plan into the graph: make room, make the new nodes, swap, remove the old ones."""

from __future__ import annotations

from collections.abc import Mapping

import torch.fx as fx
from torch._subclasses.fake_tensor import FakeTensorMode

from sortpass.emit.loop import emit_loop
from sortpass.emit.nodes import Applied, CannotBuild
from sortpass.emit.unroll import emit_unroll
from sortpass.graph_order import GraphOrder
from sortpass.placement import last_needed, moved_behind
from sortpass.plan import ChunkPlan
from sortpass.region import Region
from sortpass.report import Decline, DeclineCode
from sortpass.torch_compat import UnknownSize


def apply_plan(gm: fx.GraphModule, plan: ChunkPlan, order: GraphOrder, mode: FakeTensorMode) -> Applied | Decline:
    """Rewrite the graph according to a plan.

    Returns:
        What was made; or a decline, with the graph as it was, where an op refuses its chunk.
    """
    emit = emit_unroll if plan.form == "unroll" else emit_loop
    before = set(gm.graph.nodes)
    point = last_needed(plan.region, order)
    with gm.graph.inserting_after(point):
        # inserting_after would reverse the order of what is inserted; a marker keeps it.
        marker = gm.graph.call_function(_marker)
    # What is left in front of the marker is what the new nodes may read. The members themselves are soon gone, so not
    # even their sizes may be asked for.
    for node in reversed(moved_behind(point, plan.region, order)):
        marker.append(node)
    try:
        with gm.graph.inserting_before(marker):
            applied = emit(gm, plan, mode, marker)
    except (CannotBuild, UnknownSize) as failure:
        _remove_new(gm.graph, before)
        _restore(order)
        blamed = failure.node if isinstance(failure, CannotBuild) else plan.region.site.node
        return Decline(DeclineCode.REBUILD_FAILED, blamed.name, f"its chunk cannot be built: {failure}")
    gm.graph.erase_node(marker)
    for copy, result in applied.copies.items():
        copy.replace_all_uses_with(result)
        gm.graph.erase_node(copy)
    _swap(gm.graph, plan.region, applied.replacements)
    return applied


def _marker() -> None:
    """Target of the temporary node that marks the insertion point."""


def _remove_new(graph: fx.Graph, before: set[fx.Node]) -> None:
    for node in reversed(list(graph.nodes)):
        if node not in before:
            graph.erase_node(node)


def _restore(order: GraphOrder) -> None:
    for previous, node in zip(order.nodes, order.nodes[1:], strict=False):
        previous.append(node)


def _swap(graph: fx.Graph, region: Region, replacements: Mapping[fx.Node, fx.Node]) -> None:
    kept = set(region.recomputed)
    leaving = set(region.nodes) - kept
    for old, new in replacements.items():
        old.replace_all_uses_with(new, delete_user_cb=lambda user: user not in leaving)
    for node in reversed(region.nodes):
        if node not in kept:
            graph.erase_node(node)
    for old, new in replacements.items():
        # An exported program's signature knows its outputs by name; under another, it would not validate or save.
        new.name = old.name
