"""Make a set of nodes convex: no path may leave it and come back, or it could not run as one."""

from __future__ import annotations

from collections.abc import Collection

import torch.fx as fx

from sortpass.graph_order import GraphOrder, with_items


def convex_subset(members: Collection[fx.Node], anchor: fx.Node, order: GraphOrder) -> set[fx.Node]:
    """The part of ``members`` that is kept: convex, and connected to the anchor."""
    kept = set(members)
    kept -= with_items(node for node in members if not with_items([node]) <= kept)
    while drop := _first_violation(kept, anchor, order):
        kept -= with_items(drop)
    return _connected(kept, anchor)


def _first_violation(members: set[fx.Node], anchor: fx.Node, order: GraphOrder) -> set[fx.Node]:
    """The members to drop because of the first path that leaves the set and comes back.

    For a path v -> outside -> w: drop v where it comes before the anchor (one materialised input costs less than the
    anchor's outputs, all of which w would need from outside), else drop w.
    """
    above, below = order.ancestors(anchor), order.descendants(anchor)
    sources: dict[fx.Node, set[fx.Node]] = {}  # outside node -> members it depends on
    for node in order.nodes:
        deps = order.dependencies(node)
        reached: set[fx.Node] = set().union(*(sources.get(dep, ()) for dep in deps))
        if node not in members:
            sources[node] = reached | {dep for dep in deps if dep in members}
        elif reached and (node is anchor or node in above):
            return reached
        elif reached:
            starts_above = not any(v is anchor or v in below for v in reached)
            return reached if starts_above and node in below else {node}
    return set()


def _connected(members: set[fx.Node], anchor: fx.Node) -> set[fx.Node]:
    found, frontier = {anchor}, [anchor]
    while frontier:
        node = frontier.pop()
        for neighbour in (*node.all_input_nodes, *node.users):
            if neighbour in members and neighbour not in found:
                found.add(neighbour)
                frontier.append(neighbour)
    return found
