"""Matrix products: rows of the first factor give rows of the result, columns of the second its columns.

These rules are asked under ``through_matmul=True`` only: a product's last bits depend on how many rows it has.

NOTE [Flattened rows]: a linear layer over ``h [B, T, H]`` is ``view(mm(view(h, [B*T, H]), w), [B, T, V])``. Cut along
``T``, the product has the rows of all ``B`` sequences at ``t`` positions, which no slice of ``[B*T, V]`` holds. Inside
a region such a product is :class:`Flattened`: its window is the product of that window of the live-in, seen as
``[B, T, H]``, sliced and flattened again. It may not leave the region.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import torch
import torch.fx as fx

from sortpass.rules.call import Call, same_size, value_of
from sortpass.rules.registry import WHOLE, Blocked, Flow, aligned_dim, register_rule

aten = torch.ops.aten

MATMULS = (aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default, aten.linear.default)


@dataclasses.dataclass(frozen=True)
class Flattened:
    """A row dim that was flattened, with its neighbours, into dim 0.

    Attributes:
        sizes: the flattened dims; ints, or the nodes that are their sizes.
        position: which of them is the row dim.
    """

    sizes: tuple[Any, ...]
    position: int

    @property
    def steps(self) -> Any:
        return value_of(self.sizes[self.position])

    def unflatten(self, shape: tuple[Any, ...]) -> tuple[Any, ...]:
        """The shape of a tensor before its rows were flattened."""
        return (*map(value_of, self.sizes), *shape[1:])

    def is_of(self, shape: tuple[Any, ...]) -> bool:
        """Whether dim 0 of a shape is known to be these dims, flattened."""
        return len(shape) == 2 and same_size(shape[0], math.prod(map(value_of, self.sizes)))


def flattened_product_maybe(view: Call, row_dim: int) -> Flattened | None:
    """How the rows of a product are flattened that a view gives its dims back; None where it is no such view."""
    product, size = view["self"], view["size" if "size" in view.args else "shape"]
    if not isinstance(product, fx.Node) or product.target not in (aten.mm.default, aten.addmm.default):
        return None
    flat = Flattened(tuple(size[:-1]), row_dim)
    shape = view.shape("self")
    is_last = row_dim == len(size) - 1
    return None if is_last or not (flat.is_of(shape) and same_size(shape[1], view.out_shape[-1])) else flat


@register_rule(aten.mm.default)
def mm(call: Call, row_dim: Any) -> Flow | Blocked:
    """``[N, H] @ [H, V]``."""
    if row_dim == 1:
        return Flow({"self": WHOLE, "mat2": 1})
    return Flow({"self": row_dim, "mat2": WHOLE})


@register_rule(aten.addmm.default)
def addmm(call: Call, row_dim: Any) -> Flow | Blocked:
    """``bias + [N, H] @ [H, V]``."""
    if isinstance(row_dim, Flattened):
        if call.ndim("self") > 1:
            return Blocked("adds a matrix to rows that were flattened")
        return Flow({"self": WHOLE, "mat1": row_dim, "mat2": WHOLE})
    factors = {"mat1": WHOLE, "mat2": 1} if row_dim == 1 else {"mat1": 0, "mat2": WHOLE}
    return Flow({"self": aligned_dim(call.shape("self"), call.out_shape, row_dim), **factors})


@register_rule(aten.bmm.default)
def bmm(call: Call, row_dim: int) -> Flow | Blocked:
    """``[B, N, H] @ [B, H, V]``."""
    return Flow({"self": (0, 1, WHOLE)[row_dim], "mat2": (0, WHOLE, 2)[row_dim]})


@register_rule(aten.baddbmm.default)
def baddbmm(call: Call, row_dim: int) -> Flow | Blocked:
    """``bias + [B, N, H] @ [B, H, V]``."""
    factors = {"batch1": (0, 1, WHOLE)[row_dim], "batch2": (0, WHOLE, 2)[row_dim]}
    return Flow({"self": aligned_dim(call.shape("self"), call.out_shape, row_dim), **factors})


@register_rule(aten.linear.default)
def linear(call: Call, row_dim: int) -> Flow | Blocked:
    """``[..., H] @ [V, H].T + bias``."""
    is_last = row_dim == len(call.out_shape) - 1
    flow = {"input": WHOLE if is_last else row_dim, "weight": 0 if is_last else WHOLE}
    if call.is_tensor("bias"):
        flow["bias"] = 0 if is_last else WHOLE
    return Flow(flow)
