"""The order a graph's nodes must keep, beyond what their arguments say.

Random ops must stay in the order they draw in, writes in the order they write in, and ops with effects unknown to us in
the order they stand in. The rewrite moves nodes, so these orders become dependencies here.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from functools import cache
from typing import Any

import torch
import torch.fx as fx

from sortpass.rules import is_pure
from sortpass.torch_compat import while_loop_op

_FRESH = (torch.ops.aten.empty_strided.default, torch.ops.aten.full.default)
"""What makes the buffers and the counter of a loop, which nobody else reads."""


class GraphOrder:
    """Dependencies of a graph, computed once before it is changed."""

    def __init__(self, graph: fx.Graph) -> None:
        self.nodes: list[fx.Node] = list(graph.nodes)
        self.position = {node: i for i, node in enumerate(self.nodes)}
        self._dependencies: dict[fx.Node, list[fx.Node]] = {}
        self._segment: dict[fx.Node, int] = {}
        self._writes: list[fx.Node] = []
        last_fixed: fx.Node | None = None
        for node in self.nodes:
            deps = list(node.all_input_nodes)
            if is_fixed(node):
                if last_fixed is not None:
                    deps.append(last_fixed)
                last_fixed = node
            self._dependencies[node] = deps
            # A member must not move across a write to memory it may read, so regions stay between two writes.
            if is_write(node):
                self._writes.append(node)
            segment = len(self._writes)
            # An item belongs to its tuple, wherever it is taken out.
            self._segment[node] = self._segment[call_of(node)] if is_item(node) else segment
        self._ancestors = cache(self._find_ancestors)
        self._descendants = cache(self._find_descendants)

    def dependencies(self, node: fx.Node) -> list[fx.Node]:
        return self._dependencies[node]

    def same_segment(self, a: fx.Node, b: fx.Node) -> bool:
        return self._segment[a] == self._segment[b]

    def last_write_before(self, node: fx.Node) -> fx.Node | None:
        """The write that the node's segment begins with; None in the first segment."""
        segment = self._segment[node]
        return self._writes[segment - 1] if segment else None

    def ancestors(self, node: fx.Node) -> frozenset[fx.Node]:
        return self._ancestors(node)

    def descendants(self, node: fx.Node) -> frozenset[fx.Node]:
        return self._descendants(node)

    def _find_ancestors(self, node: fx.Node) -> frozenset[fx.Node]:
        found: set[fx.Node] = set()
        frontier = [node]
        while frontier:
            for dep in self._dependencies[frontier.pop()]:
                if dep not in found:
                    found.add(dep)
                    frontier.append(dep)
        return frozenset(found)

    def _find_descendants(self, node: fx.Node) -> frozenset[fx.Node]:
        found: set[fx.Node] = set()
        for later in self.nodes[self.position[node] + 1 :]:
            if any(dep is node or dep in found for dep in self._dependencies[later]):
                found.add(later)
        return frozenset(found)

    @staticmethod
    def why_fixed(node: fx.Node) -> str | None:
        """Why a node may not move at all, as the end of a sentence; None where it may."""
        if is_write(node):
            return "writes into its input"
        if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
            return "draws random numbers"
        return None


def is_item(node: fx.Node) -> bool:
    """Whether the node takes one output out of a call with several."""
    return node.target is operator.getitem


def call_of(node: fx.Node) -> fx.Node:
    """The call that an item is taken out of; of any other node, the node itself."""
    call = node.args[0] if is_item(node) else node
    assert isinstance(call, fx.Node)
    return call


def with_items(nodes: Iterable[fx.Node]) -> set[fx.Node]:
    """The nodes, and for calls with several outputs the call with all its items: they stay or leave together."""
    found: set[fx.Node] = set()
    for node in nodes:
        call = call_of(node)
        found |= {call, *(user for user in call.users if is_item(user))}
    return found


def is_fixed(node: fx.Node) -> bool:
    """Whether the node must keep its place among others like it: it draws, writes, or has effects we cannot see."""
    if node.op == "call_module":
        return True
    if node.op != "call_function" or is_item(node):
        return False
    if isinstance(node.target, torch._ops.HigherOrderOperator) or node.is_impure():
        return True
    # Ranks must meet their collectives in one order.
    in_group = isinstance(node.target, torch._ops.OpOverload) and "c10d" in node.target.namespace
    return in_group or (isinstance(node.target, torch._ops.OpOverload) and not is_pure(node.target))


def is_write(node: fx.Node) -> bool:
    """Whether the node may write into memory that other nodes read."""
    if node.op != "call_function":
        return False
    if node.target is while_loop_op:  # the only loop the pass meets is its own, which writes what it carries
        carried: Any = node.args[2]
        return any(buffer.target not in _FRESH for buffer in carried)
    if isinstance(node.target, torch._ops.HigherOrderOperator):
        return True
    schema = getattr(node.target, "_schema", None)
    return schema is not None and schema.is_mutable
