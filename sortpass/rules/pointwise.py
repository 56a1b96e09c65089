"""Ops that act element by element but do not carry ``Tag.pointwise``."""

from __future__ import annotations

import torch

from sortpass.rules.registry import Blocked, Call, Flow, broadcast_rule, register_rule

aten = torch.ops.aten

# These are pointwise in all but the tag.
register_rule(
    aten.fill.Scalar,
    aten.fill.Tensor,
    aten.lift_fresh_copy.default,
    aten.alias.default,
    aten.detach.default,
    aten.masked_fill.Tensor,
    aten.rsub.Tensor,
    aten.where.ScalarSelf,
    aten.where.ScalarOther,
    aten.where.Scalar,
    aten.copy.default,
)(broadcast_rule)


@register_rule(aten._to_copy.default)
def to_copy(call: Call, row_dim: int) -> Flow | Blocked:
    source = call["self"].meta["val"]
    if call["device"] is not None and torch.device(call["device"]).type != source.device.type:
        return Blocked("moves data to another device")
    return Flow({"self": row_dim})


@register_rule(aten.bucketize.Tensor)
def bucketize(call: Call, row_dim: int) -> Flow | Blocked:
    return Flow({"self": row_dim, "boundaries": None})


@register_rule(aten.isin.Tensor_Tensor)
def isin(call: Call, row_dim: int) -> Flow | Blocked:
    return Flow({"elements": row_dim, "test_elements": None})
