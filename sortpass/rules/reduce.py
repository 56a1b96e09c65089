"""Reductions: the reduced dims disappear (or stay with size 1), every other dim is kept.

Worked example: ``sum(x[B, T, V], dim=[2])`` gives ``[B, T]``; cut along output dim 1, ``x`` is cut along 1.
``amax(x[N, V], dim=[0], keepdim=True)`` gives ``[1, V]``; cut along output dim 1, ``x`` is cut along 1.
"""

from __future__ import annotations

import torch

from sortpass.rules.call import Call
from sortpass.rules.exactness import Exactness, along_last
from sortpass.rules.registry import Blocked, Flow, register_rule

aten = torch.ops.aten


def input_dim(ndim: int, reduced: tuple[int, ...], keepdim: bool, row_dim: int) -> int | None:
    """The input dim that output dim ``row_dim`` comes from; None where it is a reduced dim kept with size 1.

    >>> input_dim(3, (1,), False, 1)
    2
    """
    if keepdim:
        return None if row_dim in reduced else row_dim
    kept = [dim for dim in range(ndim) if dim not in reduced]
    return kept[row_dim]


def reduction(call: Call, row_dim: int) -> Flow | Blocked:
    reduced = call.dims("dim")
    if reduced is None:
        return Blocked("reduces over every dim, rows included")
    source = input_dim(call.ndim("self"), reduced, bool(call.args.get("keepdim", False)), row_dim)
    if source is None:
        return Blocked(f"reduces over dim {row_dim}")
    return Flow({"self": source})


register_rule(
    aten.amax.default,
    aten.amin.default,
    aten.aminmax.default,
    aten.argmax.default,
    aten.argmin.default,
    aten.any.dim,
    aten.any.dims,
    aten.all.dim,
    aten.all.dims,
    aten.max.dim,
    aten.min.dim,
    aten.count_nonzero.dim_IntList,
    exactness=Exactness.COPIES,
)(reduction)

register_rule(
    aten.kthvalue.default,
    aten.median.dim,
    aten.nanmedian.dim,
    aten.mode.default,
    exactness=Exactness.PICKS,
)(reduction)

register_rule(
    aten.sum.dim_IntList,
    aten.nansum.default,
    aten.mean.dim,
    aten.prod.dim_int,
    aten.logsumexp.default,
    aten.var.correction,
    aten.var_mean.correction,
    aten.std.correction,
    aten.linalg_vector_norm.default,
    aten.norm.ScalarOpt_dim,
    exactness=along_last,
)(reduction)
