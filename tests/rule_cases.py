"""The table behind test_rules.py: calls of every op that has a rule, and the output dims each may be cut along.

A row reads ``case(op, *args, cuts=(0,), **kwargs)``. Most are square, 6 x 6, so that a rule which finds the row dim by
comparing sizes gives itself away. Tensors are described here and made when a test runs.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from typing import Any

import torch

aten, prims = torch.ops.aten, torch.ops.prims


@dataclasses.dataclass(frozen=True)
class Arg:
    """A tensor argument that is made on demand, from the global random state."""

    label: str
    make: Callable[[], torch.Tensor]

    def __repr__(self) -> str:
        return self.label


def floats(*shape: int) -> Arg:
    return Arg(f"f{list(shape)}", lambda: torch.randn(shape))


def ties(*shape: int) -> Arg:
    """Floats with few distinct values and a NaN here and there."""

    def make() -> torch.Tensor:
        values = torch.randint(-2, 3, shape) / 2
        return torch.where(torch.rand(shape) < 0.1, float("nan"), values)

    return Arg(f"ties{list(shape)}", make)


def probs(*shape: int) -> Arg:
    return Arg(f"p{list(shape)}", lambda: torch.rand(shape))


def ints(*shape: int, below: int = 4) -> Arg:
    return Arg(f"i{list(shape)}", lambda: torch.randint(0, below, shape))


def bools(*shape: int) -> Arg:
    return Arg(f"b{list(shape)}", lambda: torch.rand(shape) < 0.5)


def orders(*shape: int) -> Arg:
    """A permutation along the last dim of every row."""
    return Arg(f"order{list(shape)}", lambda: torch.rand(shape).argsort(-1))


def ascending(*shape: int) -> Arg:
    return Arg(f"asc{list(shape)}", lambda: torch.randn(shape).sort(-1).values)


def certain(*shape: int) -> Arg:
    """Probabilities of which one in each row is 1 and the others are 0."""
    return Arg(f"certain{list(shape)}", lambda: torch.eye(shape[-1])[torch.randint(0, shape[-1], shape[:-1])])


@dataclasses.dataclass(frozen=True)
class Case:
    """A call, and the dims of its output it may be cut along.

    ``args`` and ``kwargs`` may hold :class:`Arg` anywhere, lists included.
    """

    op: torch._ops.OpOverload
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    cuts: tuple[int, ...]

    def __str__(self) -> str:
        parts = [str(arg) for arg in self.args] + [f"{name}={value}" for name, value in self.kwargs.items()]
        return f"{self.op}({', '.join(parts)})".replace(" ", "")


def case(op: Any, *args: Any, cuts: tuple[int, ...], **kwargs: Any) -> Case:
    return Case(op, args, kwargs, cuts)


CREATE = [
    *(case(op, [6, 6], *value, cuts=(0, 1), dtype=torch.float16) for op, value in (
        (aten.full.default, [2.0]), (aten.zeros.default, []), (aten.ones.default, []), (aten.empty.memory_format, []))),
    case(aten.full.default, [2, 6, 4], True, cuts=(0, 1, 2)),
    case(aten.empty_permuted.default, [6, 4], [1, 0], cuts=(0, 1)),
    *(case(op, floats(3), [6, 6], *value, cuts=(0, 1)) for op, value in (
        (aten.new_full.default, [2]), (aten.new_zeros.default, []), (aten.new_ones.default, []),
        (aten.new_empty.default, []))),
    *(case(op, ints(6, 6), *value, cuts=(0, 1)) for op, value in (
        (aten.full_like.default, [2]), (aten.zeros_like.default, []), (aten.ones_like.default, []),
        (aten.empty_like.default, []))),
    case(aten.full_like.default, floats(2, 6, 4), True, cuts=(0, 1, 2), dtype=torch.bool),
]  # fmt: skip

UNTAGGED_POINTWISE = [
    case(aten.fill.Scalar, floats(6, 6), 2.0, cuts=(0, 1)),
    case(aten.fill.Tensor, floats(2, 6, 4), floats(), cuts=(0, 1, 2)),
    *(case(op, floats(*shape), cuts=tuple(range(len(shape))))
      for op in (aten.lift_fresh_copy.default, aten.alias.default, aten.detach.default)
      for shape in ((6, 6), (2, 6, 4))),
    case(aten.masked_fill.Tensor, floats(6, 6), bools(6, 1), floats(), cuts=(0, 1)),
    case(aten.masked_fill.Tensor, floats(6, 6), bools(6), floats(), cuts=(0, 1)),
    case(aten.rsub.Tensor, floats(6, 6), floats(6, 1), cuts=(0, 1), alpha=2),
    case(aten.where.ScalarSelf, bools(6, 6), 1.0, floats(6), cuts=(0, 1)),
    case(aten.where.ScalarOther, bools(6, 1), floats(6, 6), 1.0, cuts=(0, 1)),
    case(aten.where.Scalar, bools(6, 6), 1.0, 2.0, cuts=(0, 1)),
    case(aten.copy.default, floats(6, 6), floats(6), cuts=(0, 1)),
    case(aten.copy.default, floats(6, 6), ints(6, 1), cuts=(0, 1)),
    case(aten._to_copy.default, floats(6, 6), cuts=(0, 1), dtype=torch.bfloat16),
    case(aten._to_copy.default, ints(2, 6, 4), cuts=(0, 1, 2), dtype=torch.float32, device=torch.device("cpu")),
    case(aten._to_copy.default, floats(6, 6), cuts=(), device=torch.device("meta")),
    case(aten.bucketize.Tensor, floats(6, 6), ascending(6), cuts=(0, 1)),
    case(aten.bucketize.Tensor, floats(2, 6, 4), ascending(6), cuts=(0, 1, 2), right=True),
    case(aten.isin.Tensor_Tensor, ints(6, 6), ints(6), cuts=(0, 1)),
    case(aten.isin.Tensor_Tensor, ints(2, 6, 4), ints(6, 6, below=2), cuts=(0, 1, 2), invert=True),
]  # fmt: skip

UNARY = (
    aten.abs, aten.ceil, aten.clone, aten.cos, aten.erf, aten.exp, aten.exp2, aten.expm1, aten.floor, aten.frac,
    aten.gelu, aten.isfinite, aten.isinf, aten.isnan, aten.logical_not, aten.nan_to_num, aten.neg, aten.positive,
    aten.reciprocal, aten.relu, aten.round, aten.rsqrt, aten.sgn, aten.sigmoid, aten.sign, aten.silu, aten.sin,
    aten.softplus, aten.sqrt, aten.square, aten.tanh, aten.trunc, aten.log, aten.log1p, aten.log2, prims.exp2,
    prims.rsqrt,
)  # fmt: skip

BINARY = (
    aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor, aten.eq.Tensor, aten.ne.Tensor, aten.lt.Tensor,
    aten.le.Tensor, aten.gt.Tensor, aten.ge.Tensor, aten.maximum.default, aten.minimum.default, aten.max.other,
    aten.min.other, aten.pow.Tensor_Tensor, aten.remainder.Tensor, aten.fmod.Tensor, aten.atan2.default,
    aten.logaddexp.default, aten.logical_and.default, aten.logical_or.default, aten.xlogy.Tensor,
)  # fmt: skip

BROADCASTS = (
    ((6, 6), (6, 6)), ((6, 6), (6, 1)), ((6, 6), (6,)), ((6, 6), (1, 6)), ((6, 6), ()), ((1, 6), (6, 1)),
    ((6,), (6, 1)), ((2, 6, 4), (6, 1)), ((2, 1, 4), (2, 6, 1)), ((4,), (2, 6, 4)),
)  # fmt: skip

POINTWISE = [
    *(case(op.default, ties(6, 6), cuts=(0, 1)) for op in UNARY),
    *(case(op, ties(*a), ties(*b), cuts=tuple(range(max(len(a), len(b))))) for op in BINARY for a, b in BROADCASTS),
    *(case(op, ties(2, 6, 4), 2, cuts=(0, 1, 2)) for op in (
        aten.add.Scalar, aten.div.Scalar, aten.pow.Tensor_Scalar, aten.rsub.Scalar, aten.eq.Scalar, aten.lt.Scalar,
        aten.clamp.default, aten.clamp_min.default, aten.remainder.Scalar, aten.round.decimals)),
    case(aten.pow.Scalar, 2, floats(6, 6), cuts=(0, 1)),
    case(aten.div.Tensor_mode, floats(6, 6), floats(6, 1), cuts=(0, 1), rounding_mode="floor"),
    case(aten.bitwise_and.Tensor, ints(6, 6), ints(6), cuts=(0, 1)),
    case(aten.bitwise_or.Tensor, bools(6, 6), bools(6, 1), cuts=(0, 1)),
    case(aten.bitwise_not.default, bools(6, 6), cuts=(0, 1)),
    case(aten.where.self, bools(6, 1), floats(6), floats(), cuts=(0, 1)),
    case(aten.where.self, bools(2, 1, 1), floats(6, 1), floats(4), cuts=(0, 1, 2)),
    case(aten.masked_fill.Scalar, floats(6, 6), bools(6, 1), float("-inf"), cuts=(0, 1)),
    case(aten.masked_fill.Scalar, floats(6, 1), bools(6), float("-inf"), cuts=(0, 1)),
    case(aten.clamp.Tensor, floats(6, 6), floats(6), floats(6, 1), cuts=(0, 1)),
    case(aten.clamp.Tensor, floats(6, 6), None, floats(6, 1), cuts=(0, 1)),
    case(aten.clamp.Tensor, floats(6, 6), max=floats(6), cuts=(0, 1)),
    case(aten.addcmul.default, floats(6, 6), floats(6, 1), floats(6), cuts=(0, 1), value=2),
    case(aten.lerp.Scalar, floats(6, 6), floats(6), 0.25, cuts=(0, 1)),
    case(aten.frexp.Tensor, floats(6, 6), cuts=(0, 1)),
    case(aten.gelu_backward.default, floats(6, 6), floats(6, 6), cuts=(0, 1), approximate="tanh"),
    case(prims.convert_element_type.default, floats(6, 6), torch.float16, cuts=(0, 1)),
]  # fmt: skip


def reductions(op: Any, *before: Any, make: Callable[..., Arg] = ties, keepdim: bool = True) -> list[Case]:
    """Rows of an op that reduces a list of dims, which stands behind ``before``."""
    kept = {"keepdim": True} if keepdim else {}
    return [
        case(op, make(6, 6), *before, [1], cuts=(0,)),
        case(op, make(6, 6), *before, [0], cuts=(1,) if keepdim else (0,), **kept),
        case(op, make(3, 4, 6), *before, [-2], cuts=(0, 1)),
        case(op, make(2, 6, 4), *before, dim=[0, -1], cuts=(1,) if keepdim else (0,), **kept),
    ]


def reductions_of_one(op: Any, *before: Any, make: Callable[..., Arg] = ties) -> list[Case]:
    """Rows of an op that reduces one dim, which stands behind ``before``."""
    return [
        case(op, make(6, 6), *before, dim=1, cuts=(0,)),
        case(op, make(6, 6), *before, dim=0, keepdim=True, cuts=(1,)),
        case(op, make(3, 4, 6), *before, dim=-2, cuts=(0, 1)),
        case(op, make(2, 6, 4), *before, dim=-1, keepdim=True, cuts=(0, 1)),
    ]


REDUCE = [
    *(row for op in (aten.sum.dim_IntList, aten.nansum.default, aten.mean.dim, aten.amax.default, aten.amin.default,
                     aten.any.dims, aten.all.dims) for row in reductions(op)),
    *(row for op in (aten.logsumexp.default, aten.var.correction, aten.var_mean.correction, aten.std.correction)
      for row in reductions(op, make=floats)),
    *reductions(aten.count_nonzero.dim_IntList, keepdim=False),
    *reductions(aten.linalg_vector_norm.default, 2, make=floats),
    *reductions(aten.norm.ScalarOpt_dim, 2, make=floats),
    *(row for op in (aten.prod.dim_int, aten.aminmax.default, aten.argmax.default, aten.argmin.default, aten.any.dim,
                     aten.all.dim, aten.max.dim, aten.min.dim, aten.median.dim, aten.nanmedian.dim, aten.mode.default)
      for row in reductions_of_one(op)),
    *reductions_of_one(aten.kthvalue.default, 2),
    *(case(op, floats(6, 6), keepdim=True, cuts=()) for op in (aten.argmax.default, aten.aminmax.default)),
    *(case(op, floats(6, 6), dim, keepdim=True, cuts=()) for dim in (None, [], [0, 1])
      for op in (aten.sum.dim_IntList, aten.var.correction)),
    *(case(aten.linalg_vector_norm.default, floats(6, 6), 2, dim, True, cuts=()) for dim in (None, [])),
    *(case(op, floats(200, 6), [0], cuts=(0,)) for op in (aten.sum.dim_IntList, aten.nansum.default, aten.mean.dim)),
    case(aten.mode.default, ties(6, 6), cuts=(0,)),
    case(aten.any.dims, bools(6, 6), [], cuts=()),
    case(aten.sum.dim_IntList, floats(6, 6), 1, True, cuts=(0,), dtype=torch.float64),
    case(aten.var.correction, floats(6, 6), [1], cuts=(0,), correction=0),
]  # fmt: skip

ROWWISE = [
    *(row for op, after in (
        (aten._softmax.default, [False]), (aten._log_softmax.default, [False]), (aten.softmax.int, []),
        (aten.log_softmax.int, []), (aten._safe_softmax.default, []), (aten.cumsum.default, []),
        (aten.cumprod.default, []), (aten.logcumsumexp.default, []), (aten.cummax.default, []),
        (aten.cummin.default, []), (aten.sort.default, [True]))
      for row in (case(op, ties(6, 6), 1, *after, cuts=(0,)), case(op, ties(6, 6), -2, *after, cuts=(1,)),
                  case(op, ties(2, 6, 4), 1, *after, cuts=(0, 2)))),
    case(aten.sort.default, ties(6, 6), cuts=(0,)),
    *(case(aten.sort.stable, ties(6, 6), stable=stable, dim=dim, cuts=cuts)
      for stable in (None, False, True) for dim, cuts in ((-1, (0,)), (0, (1,)))),
    case(aten.topk.default, ties(6, 6), 3, cuts=(0,)),
    case(aten.topk.default, ties(6, 6), 6, 0, False, cuts=(1,)),
    case(aten.topk.default, ties(2, 6, 4), 2, -2, sorted=False, cuts=(0, 2)),
    *(case(op, floats(*shape), floats(*shape), dim, torch.float32, cuts=cuts)
      for op in (aten._softmax_backward_data.default, aten._log_softmax_backward_data.default)
      for shape, dim, cuts in (((6, 6), 1, (0,)), ((6, 6), -2, (1,)), ((2, 6, 4), -1, (0, 1)))),
    case(aten.flip.default, floats(6, 6), [1], cuts=(0,)),
    case(aten.flip.default, floats(2, 6, 4), [0, -1], cuts=(1,)),
    case(aten.flip.default, floats(6, 6), [], cuts=(0, 1)),
    case(aten.roll.default, floats(6, 6), [2], cuts=()),
    case(aten.roll.default, floats(6, 6), [2], [-1], cuts=(0,)),
    case(aten.roll.default, floats(2, 6, 4), [1, 2], [0, 2], cuts=(1,)),
    case(aten.searchsorted.Tensor, ascending(6), floats(6, 6), cuts=(0, 1)),
    case(aten.searchsorted.Tensor, ascending(6), floats(6), cuts=(0,), right=True),
    case(aten.searchsorted.Tensor, ascending(6, 6), floats(6, 3), cuts=(0,)),
    case(aten.searchsorted.Tensor, floats(6, 6), floats(6, 6), sorter=orders(6, 6), side="right", cuts=(0,)),
    case(aten.searchsorted.Tensor, floats(6), floats(6, 6), sorter=orders(6), cuts=(0, 1)),
    case(aten.searchsorted.Tensor, ascending(2, 6, 4), floats(2, 6, 3), out_int32=True, cuts=(0, 1)),
]  # fmt: skip

SHAPE = [
    *(case(op, floats(*source), list(target), cuts=cuts)
      for op in (aten.view.default, aten.reshape.default, aten._unsafe_view.default)
      for source, target, cuts in (
          ((2, 3, 4), (6, 4), (1,)), ((6, 4), (2, 3, 4), (2,)), ((6,), (6, 1), (0,)), ((6, 1), (6,), (0,)),
          ((4, 4), (16,), ()), ((4, 4), (2, 2, 4), (2,)), ((4, 4), (4, 2, 2), (0,)), ((6, 4), (6, -1), (0, 1)),
          ((2, 3, 4), (-1, 4), (1,)), ((2, 6, 4), (2, -1), (0,)), ((6, 6), (6, 1, 6), (0, 2)), ((4, 4), (4, 4), (0, 1)),
          ((2, 2, 6), (4, 6), (1,)), ((4, 3), (3, 4), ()))),
    *(case(aten.expand.default, floats(*source), size, cuts=tuple(range(len(size)))) for source, size in (
        ((6, 1), [6, 4]), ((4,), [6, 4]), ((1, 4), [6, -1]), ((6, 1), [2, 6, 4]), ((6, 6), [-1, 6]), ((), [6, 6]))),
    case(aten.unsqueeze.default, floats(6, 4), 0, cuts=(1, 2)),
    case(aten.unsqueeze.default, floats(6, 6), 1, cuts=(0, 2)),
    case(aten.unsqueeze.default, floats(6, 4), -1, cuts=(0, 1)),
    case(aten.squeeze.dim, floats(6, 1, 4), 1, cuts=(0, 1)),
    case(aten.squeeze.dim, floats(6, 1), -1, cuts=(0,)),
    case(aten.squeeze.dim, floats(6, 4), 0, cuts=(1,)),  # a chunk of one row would lose the dim
    case(aten.squeeze.dims, floats(1, 6, 1), [0, 2], cuts=(0,)),
    case(aten.squeeze.dims, floats(6, 1, 4), [1, 0], cuts=(1,)),
    case(aten.permute.default, floats(2, 6, 4), [2, 0, 1], cuts=(0, 1, 2)),
    case(aten.permute.default, floats(2, 6, 4), [-1, 1, -3], cuts=(0, 1, 2)),
    case(aten.permute.default, floats(6, 6), [1, 0], cuts=(0, 1)),
    case(aten.transpose.int, floats(6, 6), 0, 1, cuts=(0, 1)),
    case(aten.transpose.int, floats(2, 6, 4), -1, 0, cuts=(0, 1, 2)),
    case(aten.transpose.int, floats(6, 4), 1, -1, cuts=(0, 1)),
    case(aten.t.default, floats(6, 6), cuts=(0, 1)),
    case(aten.t.default, floats(6), cuts=(0,)),
    case(aten.select.int, floats(6, 6), 0, 2, cuts=(0,)),
    case(aten.select.int, floats(6, 4), 1, -1, cuts=(0,)),
    case(aten.select.int, floats(2, 6, 4), -2, 0, cuts=(0, 1)),
    case(aten.slice.Tensor, floats(6, 6), 1, 1, 4, cuts=(0,)),
    case(aten.slice.Tensor, floats(6, 6), 0, 1, 4, cuts=(1,)),
    case(aten.slice.Tensor, floats(6, 6), 0, 0, sys.maxsize, cuts=(0, 1)),
    case(aten.slice.Tensor, floats(6, 6), 0, 0, sys.maxsize, 2, cuts=(1,)),
    case(aten.slice.Tensor, floats(6, 6), cuts=(0, 1)),
    case(aten.slice.Tensor, floats(6, 4), end=3, cuts=(1,)),
    case(aten.slice.Tensor, floats(2, 6, 4), -1, 0, 9, 2, cuts=(0, 1)),
    case(aten.split.Tensor, floats(6, 6), 2, 1, cuts=(0,)),
    case(aten.split.Tensor, floats(6, 4), 2, cuts=(1,)),
    case(aten.split_with_sizes.default, floats(6, 7), [3, 4], -1, cuts=(0,)),
    case(aten.split_with_sizes.default, floats(6, 4), [1, 5], cuts=(1,)),
    case(aten.unbind.int, floats(6, 3), 1, cuts=(0,)),
    case(aten.unbind.int, floats(3, 6, 4), cuts=(0, 1)),
    case(aten.unbind.int, floats(2, 3, 6), -2, cuts=(0, 1)),
    case(aten.cat.default, [floats(6, 2), floats(6, 4)], 1, cuts=(0,)),
    case(aten.cat.default, [floats(6, 6), ints(6, 6)], cuts=(1,)),
    case(aten.cat.default, [floats(2, 6, 4), floats(2, 6, 1)], -1, cuts=(0, 1)),
    case(aten.cat.default, [floats(6, 4), floats(0)], 1, cuts=()),  # the legacy empty tensor
    case(aten.stack.default, [floats(6, 6), floats(6, 6)], 1, cuts=(0, 2)),
    case(aten.stack.default, [floats(6, 4), floats(6, 4)], cuts=(1, 2)),
    case(aten.stack.default, [floats(6, 4), floats(6, 4)], -1, cuts=(0, 1)),
    case(aten.constant_pad_nd.default, floats(6, 6), [1, 2], 0.5, cuts=(0,)),
    case(aten.constant_pad_nd.default, floats(6, 6), [0, 0, 1, 0], cuts=(1,)),
    case(aten.constant_pad_nd.default, floats(6, 6), [1, 1, 0, 0], cuts=(0,)),
    case(aten.constant_pad_nd.default, floats(6, 6), [0, 0, 1, -1], cuts=(1,)),  # as many rows as before, moved by one
    case(aten.constant_pad_nd.default, floats(2, 6, 4), [-1, 0], cuts=(0, 1)),
    case(aten.repeat.default, floats(6, 6), [1, 2], cuts=(0,)),
    case(aten.repeat.default, floats(6, 4), [2, 1], cuts=(1,)),
    case(aten.repeat.default, floats(6, 4), [2, 1, 1], cuts=(1, 2)),
    case(aten.repeat.default, floats(4), [6, 1], cuts=(1,)),
]  # fmt: skip

INDEX = [
    case(aten.gather.default, floats(6, 6), 1, ints(6, 3, below=6), cuts=(0,)),
    case(aten.gather.default, floats(6, 6), -2, ints(3, 6, below=6), cuts=(1,)),
    case(aten.gather.default, floats(2, 6, 4), 1, ints(2, 3, 4, below=6), cuts=(0, 2)),
    case(aten.gather.default, floats(6, 6), 1, ints(3, 6, below=6), cuts=()),  # rows 0:3 of six
    *(row for op, after, kwargs in (
        (aten.scatter.src, [floats(6, 6)], {}), (aten.scatter.value, [0.5], {}),
        (aten.scatter.reduce, [floats(6, 6)], {"reduce": "add"}),
        (aten.scatter.value_reduce, [2.0], {"reduce": "multiply"}), (aten.scatter_add.default, [floats(6, 6)], {}),
        (aten.scatter_reduce.two, [floats(6, 6), "amax"], {}),
        (aten.scatter_reduce.two, [floats(6, 6), "mean"], {"include_self": False}))
      for row in (case(op, floats(6, 6), 1, orders(6, 6), *after, **kwargs, cuts=(0,)),
                  case(op, floats(6, 6), -1, orders(6, 3), *after, **kwargs, cuts=(0,)),
                  case(op, floats(6, 6), 0, ints(1, 6), *after, **kwargs, cuts=(1,)),
                  case(op, floats(6, 6), 1, orders(3, 6), *after, **kwargs, cuts=()))),
    case(aten.scatter.src, floats(2, 6, 4), -1, orders(2, 6, 4), floats(2, 6, 4), cuts=(0, 1)),
    case(aten.scatter.src, floats(6, 6), 0, ints(0), floats(0), cuts=()),  # an empty index may have any shape
    case(aten.slice_scatter.default, floats(6, 6), floats(6, 2), 1, 0, 2, cuts=(0,)),
    case(aten.slice_scatter.default, floats(6, 6), floats(2, 6), end=2, cuts=(1,)),
    case(aten.slice_scatter.default, floats(6, 6), floats(6, 6), 0, 0, sys.maxsize, cuts=(0, 1)),
    case(aten.slice_scatter.default, floats(2, 6, 4), floats(2, 6, 2), -1, 0, 4, 2, cuts=(0, 1)),
    case(aten.select_scatter.default, floats(6, 6), floats(6), 1, -1, cuts=(0,)),
    case(aten.select_scatter.default, floats(6, 6), floats(6), 0, 2, cuts=(1,)),
    case(aten.select_scatter.default, floats(2, 6, 4), floats(2, 4), 1, 0, cuts=(0, 2)),
    case(aten.select_scatter.default, floats(2, 6, 4), floats(2, 6), -1, 0, cuts=(0, 1)),
    case(aten.index_select.default, floats(6, 6), 0, ints(6), cuts=(0, 1)),
    case(aten.index_select.default, floats(6, 4), -1, ints(5), cuts=(0, 1)),
    case(aten.index_select.default, floats(6, 4), 0, ints(), cuts=(1,)),
    case(aten.embedding.default, floats(6, 6), ints(6), cuts=(0, 1)),
    case(aten.embedding.default, floats(5, 4), ints(2, 6), 0, cuts=(0, 1, 2)),
    case(aten.index.Tensor, floats(6, 6), [None, ints(6)], cuts=(0, 1)),
    case(aten.index.Tensor, floats(6, 6), [ints(6)], cuts=(0, 1)),
    case(aten.index.Tensor, floats(6, 4), [ints(2, 6)], cuts=(0, 1, 2)),
    case(aten.index.Tensor, floats(6, 4), [None, ints(2, 6)], cuts=(0, 1, 2)),
    case(aten.index.Tensor, floats(2, 6, 4), [None, ints(5)], cuts=(0, 1, 2)),
    case(aten.index.Tensor, floats(2, 6, 4), [None, None, ints(5)], cuts=(0, 1, 2)),
    case(aten.index.Tensor, floats(6, 4, 3), [None, ints(), None], cuts=(0, 1)),
    case(aten.index.Tensor, floats(6, 6), [ints(6), ints(6)], cuts=()),
    case(aten.index.Tensor, floats(6, 6), [None, bools(6)], cuts=()),
    case(aten.index.Tensor, floats(6, 6), [bools(6, 6)], cuts=()),
    case(aten.index_put.default, floats(6, 6), [None, ints(3)], floats(), cuts=(0,)),
    case(aten.index_put.default, floats(6, 6), [None, orders(6)], floats(6, 6), cuts=(0,)),
    case(aten.index_put.default, floats(6, 6), [None, orders(6)], floats(6, 1), cuts=(0,)),
    case(aten.index_put.default, floats(6, 6), [None, orders(6)], floats(6), cuts=(0,)),
    case(aten.index_put.default, floats(6, 6), [ints(2)], floats(1, 6), True, cuts=(1,)),
    case(aten.index_put.default, floats(6, 6), [ints(2, 2)], floats(2, 2, 6), True, cuts=(1,)),
    case(aten.index_put.default, floats(2, 6, 4), [None, ints(3)], floats(3, 1), accumulate=True, cuts=(0, 2)),
    case(aten.index_put.default, floats(2, 6, 4), [None, ints(2, 2)], floats(2, 2, 2, 4), True, cuts=(0, 2)),
    case(aten.index_put.default, floats(2, 6, 4), [None, None, ints(3)], floats(2, 6, 3), True, cuts=(0, 1)),
    case(aten.index_put.default, floats(6, 6), [ints(6), ints(6)], floats(), cuts=()),
    case(aten.index_put.default, floats(6, 6), [bools(6, 6)], floats(), cuts=(0, 1)),
    case(aten.index_put.default, floats(6, 6), [bools(6)], floats(1, 1), cuts=(0, 1)),
    case(aten.index_put.default, floats(6, 6), [None, bools(6)], floats(), cuts=(0, 1)),
    case(aten.index_put.default, floats(6, 6, 4), [None, bools(6, 4)], floats(1), True, cuts=(0, 1, 2)),
    case(aten.index_put.default, floats(6, 6), [bools(6)], floats(6), cuts=()),
    case(aten.index_put.default, floats(6, 6), [bools(6, 6), ints(6)], floats(), cuts=()),
]  # fmt: skip

MATMUL = [
    case(aten.mm.default, ints(6, 6), ints(6, 6), cuts=(0, 1)),
    *(case(aten.addmm.default, ints(*bias), ints(6, 6), ints(6, 6), cuts=(0, 1), beta=2)
      for bias in ((6,), (6, 6), (6, 1), (1, 6))),
    case(aten.bmm.default, ints(2, 6, 3), ints(2, 3, 6), cuts=(0, 1, 2)),
    *(case(aten.baddbmm.default, ints(*bias), ints(2, 6, 3), ints(2, 3, 6), cuts=(0, 1, 2))
      for bias in ((2, 6, 6), (6,), (6, 1), (2, 1, 1))),
    case(aten.linear.default, ints(6, 6), ints(6, 6), ints(6), cuts=(0, 1)),
    case(aten.linear.default, ints(2, 6, 3), ints(4, 3), cuts=(0, 1, 2)),
]  # fmt: skip

# Where there are arguments that leave no choice, these are given: then values are compared, too.
RANDOM = [
    *(case(aten.multinomial.default, certain(6, 6), *rest, cuts=(0,)) for rest in ([1], [1, True], [3, True])),
    case(aten.multinomial.default, probs(6, 6), 3, cuts=(0,)),
    case(aten.multinomial.default, probs(6), 6, cuts=()),
    case(aten._sample_dirichlet.default, probs(2, 6, 4), cuts=(0, 1)),
    *(case(op, floats(6, 6), *rest, cuts=(0, 1)) for op, rest in (
        (aten.exponential.default, [float("inf")]), (aten.uniform.default, [2.0, 2.0]), (aten.cauchy.default, []),
        (aten.log_normal.default, []), (aten.geometric.default, [1 - 1e-9]),
        (aten.normal_functional.default, [2.0, 0.0]),
        (aten.random.default, []), (aten.random.to, [1]), (getattr(aten.random, "from"), [3, 4]),
        (aten.rand_like.default, []), (aten.randn_like.default, []), (aten.randint_like.default, [1]),
        (aten.randint_like.low_dtype, [3, 4]), (aten.bernoulli.p, [1.0]), (aten.native_dropout.default, [1.0, True]),
        (aten.native_dropout.default, [0.5, False]), (aten.dropout.default, [0.0, True]),
        (aten.rrelu.default, [0.5, 0.5, True]))),
    *(case(op, floats(6, 6), *rest, generator=None, cuts=(0, 1)) for op, rest in (
        (aten.rand_like.generator, []), (aten.randn_like.generator, []), (aten.randint_like.generator, [1]),
        (aten.randint_like.low_generator_dtype, [3, 4]))),
    case(aten.bernoulli.default, certain(6, 6), cuts=(0, 1)),
    case(aten.bernoulli.Tensor, floats(6, 6), certain(6, 6), cuts=(0, 1)),
    case(aten.bernoulli.Tensor, floats(6, 6), certain(6), cuts=(0, 1)),
    case(aten.poisson.default, certain(6, 6), cuts=(0, 1)),
    case(aten.binomial.default, certain(6, 6), certain(6, 6), cuts=(0, 1)),
    case(aten._standard_gamma.default, probs(6, 6), cuts=(0, 1)),
    case(aten.normal.Tensor_float, floats(6, 6), 0.0, cuts=(0, 1)),
    case(aten.normal.float_Tensor, 2.0, certain(6, 6), cuts=(0, 1)),
    *(case(aten.normal.Tensor_Tensor, floats(*mean), Arg("0", lambda: torch.zeros(1)), cuts=(0, 1))
      for mean in ((6, 6), (2, 6), (6, 2))),
    case(aten.randint_like.Tensor, floats(6, 6), Arg("1", lambda: torch.tensor(1)), cuts=(0, 1)),
    *(case(op, *bounds, [2, 6, 4], **kwargs, cuts=(0, 1, 2)) for op, bounds, kwargs in (
        (aten.rand.default, [], {}), (aten.rand.generator, [], {"generator": None}),
        (aten.randn.default, [], {}), (aten.randn.generator, [], {"generator": None}),
        (aten.randint.default, [1], {}), (aten.randint.generator, [1], {"generator": None}),
        (aten.randint.low, [3, 4], {}), (aten.randint.low_generator, [3, 4], {"generator": None}),
        (aten.normal.float_float, [2.0, 0.0], {}))),
    case(prims.normal.default, [6, 6], cuts=(0, 1), mean=2.0, std=0.0, dtype=torch.float32, device=torch.device("cpu"),
         requires_grad=False),
    # Only the outermost dim holds numbers that lie side by side.
    *(case(prims.inductor_random.default, size, ints(), "rand", cuts=cuts)
      for size, cuts in (([6, 6], (0,)), ([1, 6, 4], (0, 1)), ([2, 6, 4], (0,)))),
    case(prims.inductor_randint.default, 3, 4, [6, 6], ints(), cuts=(0,)),
]  # fmt: skip

CASES = [*CREATE, *UNTAGGED_POINTWISE, *POINTWISE, *REDUCE, *ROWWISE, *SHAPE, *INDEX, *MATMUL, *RANDOM]
