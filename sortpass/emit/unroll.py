"""The unroll form: the windows as literal nodes, ``cut -> region per piece -> cat``.

Pieces do not overlap: piece ``k`` holds rows ``[k * N // n, (k + 1) * N // n)``, so sizes differ by at most one.

With a static ``N`` the pieces come from one ``split_with_sizes``. With dynamic rows ``n`` is fixed by the upper bound
of ``N``, and each piece is a ``slice`` between two bounds that are read from tensors::

    bound_1 = scalar_tensor(1 * N // n).item()          piece_0 = <region>(x[0 : bound_1])
    bound_2 = scalar_tensor(2 * N // n).item()          piece_1 = <region>(x[bound_1 : bound_2])
                                                        piece_2 = <region>(x[bound_2 : N])

The bounds are such sizes as NOTE [Sizes no kernel may ask about] explains; they telescope, so that ``cat`` has exactly
``N`` rows. Pieces are empty where ``N < n``.
"""

from __future__ import annotations

import contextlib
import operator
from typing import Any

import torch
import torch.fx as fx
from torch._subclasses.fake_tensor import FakeTensorMode

from sortpass.emit.nodes import Applied, LiveIn, NodeBuilder, copy_chunk, flatten_again, unflatten
from sortpass.plan import ChunkPlan
from sortpass.region import RowDim
from sortpass.rules import Flattened
from sortpass.torch_compat import physical_order, size_nodes, tracing_items

aten = torch.ops.aten


def emit_unroll(gm: fx.GraphModule, plan: ChunkPlan, mode: FakeTensorMode, before: fx.Node) -> Applied:
    """Insert the pieces in front of ``before``, which is the graph's insertion point."""
    builder = NodeBuilder(gm.graph, mode)
    anchors: list[tuple[fx.GraphModule, fx.Node]] = []
    parts: dict[fx.Node, list[fx.Node]] = {node: [] for node in plan.region.live_outs}
    is_static = isinstance(plan.steps, int)
    resizes = any(flow.resized for flow in plan.region.flows.values())
    with contextlib.nullcontext() if is_static else tracing_items(mode):
        pieces = _StaticPieces(builder, plan) if is_static else _DynamicPieces(builder, plan, before)
        for window in range(int(plan.num_windows)):
            size = pieces.size(window) if resizes else None
            copies = copy_chunk(builder, plan.region, pieces.live_in(window), size, pieces.start(window))
            anchors.append((gm, copies[plan.region.site.node]))
            for node in parts:
                parts[node].append(copies[node])
        joined = {node: _join(builder, node, items, plan.region.row_dims[node]) for node, items in parts.items()}
    return Applied(joined, tuple(anchors))


def piece_sizes(steps: int, num_windows: int) -> list[int]:
    """Sizes of the pieces, each ``ceil`` or ``floor`` of the mean.

    >>> piece_sizes(10, 3)
    [3, 3, 4]
    """
    bounds = [k * steps // num_windows for k in range(num_windows + 1)]
    return [end - start for start, end in zip(bounds, bounds[1:], strict=False)]


class _Pieces:
    """Hands out the piece of each live-in, cutting it once a window."""

    def __init__(self, builder: NodeBuilder) -> None:
        self.builder = builder
        self._made: dict[tuple[int, fx.Node, RowDim], fx.Node] = {}
        self._unflattened: dict[tuple[fx.Node, Flattened], fx.Node] = {}

    def live_in(self, window: int) -> LiveIn:
        def piece_of(node: fx.Node, dim: RowDim | None) -> fx.Node:
            if dim is None:
                return node
            if (window, node, dim) not in self._made:
                self._made[window, node, dim] = self._piece(node, dim, window)
            return self._made[window, node, dim]

        return piece_of

    def _piece(self, node: fx.Node, dim: RowDim, window: int) -> fx.Node:
        if not isinstance(dim, Flattened):
            return self._cut(node, dim, window)
        if (node, dim) not in self._unflattened:
            self._unflattened[node, dim] = unflatten(self.builder, node, dim)
        return flatten_again(self.builder, self._cut(self._unflattened[node, dim], dim.position, window), dim)

    def size(self, window: int) -> Any:
        """Rows of a piece: an int, or a node."""
        raise NotImplementedError

    def start(self, window: int) -> Any:
        """First row of a piece: an int, or a node."""
        raise NotImplementedError

    def _cut(self, node: fx.Node, dim: int, window: int) -> fx.Node:
        raise NotImplementedError


class _StaticPieces(_Pieces):
    def __init__(self, builder: NodeBuilder, plan: ChunkPlan) -> None:
        super().__init__(builder)
        self._sizes = piece_sizes(int(plan.steps), int(plan.num_windows))
        self._splits: dict[tuple[fx.Node, int], fx.Node] = {}

    def size(self, window: int) -> int:
        return self._sizes[window]

    def start(self, window: int) -> int:
        return sum(self._sizes[:window])

    def _cut(self, node: fx.Node, dim: int, window: int) -> fx.Node:
        if (node, dim) not in self._splits:
            self._splits[node, dim] = self.builder.call(aten.split_with_sizes.default, node, self._sizes, dim)
        return self.builder.call(operator.getitem, self._splits[node, dim], window)


class _DynamicPieces(_Pieces):
    def __init__(self, builder: NodeBuilder, plan: ChunkPlan, before: fx.Node) -> None:
        super().__init__(builder)
        (self._steps,) = size_nodes(builder.graph, [plan.steps], before)
        self._bounds: list[Any] = [0]
        for k in range(1, int(plan.num_windows)):
            self._bounds.append(self._new_bound(k, int(plan.num_windows)))
        self._bounds.append(self._steps)
        self._sizes: dict[int, Any] = {0: self._bounds[1]}

    def _new_bound(self, k: int, num_windows: int) -> fx.Node:
        call = self.builder.call
        position = call(operator.floordiv, call(operator.mul, self._steps, k), num_windows)
        bound = self.builder.hidden_size(position)
        # What slice has to know to give the piece the size bound - previous; without it the size would be unknown.
        for fact in (call(operator.le, bound, self._steps), call(operator.le, self._bounds[-1], bound)):
            call(aten._assert_scalar.default, fact, "a piece lies outside the rows")
        return bound

    def size(self, window: int) -> Any:
        if window not in self._sizes:
            start, end = self._bounds[window : window + 2]
            self._sizes[window] = self.builder.call(operator.sub, end, start)
        return self._sizes[window]

    def start(self, window: int) -> Any:
        return self._bounds[window]

    def _cut(self, node: fx.Node, dim: int, window: int) -> fx.Node:
        start, end = self._bounds[window : window + 2]
        return self.builder.call(aten.slice.Tensor, node, dim, start, end)


def _join(builder: NodeBuilder, live_out: fx.Node, parts: list[fx.Node], dim: RowDim) -> fx.Node:
    """``cat`` in the order of the whole's memory, so that the result has the whole's strides."""
    assert isinstance(dim, int)  # flattened rows do not leave
    order = physical_order(live_out.meta["val"])
    if order == list(range(len(order))):
        return builder.call(aten.cat.default, parts, dim, origin=live_out)
    turned = [builder.call(aten.permute.default, part, order) for part in parts]
    joined = builder.call(aten.cat.default, turned, order.index(dim), origin=live_out)
    return builder.call(aten.permute.default, joined, [order.index(d) for d in range(len(order))])
