"""Ops that act element by element: rules of those that do not carry ``Tag.pointwise``, levels of those that do."""

from __future__ import annotations

import torch

from sortpass.rules.call import Call, value_of
from sortpass.rules.exactness import Exactness, declare_exactness, picks_of_two, selects
from sortpass.rules.registry import NOT_AS_FAKED, Blocked, Flow, broadcast_rule, register_rule
from sortpass.torch_compat import is_contiguous

aten, prims = torch.ops.aten, torch.ops.prims

# These are pointwise in all but the tag.
register_rule(
    aten.alias.default,
    aten.detach.default,
    aten.lift_fresh_copy.default,
    exactness=Exactness.COPIES,
)(broadcast_rule)

register_rule(
    aten.copy.default,
    aten.fill.Scalar,
    aten.fill.Tensor,
    aten.masked_fill.Tensor,
    aten.where.Scalar,
    aten.where.ScalarOther,
    aten.where.ScalarSelf,
    exactness=selects,
)(broadcast_rule)


def scaled_sum(call: Call, row_dim: int) -> Exactness:
    """``a + alpha * b`` is one rounding or two, depending on whether the element fills a vector register."""
    return Exactness.ROUNDS if call["alpha"] == 1 else Exactness.CLOSE


register_rule(aten.rsub.Tensor, exactness=scaled_sum)(broadcast_rule)


@register_rule(aten._to_copy.default, exactness=selects)
def to_copy(call: Call, row_dim: int) -> Flow | Blocked:
    source = call["self"].meta["val"]
    if call["device"] is not None and torch.device(call["device"]).type != source.device.type:
        return Blocked("moves data to another device")
    return Flow({"self": row_dim})


@register_rule(aten.bucketize.Tensor, exactness=Exactness.COPIES)
def bucketize(call: Call, row_dim: int) -> Flow | Blocked:
    return Flow({"self": row_dim, "boundaries": None})


@register_rule(aten.isin.Tensor_Tensor, exactness=Exactness.COPIES)
def isin(call: Call, row_dim: int) -> Flow | Blocked:
    if not is_contiguous(value_of(call["elements"])):
        return Blocked(NOT_AS_FAKED)
    return Flow({"elements": row_dim, "test_elements": None})


# The levels of tagged ops; one that is not here is CLOSE. Most CPU kernels compute the elements that do not fill a
# vector register with another routine than the rest (sigmoid, pow, gelu and silu are 1 ulp apart there), and a chunk
# leaves other elements over than the whole.
declare_exactness(
    Exactness.COPIES,
    *(aten.clone, aten.positive, aten.neg, aten.ceil, aten.floor, aten.trunc, aten.round.default, aten.sign, aten.relu),
    *(aten.isnan, aten.isinf, aten.isfinite, aten.isposinf, aten.isneginf, aten.signbit),
    *(aten.eq, aten.ne, aten.lt, aten.le, aten.gt, aten.ge),
    *(aten.logical_and, aten.logical_or, aten.logical_xor, aten.logical_not),
)

declare_exactness(
    selects,
    *(aten.abs, aten.where.self, aten.masked_fill.Scalar, aten.threshold, aten.nan_to_num),
    *(
        aten.clamp.default,
        aten.clamp_min.default,
        aten.clamp_max.default,
        aten.fmax,
        aten.fmin,
        prims.convert_element_type,
    ),
)

declare_exactness(
    picks_of_two,
    *(aten.maximum, aten.minimum, aten.max.other, aten.min.other),
    *(aten.clamp.Tensor, aten.clamp_min.Tensor, aten.clamp_max.Tensor),
)

declare_exactness(
    Exactness.ROUNDS,
    *(aten.mul, aten.div.Tensor, aten.div.Scalar, aten.reciprocal, aten.square, aten.sqrt, aten.frac),
)

declare_exactness(scaled_sum, aten.add, aten.sub, aten.rsub.Scalar)

# These hand whole runs of elements to one vector routine, remainders included.
declare_exactness(
    Exactness.ROWWISE,
    *(aten.exp, aten.expm1, aten.log, aten.log2, aten.log10, aten.log1p, aten.sin, aten.cos, aten.tan, aten.tanh),
    *(aten.asin, aten.acos, aten.atan, aten.erf, aten.erfc, aten.erfinv, aten.lgamma),
    *(aten.remainder, aten.fmod, aten.lerp, aten.addcmul, aten.addcdiv),
)
