"""Every torch internal the pass relies on beyond public FX, in one place.

Tried with torch 2.13.0 and 2.14.1. Each entry says what to do when it breaks.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.fx as fx
from torch._higher_order_ops.while_loop import while_loop_op as while_loop_op  # emit/loop.py is the only caller
from torch._inductor.custom_graph_pass import CustomGraphPass as CustomGraphPass  # the hook's base class
from torch._prims_common import (
    compute_elementwise_output_logical_to_physical_perm,
    is_non_overlapping_and_dense_or_false,
)
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols, statically_known_true, sym_and
from torch.fx.passes.fake_tensor_prop import FakeTensorProp


def fake_mode_of(gm: fx.GraphModule) -> FakeTensorMode | None:
    """The one fake tensor mode that the graph's ``meta["val"]`` live in.

    Dynamo, AOT autograd, functorch and export leave all values in one mode. ``make_fx`` with real inputs makes a mode
    per value; those graphs are propagated once through a new mode. A graph without shapes gives None.
    """
    modes = {id(v.fake_mode): v.fake_mode for node in gm.graph.nodes for v in fake_values(node)}
    if len(modes) == 1:
        return next(iter(modes.values()))
    placeholders = gm.graph.find_nodes(op="placeholder")
    if not modes or any("val" not in node.meta for node in placeholders):
        return None
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with mode:
        inputs = [_refaked(node.meta["val"]) for node in placeholders]
    FakeTensorProp(gm, mode).propagate_dont_convert_inputs(*inputs)
    for node in gm.graph.find_nodes(op="get_attr"):
        if isinstance(attr := _attribute(gm, str(node.target)), torch.Tensor):
            node.meta["val"] = mode.from_tensor(attr)
    return mode


def fake_values(node: fx.Node) -> Iterator[FakeTensor]:
    """The fake tensors among a node's value."""
    val = node.meta.get("val")
    for item in val if isinstance(val, (tuple, list)) else (val,):
        if isinstance(item, FakeTensor):
            yield item


def _refaked(val: Any) -> Any:
    if not isinstance(val, torch.Tensor):
        return val
    return torch.empty_strided(val.shape, val.stride(), dtype=val.dtype, device=val.device)


def _attribute(gm: fx.GraphModule, target: str) -> Any:
    obj: Any = gm
    for part in target.split("."):
        obj = getattr(obj, part)
    return obj


def size_hint_maybe(size: int | torch.SymInt) -> int | None:
    """The size at compile time, without a guard; None for an unbacked size. (``SymNode.hint``.)"""
    if isinstance(size, int):
        return size
    if free_unbacked_symbols(size):
        return None
    hint = size.node.hint
    return None if hint is None else int(hint)


def guard_all(*conditions: Any) -> bool:
    """Decide a conjunction at compile time, with a single guard on symbolic sizes.

    One guard, not one a condition: with several, the ways in which the conjunction can fail would each get a compile
    of their own.
    """
    return bool(sym_and(*conditions)) if len(conditions) > 1 else bool(conditions[0])


def known_true(condition: Any) -> bool:
    """Whether a condition on sizes is known to hold, without adding a guard."""
    return statically_known_true(condition)


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether the tensor fills its memory without holes or overlap, in any order of dims."""
    return bool(is_non_overlapping_and_dense_or_false(tensor))


def physical_order(tensor: torch.Tensor) -> list[int]:
    """The dims from the slowest to the fastest varying in memory."""
    perm, _ = compute_elementwise_output_logical_to_physical_perm(tensor)
    return list(perm)


@contextlib.contextmanager
def tracing_loop_body(mode: FakeTensorMode) -> Iterator[None]:
    """Evaluate nodes that read the loop counter with ``.item()``.

    ``allow_scalar_outputs`` stays on for this compile's mode: Inductor evaluates the ``while_loop`` once more after the
    pass (``FakeTensorUpdater``) and would fail with ``DataDependentOutputException``. The symbols made for the counter
    belong to the body, so the outer graph must not wait for a node that binds them.
    """
    if mode.shape_env is None:
        mode.shape_env = torch.fx.experimental.symbolic_shapes.ShapeEnv()
        mode.static_shapes = False
    mode.allow_scalar_outputs = True
    with mode, mode.shape_env.ignore_fresh_unbacked_symbols():
        yield


def size_nodes(graph: fx.Graph, sizes: Iterable[int | torch.SymInt], before: fx.Node) -> list[Any]:
    """FX nodes (or plain ints) for sizes, made at the graph's insertion point, in front of ``before``.

    A raw ``SymInt`` in a node's arguments becomes a ``NameError`` in the generated code. A size that some earlier node
    is or has is read off there; any other expression is computed by ``materialize_symints`` (new in torch 2.13).
    """
    earlier = list(itertools.takewhile(lambda node: node is not before, graph.nodes))
    found = [size if isinstance(size, int) else _size_node_maybe(graph, size, earlier) for size in sizes]
    missing = [size for size, node in zip(sizes, found, strict=True) if node is None]
    made = iter(graph.materialize_symints(missing))
    fill_values(graph)
    return [next(made) if node is None else node for node in found]


def _size_node_maybe(graph: fx.Graph, size: torch.SymInt, earlier: list[fx.Node]) -> fx.Node | None:
    for node in earlier:
        value = node.meta.get("val")
        if isinstance(value, torch.SymInt) and value.node.expr == size.node.expr:
            return node
    for node in earlier:
        value = node.meta.get("val")
        for dim, s in enumerate(value.shape if isinstance(value, torch.Tensor) else ()):
            if isinstance(s, torch.SymInt) and s.node.expr == size.node.expr:
                return _sym_size(graph, node, dim)
    return None


def _sym_size(graph: fx.Graph, node: fx.Node, dim: int) -> fx.Node:
    size = graph.call_function(torch.ops.aten.sym_size.int, (node, dim))
    size.meta["val"] = node.meta["val"].shape[dim]
    return size


def fill_values(graph: fx.Graph) -> None:
    """Give size arithmetic that has no value yet (``materialize_symints``, proxies) its value."""
    for node in graph.nodes:
        if node.op == "call_function" and "val" not in node.meta and node.target.__module__ == "_operator":
            node.meta["val"] = node.target(*fx.map_arg(node.args, lambda arg: arg.meta["val"]))
