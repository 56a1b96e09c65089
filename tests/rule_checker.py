"""What a rule claims, checked on real tensors: a call cut into chunks and joined is the whole call.

Used on the rows of rule_cases.py and on the calls that PyTorch's own samples make.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import torch
import torch.fx as fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._pytree import tree_leaves, tree_map_only

from sortpass.region import tensor_inputs
from sortpass.rules import Blocked, Call, Exactness, Flow, exactness_of, find_rule_maybe, is_draw

aten = torch.ops.aten

UNDEFINED = (aten.empty.memory_format, aten.empty_permuted.default, aten.empty_like.default, aten.new_empty.default)
"""Ops whose values mean nothing: only shape and dtype are compared."""


def fake_call(op: Any, args: dict[str, Any], out: Any = None) -> fx.Node:
    """The node of a call in a graph of its own, with fake values; ``out`` is the call's result, where it was run."""
    mode, graph = FakeTensorMode(shape_env=ShapeEnv()), fx.Graph()

    def fake(tensor: torch.Tensor) -> torch.Tensor:
        with mode:  # a tenth of the time of mode.from_tensor
            return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)

    def placeholder(tensor: torch.Tensor) -> fx.Node:
        node = graph.placeholder(f"arg{len(graph.nodes)}")
        node.meta["val"] = fake(tensor)
        return node

    node = graph.call_function(op, (), tree_map_only(torch.Tensor, placeholder, args))
    if out is None:
        with mode:
            node.meta["val"] = op(**fx.map_arg(node.kwargs, lambda arg: arg.meta["val"]))
    else:
        node.meta["val"] = tree_map_only(torch.Tensor, fake, out)
    return node


def answer(node: fx.Node, row_dim: int) -> Flow | Blocked:
    """The rule's answer as a region takes it: a Flow counts only where all that is cut has the output's rows."""
    rule = find_rule_maybe(node.target)
    assert rule is not None, f"{node.target} has no rule"
    flow = rule(Call(node), row_dim)
    if isinstance(flow, Blocked):
        return flow
    values = list(tree_leaves(node.meta["val"]))
    if any(row_dim >= value.ndim for value in values):
        return Blocked("has an output of fewer dims")
    rows = Call(node).out_shape[row_dim]
    cut = [(value.meta["val"], dim) for value, dim in tensor_inputs(node, flow) if isinstance(dim, int)]
    cut += [(value, row_dim) for value in values]
    assert all(0 <= dim < value.ndim for value, dim in cut)
    return flow if all(value.shape[dim] == rows for value, dim in cut) else Blocked("needs other rows of an argument")


def chunk_of_args(args: dict[str, Any], flow: Flow, start: int, size: int) -> dict[str, Any]:
    """What ``flow`` says the call must be given for rows ``start`` to ``start + size`` of its output."""

    def chunk(value: Any, dim: Any) -> Any:
        if isinstance(value, (list, tuple)) and any(isinstance(item, torch.Tensor) for item in value):
            dims = dim if isinstance(dim, tuple) else (dim,) * len(value)
            return [chunk(item, item_dim) for item, item_dim in zip(value, dims, strict=True)]
        return value.narrow(dim, start, size) if isinstance(value, torch.Tensor) and isinstance(dim, int) else value

    chunks = {name: chunk(value, flow.inputs.get(name)) for name, value in args.items()}
    for name, position in flow.resized.items():
        chunks[name] = [size if i == position else entry for i, entry in enumerate(args[name])]
    return chunks


def assert_chunks_join(node: fx.Node, args: dict[str, Any], flow: Flow, row_dim: int) -> None:
    """Cut the call into chunks and join the results: the whole, as exactly as the op's level promises on a CPU.

    Of an op that draws, only shapes and dtypes, unless its arguments leave it no choice (:func:`is_determined`).
    """
    op: Any = node.target
    level = exactness_of(node, row_dim)
    whole = tree_leaves(op(**args))
    means_nothing = op in UNDEFINED or (is_draw(op) and not is_determined(op, args, whole))
    for sizes in ways_to_cut(whole[0].shape[row_dim]):
        starts = [0, *itertools.accumulate(sizes[:-1])]
        chunks = []
        for start, size in zip(starts, sizes, strict=True):
            chunk = chunk_of_args(args, flow, start, size)
            if flow.in_window is None:
                chunks.append(tree_leaves(op(**chunk)))
            else:
                chunks.append(tree_leaves(flow.in_window(**chunk, row_dim=row_dim, start=start)))
        is_exact = level is not Exactness.CLOSE and (level is not Exactness.ROWWISE or min(sizes) >= 2)
        for expected, *parts in zip(whole, *chunks, strict=True):
            joined = torch.cat(parts, row_dim)
            assert (joined.shape, joined.dtype) == (expected.shape, expected.dtype)
            if not means_nothing:
                # Without tolerances, assert_close takes those of the dtype.
                exactly = {"rtol": 0, "atol": 0} if is_exact else {}
                torch.testing.assert_close(joined, expected, equal_nan=True, **exactly)


def is_determined(op: Any, args: dict[str, Any], result: list[torch.Tensor]) -> bool:
    """Whether a draw has one result, as from rows that are certain; then its chunks have no other."""
    again = (tree_leaves(op(**args)) for _ in range(20))
    return all(torch.equal(a, b) for other in again for a, b in zip(result, other, strict=True))


def ways_to_cut(rows: int) -> Iterator[list[int]]:
    """Uneven chunks, chunks of two rows or more, single rows.

    >>> list(ways_to_cut(5))
    [[1, 2, 2], [2, 3], [1, 1, 1, 1, 1]]
    """
    yield [1, 2, rows - 3] if rows > 3 else [rows]
    if rows > 3:
        yield [2, rows - 2]
    if rows <= 6:
        yield [1] * rows
