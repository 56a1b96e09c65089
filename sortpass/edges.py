"""The edges of a region: which values leave it, and which nodes are better left outside."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch.fx as fx

from sortpass.graph_order import GraphOrder, is_item, with_items
from sortpass.rules import Flattened
from sortpass.torch_compat import fake_values, is_dense, size_hint_maybe


def find_live_outs(members: Collection[fx.Node], order: GraphOrder) -> tuple[list[fx.Node], list[fx.Node]]:
    """Members read outside, in graph order, split into values to write out and views to make again outside.

    A view must not be written out: allocating "(N,) with stride V" and filling it window by window came back from
    Inductor with one wrong element per row, and a copy would no longer alias its base.
    """
    outs: set[fx.Node] = set()
    views: set[fx.Node] = set()
    for node in reversed(order.nodes):
        if node not in members or not any(user not in members or user in views for user in node.users):
            continue
        if is_view(node):
            views.add(node)
        elif not any(is_item(user) for user in node.users):  # a tuple leaves through its items
            outs.add(node)
    return [n for n in order.nodes if n in outs], [n for n in order.nodes if n in views]


def trim_edges(
    members: Collection[fx.Node], row_dims: Mapping[fx.Node, Any], anchor: fx.Node, order: GraphOrder
) -> set[fx.Node]:
    """The part of ``members`` that is kept once nodes that do not pay inside are left outside."""
    kept = set(members)
    while drop := _first_trimmable(kept, row_dims, anchor, order):
        kept -= with_items(drop)
    return kept


def _first_trimmable(
    members: set[fx.Node], row_dims: Mapping[fx.Node, Any], anchor: fx.Node, order: GraphOrder
) -> set[fx.Node]:
    live_outs, _ = find_live_outs(members, order)
    below = order.descendants(anchor)
    for node in order.nodes:
        if node not in members or node is anchor:
            continue
        members_in = [producer for producer in node.all_input_nodes if producer in members]
        is_sink = not any(user in members for user in node.users)
        # A source read outside is materialised anyway; inside, it would be computed and copied on top of that.
        if not members_in and node in live_outs and node not in below:
            return {node}
        # Rows that were flattened cannot leave; with them goes the view that gives them their dims back.
        if node in live_outs and isinstance(row_dims[node], Flattened):
            return {node, *(user for user in node.users if user in members)}
        # A sink larger than all it is made from (a cast up, an expand) would only enlarge the live-outs.
        if is_sink and members_in and num_bytes(node) > sum(map(num_bytes, node.all_input_nodes)):
            return {node}
        # Only dense tensors can be written window by window and come back with the strides of the whole.
        if node in live_outs and not all(is_dense(t) for t in fake_values(node)):
            return {node, *(member for member in members if member in order.descendants(node))}
    return set()


def is_view(node: fx.Node) -> bool:
    """Whether the output shares memory with an argument, by the op's schema."""
    if is_item(node):
        return isinstance(node.args[0], fx.Node) and is_view(node.args[0])
    schema = getattr(node.target, "_schema", None)
    return schema is not None and any(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns)


def num_bytes(node: fx.Node) -> int:
    """Bytes of a node's tensors at compile-time sizes; an unbacked size counts as 0."""
    return sum((size_hint_maybe(t.numel()) or 0) * t.element_size() for t in fake_values(node))
