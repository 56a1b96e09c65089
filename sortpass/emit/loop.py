"""The loop form: one body, run over windows by ``while_loop``, writing into preallocated outputs.

    out  = empty_strided([N, V])                    body(out, k, x):
    k    = full([], 0)                                  start = (k.item() * N) // n
    loop = while_loop(k < n, body, (out, k), (x,))      chunk = <region>(x[start : start + size])
    out  = loop[0]                                      out[start : start + size].copy_(chunk)
                                                        return out, k + 1

NOTE [Outputs are carried]: the buffers are carried inputs that the body mutates and returns, not additional inputs.
Inductor records mutation only of carried inputs; a reader of a mutated additional input may be scheduled before the
loop. The buffers come first because Inductor takes the loop's device from the first carried input.

NOTE [The counter is a tensor]: Inductor (2.13, 2.14) cannot lower an int carry. A 0-d int64 tensor on the CPU costs one
``.item()`` per window and never synchronises a GPU.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import torch
import torch.fx as fx
from torch._subclasses.fake_tensor import FakeTensorMode

from sortpass.emit.body import Shell, build_body, build_cond
from sortpass.emit.nodes import Applied, NodeBuilder
from sortpass.memory import WINDOW_PEAK
from sortpass.plan import ChunkPlan
from sortpass.region import Region
from sortpass.rules import Call, value_of
from sortpass.torch_compat import fill_values, size_nodes, tracing_items, while_loop_op
from sortpass.windows import count_windows

aten = torch.ops.aten


def emit_loop(gm: fx.GraphModule, plan: ChunkPlan, mode: FakeTensorMode, before: fx.Node) -> Applied:
    """Insert the loop in front of ``before``, which is the graph's insertion point."""
    builder = NodeBuilder(gm.graph, mode)
    region = plan.region
    with tracing_items(mode):
        steps, num_windows, window_steps = _window_counts(builder, plan, before)
    constants = [node for node in _outside_inputs(region) if is_constant(node)]
    targets = {node: overwrite.target for node, overwrite in region.overwrites.items()}
    carried = {targets.get(node, node): node for node in region.live_outs}
    outside = [node for node in _outside_inputs(region) if node not in constants and node not in carried]
    sizes = [size for size in (steps, num_windows, window_steps) if isinstance(size, fx.Node)]
    extra = list(dict.fromkeys([*outside, *sizes]))

    with tracing_items(mode):
        counter_value = torch.empty([], dtype=torch.int64, device="cpu")
        shell = Shell(gm, tuple(carried), extra, counter_value, mode)
        body, anchor = build_body(shell, plan, (steps, num_windows, window_steps), constants)
        cond = build_cond(shell, num_windows)

    buffers = [targets.get(node) or _allocate(builder, node, before) for node in region.live_outs]
    counter = builder.call(aten.full.default, [], 0, dtype=torch.int64, device=torch.device("cpu"))
    body_attr = gm.graph.get_attr(_add_submodule(gm, "chunk_body", body))
    cond_attr = gm.graph.get_attr(_add_submodule(gm, "chunk_cond", cond))
    loop = gm.graph.call_function(while_loop_op, (cond_attr, body_attr, (*buffers, counter), tuple(extra)))
    loop.meta.update({k: v for k, v in region.site.node.meta.items() if k in ("stack_trace", "nn_module_stack")})
    loop.meta[WINDOW_PEAK] = plan.prediction.window_of_known_size()
    loop.meta["val"] = tuple(node.meta["val"] for node in (*buffers, counter))
    results = {node: builder.call(operator.getitem, loop, i, origin=node) for i, node in enumerate(region.live_outs)}
    copies = {overwrite.copy: node for node, overwrite in region.overwrites.items() if overwrite.copy is not None}
    # What is only copied may have other strides than what it is copied into, and so is not replaced by it.
    read = {n: result for n, result in results.items() if n not in region.overwrites or region.overwrites[n].is_used}
    return Applied(read, ((body, anchor),), {copy: results[node] for copy, node in copies.items()})


def _window_counts(builder: NodeBuilder, plan: ChunkPlan, before: fx.Node) -> tuple[Any, Any, Any]:
    """Steps, number of windows and steps per window: ints where they are known, else nodes."""
    graph = builder.graph
    # Either may be dynamic alone: [2, s, V] cut along the first dim has s rows a step, so a dynamic limit of steps.
    steps, limit = size_nodes(graph, [plan.steps, plan.step_limit], before)
    tracer = fx.proxy.GraphAppendingTracer(graph)
    as_proxy = [fx.Proxy(size, tracer) if isinstance(size, fx.Node) else size for size in (steps, limit)]
    counts = count_windows(*as_proxy, may_be_empty=plan.may_be_empty)
    fill_values(graph)
    num_windows, window_steps = (count.node if isinstance(count, fx.Proxy) else count for count in counts)
    asks_nothing = plan.region.site.by_bound or not isinstance(plan.step_limit, int)
    if asks_nothing and isinstance(window_steps, fx.Node):
        window_steps = builder.hidden_size(window_steps)
    return steps, num_windows, window_steps


def _outside_inputs(region: Region) -> Iterator[fx.Node]:
    """Every outside node the region reads, tensors and sizes alike, once each."""
    members = set(region.nodes)
    seen: dict[fx.Node, None] = {}
    for node in region.nodes:
        resized = region.flows[node].resized
        for name, arg in Call(node).args.items():
            items = list(arg) if isinstance(arg, (list, tuple)) else [arg]
            for position, item in enumerate(items):
                is_row_count = resized.get(name) == position and isinstance(arg, (list, tuple))
                if isinstance(item, fx.Node) and item not in members and not is_row_count:
                    seen[item] = None
    yield from seen


def is_constant(node: fx.Node) -> bool:
    """A one-element tensor made from constants (``full([], -inf)``): made again in the body, not passed in.

    Inductor folds it into the kernel there; passed in, it would be a buffer to load.
    """
    value = value_of(node)
    return (
        node.op == "call_function"
        and node.target in (aten.full.default, aten.scalar_tensor.default)
        and not node.all_input_nodes
        and isinstance(value, torch.Tensor)
        and value.ndim == 0
    )


def _allocate(builder: NodeBuilder, live_out: fx.Node, before: fx.Node) -> fx.Node:
    value = live_out.meta["val"]
    flat = size_nodes(builder.graph, [*value.shape, *value.stride()], before)
    size, stride = flat[: value.ndim], flat[value.ndim :]
    return builder.call(aten.empty_strided.default, size, stride, dtype=value.dtype, device=value.device)


def _add_submodule(gm: fx.GraphModule, prefix: str, module: fx.GraphModule) -> str:
    index = 0
    while hasattr(gm, f"{prefix}_{index}"):
        index += 1
    gm.add_module(f"{prefix}_{index}", module)
    return f"{prefix}_{index}"
