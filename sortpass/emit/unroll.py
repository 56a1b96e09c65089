"""The unroll form: the windows as literal nodes, ``split_with_sizes -> region per piece -> cat``.

Pieces do not overlap: piece ``k`` holds rows ``[k * N // n, (k + 1) * N // n)``, so sizes differ by at most one.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
import torch.fx as fx
from torch._subclasses.fake_tensor import FakeTensorMode

from sortpass.emit.nodes import Applied, NodeBuilder, copy_chunk
from sortpass.plan import ChunkPlan
from sortpass.torch_compat import physical_order

aten = torch.ops.aten


def emit_unroll(gm: fx.GraphModule, plan: ChunkPlan, mode: FakeTensorMode, before: fx.Node) -> Applied:
    """Insert the pieces in front of ``before``, which is the graph's insertion point."""
    builder = NodeBuilder(gm.graph, mode)
    sizes = piece_sizes(int(plan.steps), int(plan.num_windows))
    splits: dict[tuple[fx.Node, int], fx.Node] = {}
    anchors: list[tuple[fx.GraphModule, fx.Node]] = []
    pieces: dict[fx.Node, list[fx.Node]] = {node: [] for node in plan.region.live_outs}
    for window, size in enumerate(sizes):
        items: dict[tuple[fx.Node, int], fx.Node] = {}

        def live_in(node: fx.Node, dim: int | None, window: int = window, items: Any = items) -> fx.Node:
            if dim is None:
                return node
            if (node, dim) not in splits:
                splits[node, dim] = builder.call(aten.split_with_sizes.default, node, sizes, dim)
            if (node, dim) not in items:
                items[node, dim] = builder.call(operator.getitem, splits[node, dim], window)
            return items[node, dim]

        copies = copy_chunk(builder, plan.region, live_in, size)
        anchors.append((gm, copies[plan.region.site.node]))
        for node in pieces:
            pieces[node].append(copies[node])
    joined = {node: _join(builder, node, parts, plan.region.row_dims[node]) for node, parts in pieces.items()}
    return Applied(joined, tuple(anchors))


def piece_sizes(steps: int, num_windows: int) -> list[int]:
    """Sizes of the pieces, each ``ceil`` or ``floor`` of the mean.

    >>> piece_sizes(10, 3)
    [3, 3, 4]
    """
    bounds = [k * steps // num_windows for k in range(num_windows + 1)]
    return [end - start for start, end in zip(bounds, bounds[1:], strict=False)]


def _join(builder: NodeBuilder, live_out: fx.Node, parts: list[fx.Node], dim: int) -> fx.Node:
    """``cat`` in the order of the whole's memory, so that the result has the whole's strides."""
    order = physical_order(live_out.meta["val"])
    if order == list(range(len(order))):
        return builder.call(aten.cat.default, parts, dim, origin=live_out)
    turned = [builder.call(aten.permute.default, part, order) for part in parts]
    joined = builder.call(aten.cat.default, turned, order.index(dim), origin=live_out)
    return builder.call(aten.permute.default, joined, [order.index(d) for d in range(len(order))])
