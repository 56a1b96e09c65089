"""Ops that make a tensor from sizes and constants alone, so that any chunk of it can be made on the spot.

``empty`` is one of them: nothing may depend on what it holds, and ``empty_like(s).scatter(1, indices, s)``, the usual
way back from sorted to vocabulary order, takes 20 B per logit at its peak where it stays outside a region and 5.25
where it is inside (measured, 16 chunks).
"""

from __future__ import annotations

import torch

from sortpass.rules.call import Call
from sortpass.rules.exactness import selects
from sortpass.rules.registry import ANY, Blocked, Flow, register_rule

aten = torch.ops.aten


@register_rule(
    aten.full.default,
    aten.zeros.default,
    aten.ones.default,
    aten.empty.memory_format,
    aten.empty_permuted.default,
    exactness=selects,
)
def full(call: Call, row_dim: int) -> Flow | Blocked:
    return Flow({}, resized={"size": row_dim})


@register_rule(
    aten.new_full.default,
    aten.new_zeros.default,
    aten.new_ones.default,
    aten.new_empty.default,
    exactness=selects,
)
def new_full(call: Call, row_dim: int) -> Flow | Blocked:
    return Flow({"self": ANY}, resized={"size": row_dim})


@register_rule(
    aten.full_like.default,
    aten.zeros_like.default,
    aten.ones_like.default,
    aten.empty_like.default,
    exactness=selects,
)
def full_like(call: Call, row_dim: int) -> Flow | Blocked:
    return Flow({"self": row_dim})
