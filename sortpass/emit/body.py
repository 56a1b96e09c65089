"""The body and the condition of a loop: one window of the region, its bounds, and its writes into the buffers.

NOTE [Window facts are nodes]: ``slice`` with a data-dependent start has an unknown size unless the shape environment
knows that the window lies inside the rows. Inductor evaluates the body again after the pass, with a new symbol for the
counter, so the facts stand in the body as ``sym_constrain_range`` and ``_assert_scalar``, where every evaluation meets
them.

NOTE [Windows that overlap in place]: a live-out that is written over what the region reads (:mod:`sortpass.overwrite`)
has that as its buffer. The last step of a window may be the first of the next one, which must still find it as it was.
So each window writes all steps but its last, and that one only where the next window starts behind it.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
import torch.fx as fx
from torch._subclasses.fake_tensor import FakeTensorMode

from sortpass.emit.nodes import NodeBuilder, copy_chunk, flatten_again, unflatten
from sortpass.plan import ChunkPlan
from sortpass.region import RowDim
from sortpass.rules import Flattened, value_of

aten = torch.ops.aten


class Shell:
    """Makes the body and condition graphs, which take the same inputs: (*buffers, counter, *extra).

    ``carried`` are the values that the buffers are like: the live-outs, or what they are written over.
    """

    def __init__(
        self,
        gm: fx.GraphModule,
        carried: tuple[fx.Node, ...],
        extra: list[fx.Node],
        counter_value: torch.Tensor,
        mode: FakeTensorMode,
    ) -> None:
        self.gm, self.carried, self.extra, self.counter_value, self.mode = gm, carried, extra, counter_value, mode

    def new(self) -> tuple[NodeBuilder, list[fx.Node], fx.Node, dict[fx.Node, fx.Node]]:
        graph = fx.Graph()
        buffers = [_placeholder(graph, f"out_{i}", node.meta["val"]) for i, node in enumerate(self.carried)]
        counter = _placeholder(graph, "window", self.counter_value)
        extra = {node: _placeholder(graph, node.name, value_of(node)) for node in self.extra}
        extra.update(zip(self.carried, buffers, strict=True))
        return NodeBuilder(graph, self.mode), buffers, counter, extra

    def close(self, builder: NodeBuilder, result: Any) -> fx.GraphModule:
        builder.graph.output(result)
        builder.graph.lint()
        return fx.GraphModule(self.gm, builder.graph)


def _placeholder(graph: fx.Graph, name: str, value: Any) -> fx.Node:
    # In a loop inside of a loop, what is read may be a buffer of the outer one and have its name.
    taken = {node.target for node in graph.nodes}
    node = graph.placeholder(name if name not in taken else f"outer_{name}")
    node.meta["val"] = value
    return node


def build_cond(shell: Shell, num_windows: Any) -> fx.GraphModule:
    builder, _, counter, extra = shell.new()
    return shell.close(builder, builder.call(aten.lt.Scalar, counter, extra.get(num_windows, num_windows)))


def build_body(
    shell: Shell, plan: ChunkPlan, sizes: tuple[Any, Any, Any], constants: list[fx.Node]
) -> tuple[fx.GraphModule, fx.Node]:
    """The body, and where the anchor stands in it."""
    builder, buffers, counter, extra = shell.new()
    steps, num_windows, window_steps = (extra.get(size, size) for size in sizes)
    counter_item = _item(builder, counter, num_windows)
    start, end = _window_bounds(
        builder, counter_item, steps, num_windows, window_steps, is_cut_again=not plan.is_bounded
    )
    windows: dict[tuple[fx.Node, RowDim], fx.Node] = {}
    inside = dict(extra)
    for node in constants:
        inside[node] = builder.call(node.target, *node.args, origin=node, **node.kwargs)

    def cut(node: fx.Node, dim: int) -> fx.Node:
        return builder.call(aten.slice.Tensor, node, dim, start, end)

    def window_of(node: fx.Node, dim: RowDim) -> fx.Node:
        if not isinstance(dim, Flattened):
            return cut(node, dim)
        rows = cut(unflatten(builder, node, dim, lambda size: inside.get(size, size)), dim.position)
        return flatten_again(builder, rows, dim)

    def live_in(node: fx.Node, dim: RowDim | None) -> fx.Node:
        if dim is None:
            return inside[node]
        if (node, dim) not in windows:
            windows[node, dim] = window_of(inside[node], dim)
        return windows[node, dim]

    copies = copy_chunk(builder, plan.region, live_in, window_steps, start)
    is_static = isinstance(steps, int) and isinstance(num_windows, int)
    may_overlap = window_steps != 1 and not (is_static and steps % num_windows == 0)
    for buffer, node in zip(buffers, plan.region.live_outs, strict=True):
        row_dim = plan.region.row_dims[node]
        assert isinstance(row_dim, int)  # flattened rows do not leave
        target, chunk = cut(buffer, row_dim), copies[node]
        if may_overlap and node in plan.region.overwrites and plan.region.overwrites[node].is_read:
            next_item = builder.call(operator.add, counter_item, 1)
            overlap = builder.call(operator.sub, end, _start_of(builder, next_item, steps, num_windows))
            target, chunk = _write_but_last(builder, target, chunk, row_dim, window_steps, overlap)
        builder.call(aten.copy_.default, target, chunk)
    body = shell.close(builder, (*buffers, builder.call(aten.add.Tensor, counter, 1)))
    return body, copies[plan.region.site.node]


def _item(builder: NodeBuilder, counter: fx.Node, num_windows: Any) -> fx.Node:
    """The counter as a number, and that it is one of a window."""
    k = builder.call(aten._local_scalar_dense.default, counter)
    k.meta["unbacked_bindings"] = {k.meta["val"].node.expr: ()}  # this node defines the symbol; Inductor asks
    last = num_windows - 1 if isinstance(num_windows, int) else None
    builder.call(aten.sym_constrain_range.default, k, min=0, max=last)
    return k


def _start_of(builder: NodeBuilder, k: fx.Node, steps: Any, num_windows: Any) -> fx.Node:
    """The first step of window ``k``, as :mod:`sortpass.windows` has it."""
    return builder.call(operator.floordiv, builder.call(operator.mul, k, steps), num_windows)


def _window_bounds(
    builder: NodeBuilder, k: fx.Node, steps: Any, num_windows: Any, window_steps: Any, *, is_cut_again: bool
) -> tuple[fx.Node, fx.Node]:
    """``start`` and ``end`` of window ``k``, with the facts of NOTE [Window facts are nodes]."""
    start = _start_of(builder, k, steps, num_windows)
    is_dynamic = not (isinstance(steps, int) and isinstance(num_windows, int))
    if is_dynamic and is_cut_again:
        # Inductor inlines this window's slice into the inner loop's body, offset and all, and an offset that is more
        # than a symbol ends there as "name 'u1' is not defined".
        start = builder.hidden_size(start)
    end = builder.call(operator.add, start, window_steps)
    if is_dynamic:
        for fact in (
            builder.call(operator.ge, start, 0),
            builder.call(operator.le, start, steps),
            builder.call(operator.ge, end, 0),
            builder.call(operator.le, end, steps),
        ):
            builder.call(aten._assert_scalar.default, fact, "a window lies outside the rows")
    return start, end


def _write_but_last(
    builder: NodeBuilder, target: fx.Node, chunk: fx.Node, row_dim: int, window_steps: Any, overlap: fx.Node
) -> tuple[fx.Node, fx.Node]:
    """Write all steps of a chunk but the last; what is left to write, and where.

    That is the last step, or where the windows ``overlap`` by it, what is there already. See NOTE [Windows that overlap
    in place].
    """
    before = window_steps - 1 if isinstance(window_steps, int) else builder.call(operator.sub, window_steps, 1)

    def cut(node: fx.Node, start: Any, end: Any) -> fx.Node:
        return builder.call(aten.slice.Tensor, node, row_dim, start, end)

    builder.call(aten.copy_.default, cut(target, 0, before), cut(chunk, 0, before))
    value = value_of(target)
    zero = builder.call(aten.full.default, [1] * value.ndim, 0, dtype=torch.int64, device=value.device)
    is_own = builder.call(aten.eq.Scalar, zero, overlap)
    last = cut(target, before, window_steps)
    return last, builder.call(aten.where.self, is_own, cut(chunk, before, window_steps), last)
