"""Ops that make a tensor from sizes and constants alone, so that any chunk of it can be made on the spot."""

from __future__ import annotations

import torch

from sortpass.rules.registry import ANY, Blocked, Call, Flow, register_rule

aten = torch.ops.aten


@register_rule(aten.full.default, aten.zeros.default, aten.ones.default)
def full(call: Call, row_dim: int) -> Flow | Blocked:
    return Flow({}, resized={"size": row_dim})


@register_rule(aten.new_full.default, aten.new_zeros.default, aten.new_ones.default)
def new_full(call: Call, row_dim: int) -> Flow | Blocked:
    return Flow({"self": ANY}, resized={"size": row_dim})


@register_rule(aten.full_like.default, aten.zeros_like.default, aten.ones_like.default)
def full_like(call: Call, row_dim: int) -> Flow | Blocked:
    return Flow({"self": row_dim})
