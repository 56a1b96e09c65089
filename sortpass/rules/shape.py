"""Views and re-arrangements: dims are renamed, added, dropped or joined, elements stay what they are."""

from __future__ import annotations

from typing import Any

import torch

from sortpass.rules.call import Call, same_size, wrap_dim
from sortpass.rules.exactness import Exactness, selects
from sortpass.rules.matmul import flattened_product_maybe
from sortpass.rules.registry import Blocked, Flow, aligned_dim, register_rule

aten = torch.ops.aten


@register_rule(aten.view.default, aten.reshape.default, aten._unsafe_view.default, exactness=Exactness.COPIES)
def view(call: Call, row_dim: int) -> Flow | Blocked:
    """A view keeps the row dim where one input dim has the same size and the same number of elements before it.

    ``[N, 1] <- [N]`` cut along 0: the input along 0. ``[B, T, V] <- [B * T, V]`` along 2: along 1; along 0: blocked,
    since no single input dim is ``B``; but of a matrix product, see NOTE [Flattened rows] (``rules/matmul.py``).
    """
    source, target = call.shape("self"), call.out_shape
    for dim in range(len(source)):
        before_source, before_target = _product(source[:dim]), _product(target[:row_dim])
        if same_size(source[dim], target[row_dim]) and same_size(before_source, before_target):
            return Flow({"self": dim}, resized={"size" if "size" in call.args else "shape": row_dim})
    if (flattened := flattened_product_maybe(call, row_dim)) is not None:
        return Flow({"self": flattened}, resized={"size" if "size" in call.args else "shape": row_dim})
    return Blocked("merges or splits the row dim")


def _product(sizes: tuple[Any, ...]) -> Any:
    product: Any = 1
    for size in sizes:
        product = product * size
    return product


@register_rule(aten.expand.default, exactness=Exactness.COPIES)
def expand(call: Call, row_dim: int) -> Flow | Blocked:
    return Flow({"self": aligned_dim(call.shape("self"), call.out_shape, row_dim)}, resized={"size": row_dim})


@register_rule(aten.unsqueeze.default, exactness=Exactness.COPIES)
def unsqueeze(call: Call, row_dim: int) -> Flow | Blocked:
    dim = wrap_dim(call["dim"], call.ndim("self") + 1)
    if dim == row_dim:
        return Blocked(f"dim {row_dim} is new")
    return Flow({"self": row_dim - (dim < row_dim)})


@register_rule(aten.squeeze.dim, aten.squeeze.dims, exactness=Exactness.COPIES)
def squeeze(call: Call, row_dim: int) -> Flow | Blocked:
    dims = call.dims("dim") or ()
    gone = {dim for dim in dims if same_size(call.shape("self")[dim], 1)}
    kept = [dim for dim in range(call.ndim("self")) if dim not in gone]
    if len(kept) != len(call.out_shape):
        return Blocked("drops dims whose size is not known")
    if kept[row_dim] in dims:
        return Blocked(f"would drop the row dim ({row_dim}) of a chunk of one row")
    return Flow({"self": kept[row_dim]})


@register_rule(aten.permute.default, exactness=Exactness.COPIES)
def permute(call: Call, row_dim: int) -> Flow | Blocked:
    return Flow({"self": wrap_dim(call["dims"][row_dim], call.ndim("self"))})


@register_rule(aten.transpose.int, exactness=Exactness.COPIES)
def transpose(call: Call, row_dim: int) -> Flow | Blocked:
    swap = {call.dim("dim0"): call.dim("dim1"), call.dim("dim1"): call.dim("dim0")}
    return Flow({"self": swap.get(row_dim, row_dim)})


@register_rule(aten.t.default, exactness=Exactness.COPIES)
def t(call: Call, row_dim: int) -> Flow | Blocked:
    return Flow({"self": row_dim if call.ndim("self") < 2 else 1 - row_dim})


@register_rule(aten.select.int, exactness=Exactness.COPIES)
def select(call: Call, row_dim: int) -> Flow | Blocked:
    return Flow({"self": row_dim + (call.dim("dim") <= row_dim)})


@register_rule(aten.slice.Tensor, exactness=Exactness.COPIES)
def slice_(call: Call, row_dim: int) -> Flow | Blocked:
    if call.dim("dim") == row_dim and not call.takes_all():
        return Blocked(f"picks rows by position (dim {row_dim})")
    return Flow({"self": row_dim})


@register_rule(aten.split.Tensor, aten.split_with_sizes.default, exactness=Exactness.COPIES)
def split(call: Call, row_dim: int) -> Flow | Blocked:
    if call.dim("dim") == row_dim:
        return Blocked(f"picks rows by position (dim {row_dim})")
    return Flow({"self": row_dim})


@register_rule(aten.unbind.int, exactness=Exactness.COPIES)
def unbind(call: Call, row_dim: int) -> Flow | Blocked:
    return Flow({"self": row_dim + (call.dim("dim") <= row_dim)})


@register_rule(aten.cat.default, exactness=selects)
def cat(call: Call, row_dim: int) -> Flow | Blocked:
    tensors = call["tensors"]
    if wrap_dim(call["dim"], len(call.out_shape)) == row_dim:
        return Blocked(f"joins tensors along the row dim ({row_dim})")
    # cat skips legacy empty tensors of shape [0] whatever the others' shapes are.
    if any(tensor.meta["val"].ndim != len(call.out_shape) for tensor in tensors):
        return Blocked("joins tensors of different numbers of dims")
    return Flow({"tensors": tuple(row_dim for _ in tensors)})


@register_rule(aten.stack.default, exactness=selects)
def stack(call: Call, row_dim: int) -> Flow | Blocked:
    dim = wrap_dim(call["dim"], len(call.out_shape))
    if dim == row_dim:
        return Blocked(f"joins tensors along dim {row_dim}")
    return Flow({"tensors": tuple(row_dim - (dim < row_dim) for _ in call["tensors"])})


@register_rule(aten.constant_pad_nd.default, exactness=selects)
def constant_pad_nd(call: Call, row_dim: int) -> Flow | Blocked:
    """``pad`` lists (before, after) from the last dim backwards."""
    position = 2 * (len(call.out_shape) - 1 - row_dim)
    if any(not same_size(amount, 0) for amount in call["pad"][position : position + 2]):
        return Blocked(f"pads the row dim ({row_dim})")
    return Flow({"self": row_dim})


@register_rule(aten.repeat.default, exactness=Exactness.COPIES)
def repeat(call: Call, row_dim: int) -> Flow | Blocked:
    source = row_dim - (len(call.out_shape) - call.ndim("self"))
    if source < 0 or not same_size(call["repeats"][row_dim], 1):
        return Blocked(f"repeats the row dim ({row_dim})")
    return Flow({"self": source})
