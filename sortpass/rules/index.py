"""Reads and writes by index: gathers, scatters, slices written into a larger tensor."""

from __future__ import annotations

from typing import Any

import torch

from sortpass.rules.registry import Blocked, Call, Flow, register_rule, value_of

aten = torch.ops.aten


@register_rule(
    aten.gather.default,
    aten.scatter.src,
    aten.scatter.value,
    aten.scatter.reduce,
    aten.scatter.value_reduce,
    aten.scatter_add.default,
    aten.scatter_reduce.two,
)
def along_indexed_dim(call: Call, row_dim: int) -> Flow | Blocked:
    """``gather`` and ``scatter`` move elements along ``dim`` and stay in their row along every other dim."""
    if call.dim("dim") == row_dim:
        return Blocked(f"indexes rows (dim {row_dim})")
    return Flow({name: row_dim for name in ("self", "index", "src") if call.is_tensor(name)})


@register_rule(aten.slice_scatter.default)
def slice_scatter(call: Call, row_dim: int) -> Flow | Blocked:
    if call.dim("dim") == row_dim:
        return Blocked(f"writes rows by position (dim {row_dim})")
    return Flow({"self": row_dim, "src": row_dim})


@register_rule(aten.select_scatter.default)
def select_scatter(call: Call, row_dim: int) -> Flow | Blocked:
    dim = call.dim("dim")
    if dim == row_dim:
        return Blocked(f"writes one row (dim {row_dim})")
    return Flow({"self": row_dim, "src": row_dim - (dim < row_dim)})


@register_rule(aten.index_select.default)
def index_select(call: Call, row_dim: int) -> Flow | Blocked:
    if call.dim("dim") == row_dim:
        return Flow({"self": None, "index": 0})
    return Flow({"self": row_dim, "index": None})


@register_rule(aten.embedding.default)
def embedding(call: Call, row_dim: int) -> Flow | Blocked:
    if row_dim >= call.ndim("indices"):
        return Flow({"weight": 1, "indices": None})
    return Flow({"weight": None, "indices": row_dim})


@register_rule(aten.index.Tensor)
def index(call: Call, row_dim: int) -> Flow | Blocked:
    """``x[:, idx]``: one integer tensor indexes one dim, whose place its own dims take.

    With ``x[N, V]`` and ``idx[K]``, ``x[:, idx]`` is ``[N, K]``: cut along 0, ``x`` is cut along 0 and ``idx`` whole;
    ``x[idx]`` is ``[K, V]``: cut along 0, ``idx`` is cut and ``x`` is whole.
    """
    indices = list(call["indices"])
    places = [place for place, idx in enumerate(indices) if idx is not None]
    if len(places) != 1:
        return Blocked("indexes several dims at once")
    place = places[0]
    idx = value_of(indices[place])
    if idx.dtype in (torch.bool, torch.uint8):
        return Blocked("selects by a mask")
    flow: list[Any] = [None] * len(indices)
    if place <= row_dim < place + idx.ndim:
        flow[place] = row_dim - place
        return Flow({"self": None, "indices": tuple(flow)})
    source = row_dim if row_dim < place else row_dim - idx.ndim + 1
    return Flow({"self": source, "indices": tuple(flow)})
