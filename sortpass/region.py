"""Grow a region: the row-independent neighbourhood of a sort that is cut into windows as one.

Starting at the anchor, the row dim is followed up to producers and down to users, asking each op's rule where it goes.
A node joins if its rule maps rows to rows consistently with its neighbours. What does not join ends the region: ops
without a rule, ops that couple rows, random ops (unless ``allow_rng``), collectives, anything that mutates. Then the
set is made convex (no path leaves and comes back) and its edges are trimmed.

     x ──────────────┐                       sliced live-in: x          whole live-in: bias
     x -> sort -> softmax -> cumsum -> le -> scatter -> where -> out    live-out: out
          └────────────── indices ───────────┘
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import torch.fx as fx

from sortpass.config import ChunkConfig
from sortpass.convex import convex_subset
from sortpass.edges import find_live_outs, trim_edges
from sortpass.errors import InternalError
from sortpass.graph_order import GraphOrder, is_item
from sortpass.overwrite import Overwrite, find_overwrites
from sortpass.report import Decline, DeclineCode, op_name
from sortpass.rules import ANY, MATMULS, Blocked, Call, Flattened, Flow, find_rule_maybe, is_draw, is_pure, same_size
from sortpass.sites import SortSite
from sortpass.torch_compat import fake_values

RowDim = int | Flattened


@dataclasses.dataclass(frozen=True)
class Region:
    """A convex set of nodes, each of which maps rows to rows.

    Attributes:
        site: the anchor it was grown from.
        nodes: members, in graph order.
        row_dims: member -> the dim of its output(s) along which rows are independent; :class:`Flattened` where that was
            flattened with others.
        flows: member -> what it needs of its arguments.
        live_outs: members whose values are read outside, in graph order.
        recomputed: members that are views read outside; they also stay outside, on top of a live-out or live-in.
        overwrites: live-out -> what a loop writes it over; the others get a buffer.
        boundary: what kept neighbours out.
    """

    site: SortSite
    nodes: tuple[fx.Node, ...]
    row_dims: Mapping[fx.Node, RowDim]
    flows: Mapping[fx.Node, Flow]
    live_outs: tuple[fx.Node, ...]
    recomputed: tuple[fx.Node, ...]
    overwrites: Mapping[fx.Node, Overwrite]
    boundary: tuple[Decline, ...]


def tensor_inputs(node: fx.Node, flow: Flow) -> Iterator[tuple[fx.Node, Any]]:
    """Each tensor argument of a call with the dim it is cut along (or WHOLE, or ANY)."""
    args = Call(node).args
    for name, arg in args.items():
        items = list(arg) if isinstance(arg, (list, tuple)) else [arg]
        for position, item in enumerate(items):
            if not isinstance(item, fx.Node) or next(fake_values(item), None) is None:
                continue
            if name not in flow.inputs:
                raise InternalError(
                    f"the rule of {op_name(node)} does not say what it needs of {name!r}: {node.format_node()}"
                )
            dim = flow.inputs[name]
            yield item, dim[position] if isinstance(dim, tuple) else dim


def grow_region(
    site: SortSite,
    order: GraphOrder,
    config: ChunkConfig,
    *,
    scope: str = "region",
    unfit: Collection[Decline] = (),
) -> Region | Decline:
    """The region around a site, or why there is none; ``unfit`` names nodes to leave out."""
    growth = _Growth(site, order, config, {decline.node: decline for decline in unfit})
    if decline := growth.start():
        return decline
    growth.grow(follow_all=scope == "region")
    members = convex_subset(growth.dims, site.node, order)
    members = trim_edges(members, growth.dims, site.node, order)
    if site.node not in members:
        return Decline(DeclineCode.NOT_DENSE, site.node.name, "its outputs have strides that windows cannot write to")
    nodes = tuple(node for node in order.nodes if node in members)
    row_dims = {node: growth.dims[node] for node in nodes}
    flows = {node: growth.flows[node] for node in nodes}
    live_outs, recomputed = find_live_outs(members, order)
    overwrites, copied = find_overwrites(live_outs, recomputed, row_dims, _reads(flows), order, config)
    return Region(
        site=site,
        nodes=nodes,
        row_dims=row_dims,
        flows=flows,
        live_outs=tuple(live_outs),
        recomputed=tuple(recomputed),
        overwrites=overwrites,
        boundary=tuple(_boundary(growth.blocked, {*members, *(o.copy for o in overwrites.values())}, copied)),
    )


def _boundary(
    blocked: Mapping[fx.Node, Decline], gone: Collection[fx.Node | None], copied: Mapping[fx.Node, Decline]
) -> Iterator[Decline]:
    for node, decline in blocked.items():
        if node not in gone:
            yield copied.get(node, decline)


def _reads(flows: Mapping[fx.Node, Flow]) -> dict[fx.Node, list[RowDim | None]]:
    """Nodes outside whose values the members read -> the dims they cut them along, None for all rows."""
    found: dict[fx.Node, list[RowDim | None]] = {}
    for node, flow in flows.items():
        for producer, dim in tensor_inputs(node, flow):
            if producer not in flows and dim != ANY:
                found.setdefault(producer, []).append(dim)
    return found


class _Growth:
    """The members found so far; lives only inside :func:`grow_region`."""

    def __init__(self, site: SortSite, order: GraphOrder, config: ChunkConfig, unfit: Mapping[str, Decline]) -> None:
        self.site = site
        self.order = order
        self.config = config
        self.unfit = unfit
        self.dims: dict[fx.Node, RowDim] = {}
        self.flows: dict[fx.Node, Flow] = {}
        self.blocked: dict[fx.Node, Decline] = {}

    def start(self) -> Decline | None:
        if self._join(self.site.node, self.site.out_dim):
            return None
        return self.blocked[self.site.node]

    def grow(self, *, follow_all: bool) -> None:
        frontier = [self.site.node]
        visited: set[fx.Node] = set()
        while frontier:
            node = frontier.pop()
            if node in visited:
                continue
            visited.add(node)
            for neighbour, dims in self._neighbours(node):
                is_output_of_anchor = node is self.site.node and neighbour in node.users
                if neighbour in self.dims or not (follow_all or is_output_of_anchor):
                    continue
                if any(self._join(neighbour, dim) for dim in dims):
                    frontier += [n for n in (neighbour, *neighbour.all_input_nodes) if n in self.dims]

    def _neighbours(self, node: fx.Node) -> Iterator[tuple[fx.Node, list[int]]]:
        """Producers with the dim wanted of them, users with the output dims they might be cut along.

        A region ends at a matrix product: what it is made from, or makes of the region's rows, is small.
        """
        is_product = node.target in MATMULS
        for producer, dim in () if is_product else tensor_inputs(node, self.flows[node]):
            if isinstance(dim, int):
                yield producer, [dim]
        for user in () if is_product and node in self.order.descendants(self.site.node) else node.users:
            if user.op == "call_function" and (tensor := next(fake_values(user), None)) is not None:
                yield user, list(range(tensor.ndim))

    def _join(self, node: fx.Node, dim: RowDim) -> bool:
        if is_item(node) and node.args[0] not in self.dims and not self._join(node.args[0], dim):  # type: ignore[arg-type]
            return False  # a tuple cannot be a live-in: the call joins with its items or not at all
        outcome = self._flow_if_cut(node, dim)
        if isinstance(outcome, Decline):
            if node.op == "call_function":
                self.blocked.setdefault(node, outcome)
            return False
        self.dims[node], self.flows[node] = dim, outcome
        return True

    def _flow_if_cut(self, node: fx.Node, dim: RowDim) -> Flow | Decline:
        """The node's flow when cut along ``dim``, if that agrees with every member it touches."""
        if node.op != "call_function":
            return self._no(node, DeclineCode.COUPLED, "is not a call")
        if node.name in self.unfit:
            return self.unfit[node.name]
        rule = find_rule_maybe(node.target)
        if rule is None or not (is_pure(node.target) or is_item(node) or is_draw(node.target)):
            return self._no(node, DeclineCode.UNKNOWN_OP, self.order.why_fixed(node) or "has no rule")
        if node.target in MATMULS and not self.config.through_matmul:
            return self._no(node, DeclineCode.MATMUL, "is taken into a region with through_matmul=True only")
        if is_draw(node.target) and not self.config.allow_rng:
            why = "draws random numbers; it is taken into a region with allow_rng=True only"
            return self._no(node, DeclineCode.RANDOM, why)
        if not self.order.same_segment(node, self.site.node):
            return self._no(node, DeclineCode.COUPLED, "stands on the other side of an in-place write")
        tensors = list(fake_values(node))
        if not tensors or (isinstance(dim, int) and any(dim >= t.ndim for t in tensors)):
            return self._no(node, DeclineCode.COUPLED, f"has no dim {dim}")
        if isinstance(node.meta["val"], (tuple, list)) and not all(is_item(user) for user in node.users):
            return self._no(node, DeclineCode.COUPLED, "is used as a tuple")
        flow = rule(Call(node), dim)  # type: ignore[arg-type]  # only products are asked about flattened rows
        if isinstance(flow, Blocked):
            return self._no(node, DeclineCode.COUPLED, flow.why)
        if not self._holds_rows(node, dim):
            return self._no(node, DeclineCode.COUPLED, f"does not hold the rows in dim {dim}")
        for producer, wanted in tensor_inputs(node, flow):
            if isinstance(wanted, RowDim) and not self._holds_rows(producer, wanted):
                return self._no(node, DeclineCode.COUPLED, f"needs other rows of {producer.name}")
            if producer in self.dims and wanted != ANY and wanted != self.dims[producer]:
                return self._no(node, DeclineCode.COUPLED, f"needs all rows of {producer.name}")
        for user in node.users:
            if user in self.flows:
                for producer, wanted in tensor_inputs(user, self.flows[user]):
                    if producer is node and wanted not in (ANY, dim):
                        return self._no(node, DeclineCode.COUPLED, f"{user.name} needs all its rows")
        for producer, wanted in tensor_inputs(node, flow):
            # Rows that were flattened exist inside of the region only, between a product and the view of it.
            if isinstance(wanted, Flattened) and isinstance(dim, int) and not self._has_or_gets(producer, wanted):
                return self._no(node, DeclineCode.COUPLED, "merges or splits the row dim")
        return flow

    def _has_or_gets(self, node: fx.Node, dim: RowDim) -> bool:
        return self.dims[node] == dim if node in self.dims else self._join(node, dim)

    def _holds_rows(self, node: fx.Node, dim: RowDim) -> bool:
        steps = self.site.steps
        if isinstance(dim, Flattened):
            return same_size(dim.steps, steps) and all(dim.is_of(tuple(t.shape)) for t in fake_values(node))
        return all(dim < t.ndim and same_size(t.shape[dim], steps) for t in fake_values(node))

    @staticmethod
    def _no(node: fx.Node, code: DeclineCode, why: str) -> Decline:
        return Decline(code, node.name, f"{op_name(node)} {why}")
