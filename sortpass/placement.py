"""Where in a graph the windows of a region can stand."""

from __future__ import annotations

import torch.fx as fx

from sortpass.graph_order import GraphOrder
from sortpass.region import Region


def last_needed(region: Region, order: GraphOrder) -> fx.Node:
    """The node behind which the region can stand: all live-ins exist, and hold what the members saw in them.

    A member that draws also stays behind the draws and effects outside that come before it.
    """
    members = set(region.nodes)
    live_ins = [dep for node in region.nodes for dep in order.dependencies(node) if dep not in members]
    # A region may read nothing (a sort of a constant it makes itself); then it stands where its first node stood.
    anchor = (
        max(live_ins, key=order.position.__getitem__) if live_ins else order.nodes[order.position[region.nodes[0]] - 1]
    )
    last_placeholder = max(
        (n for n in order.nodes if n.op == "placeholder"), key=order.position.__getitem__, default=anchor
    )
    # A live-in may have been written to after it was made: x.mul_(2); x.sort().
    write = order.last_write_before(region.site.node)
    # Whoever reads what the windows write over must have done so.
    readers = [reader for overwrite in region.overwrites.values() for reader in overwrite.readers]
    return max(anchor, last_placeholder, write or anchor, *readers, key=order.position.__getitem__)


def moved_behind(point: fx.Node, region: Region, order: GraphOrder) -> list[fx.Node]:
    """What stands in front of ``point`` and must go behind it: the region and what needs its results, in order."""
    moving = set(region.nodes).union(*(order.descendants(node) for node in region.nodes))
    return [node for node in order.nodes[: order.position[point] + 1] if node in moving]
