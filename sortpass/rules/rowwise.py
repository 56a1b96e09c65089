"""Ops that work along one dim and keep every other: sorts, scans, softmax, flips.

Cut along any dim but the one they work on, each chunk sees its rows whole.
"""

from __future__ import annotations

from typing import Any

import torch

from sortpass.rules.call import Call, value_of
from sortpass.rules.exactness import Exactness, along_last
from sortpass.rules.registry import Blocked, Flow, register_rule

aten = torch.ops.aten


def along_dim(call: Call, row_dim: int) -> Flow | Blocked:
    """All tensor arguments have the output's number of dims; the op runs along argument ``dim``."""
    if call.dim("dim", of=_first_tensor(call)) == row_dim:
        return Blocked(f"runs along the row dim ({row_dim}), so rows are not independent")
    return Flow({name: row_dim for name, arg in call.args.items() if isinstance(value_of(arg), torch.Tensor)})


def _first_tensor(call: Call) -> str:
    return next(name for name, arg in call.args.items() if isinstance(value_of(arg), torch.Tensor))


register_rule(
    aten.sort.default,
    aten.sort.stable,
    exactness=Exactness.COPIES,
)(along_dim)

register_rule(
    aten.topk.default,
    aten.cummax.default,
    aten.cummin.default,
    exactness=Exactness.PICKS,
)(along_dim)

register_rule(
    aten._softmax.default,
    aten._log_softmax.default,
    aten.softmax.int,
    aten.log_softmax.int,
    aten._safe_softmax.default,
    aten._softmax_backward_data.default,
    aten._log_softmax_backward_data.default,
    aten.cumsum.default,
    aten.cumprod.default,
    aten.logcumsumexp.default,
    exactness=along_last,
)(along_dim)


@register_rule(aten.flip.default, exactness=Exactness.COPIES)
def flip(call: Call, row_dim: int) -> Flow | Blocked:
    if row_dim in (call.dims("dims") or ()):
        return Blocked(f"reverses the row dim ({row_dim})")
    return Flow({"self": row_dim})


@register_rule(aten.roll.default, exactness=Exactness.COPIES)
def roll(call: Call, row_dim: int) -> Flow | Blocked:
    dims = call.dims("dims")
    if dims is None or row_dim in dims:
        return Blocked(f"shifts along the row dim ({row_dim})")
    return Flow({"self": row_dim})


@register_rule(aten.searchsorted.Tensor, exactness=Exactness.COPIES)
def searchsorted(call: Call, row_dim: int) -> Flow | Blocked:
    """``searchsorted(sorted_sequence, self)``: one sequence for all, or one per row of ``self``."""
    last = len(call.out_shape) - 1
    per_row: Any = None if call.ndim("sorted_sequence") == 1 else row_dim
    if per_row is not None and row_dim == last:
        return Blocked("looks values up in the sequence of their own row")
    flow: dict[str, Any] = {"sorted_sequence": per_row, "self": row_dim}
    if call.is_tensor("sorter"):
        flow["sorter"] = per_row
    return Flow(flow)
