"""Put a plan into the graph: make room, make the new nodes, swap, remove the old ones."""

from __future__ import annotations

from collections.abc import Mapping

import torch.fx as fx
from torch._subclasses.fake_tensor import FakeTensorMode

from sortpass.emit.loop import emit_loop
from sortpass.emit.nodes import Applied, CannotBuild
from sortpass.emit.unroll import emit_unroll
from sortpass.graph_order import GraphOrder
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
    point = _last_needed(plan.region, order)
    with gm.graph.inserting_after(point):
        # inserting_after would reverse the order of what is inserted; a marker keeps it.
        marker = gm.graph.call_function(_marker)
    _move_behind(marker, plan.region, order)
    try:
        with gm.graph.inserting_before(marker):
            applied = emit(gm, plan, mode, marker)
    except (CannotBuild, UnknownSize) as failure:
        _remove_new(gm.graph, before)
        _restore(order)
        blamed = failure.node if isinstance(failure, CannotBuild) else plan.region.site.node
        return Decline(DeclineCode.REBUILD_FAILED, blamed.name, f"its chunk cannot be built: {failure}")
    gm.graph.erase_node(marker)
    _swap(gm.graph, plan.region, applied.replacements)
    return applied


def _marker() -> None:
    """Target of the temporary node that marks the insertion point."""


def _last_needed(region: Region, order: GraphOrder) -> fx.Node:
    """The node behind which the region can stand: all live-ins exist, and hold what the members saw in them."""
    members = set(region.nodes)
    live_ins = [dep for node in region.nodes for dep in node.all_input_nodes if dep not in members]
    # A region may read nothing (a sort of a constant it makes itself); then it stands where its first node stood.
    anchor = (
        max(live_ins, key=order.position.__getitem__) if live_ins else order.nodes[order.position[region.nodes[0]] - 1]
    )
    last_placeholder = max(
        (n for n in order.nodes if n.op == "placeholder"), key=order.position.__getitem__, default=anchor
    )
    # A live-in may have been written to after it was made: x.mul_(2); x.sort().
    write = order.last_write_before(region.site.node)
    return max(anchor, last_placeholder, write or anchor, key=order.position.__getitem__)


def _remove_new(graph: fx.Graph, before: set[fx.Node]) -> None:
    for node in reversed(list(graph.nodes)):
        if node not in before:
            graph.erase_node(node)


def _restore(order: GraphOrder) -> None:
    for previous, node in zip(order.nodes, order.nodes[1:], strict=False):
        previous.append(node)


def _move_behind(marker: fx.Node, region: Region, order: GraphOrder) -> None:
    """Move the region, and what needs its results, behind the insertion point.

    What is left in front of it is what the new nodes may read. The members themselves are soon gone, so not even their
    sizes may be asked for.
    """
    moving = set(region.nodes).union(*(order.descendants(node) for node in region.nodes))
    early = [node for node in order.nodes if node in moving and _stands_before(node, marker)]
    for node in reversed(early):
        marker.append(node)


def _stands_before(node: fx.Node, other: fx.Node) -> bool:
    return node < other


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
