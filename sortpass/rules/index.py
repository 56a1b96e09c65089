"""Reads and writes by index: gathers, scatters, slices written into a larger tensor."""

from __future__ import annotations

from typing import Any

import torch

from sortpass.rules.call import Call, same_size, value_of
from sortpass.rules.exactness import Exactness, selects
from sortpass.rules.registry import NOT_AS_FAKED, Blocked, Flow, aligned_dim, register_rule
from sortpass.torch_compat import is_contiguous

aten = torch.ops.aten


def along_indexed_dim(call: Call, row_dim: int) -> Flow | Blocked:
    """``gather`` and ``scatter`` move elements along ``dim`` and stay in their row along every other dim."""
    if call.dim("dim") == row_dim:
        return Blocked(f"indexes rows (dim {row_dim})")
    tensors = [name for name in ("self", "index", "src") if call.is_tensor(name)]
    if any(call.ndim(name) != call.ndim("self") for name in tensors):
        return Blocked("takes an empty index of another number of dims")
    return Flow(dict.fromkeys(tensors, row_dim))


register_rule(aten.gather.default, aten.scatter.src, aten.scatter.value, exactness=selects)(along_indexed_dim)

# What lands on one element is added up in an order that is the kernel's to choose.
register_rule(
    aten.scatter.reduce,
    aten.scatter.value_reduce,
    aten.scatter_add.default,
    aten.scatter_reduce.two,
    exactness=Exactness.CLOSE,
)(along_indexed_dim)


@register_rule(aten.slice_scatter.default, exactness=Exactness.COPIES)
def slice_scatter(call: Call, row_dim: int) -> Flow | Blocked:
    if call.dim("dim") == row_dim and not call.takes_all():
        return Blocked(f"writes rows by position (dim {row_dim})")
    return Flow({"self": row_dim, "src": row_dim})


@register_rule(aten.select_scatter.default, exactness=Exactness.COPIES)
def select_scatter(call: Call, row_dim: int) -> Flow | Blocked:
    dim = call.dim("dim")
    if dim == row_dim:
        return Blocked(f"writes one row (dim {row_dim})")
    return Flow({"self": row_dim, "src": row_dim - (dim < row_dim)})


@register_rule(aten.index_select.default, exactness=Exactness.COPIES)
def index_select(call: Call, row_dim: int) -> Flow | Blocked:
    if call.dim("dim") == row_dim:
        return Flow({"self": None, "index": 0}) if call.ndim("index") else Blocked(f"picks one row (dim {row_dim})")
    return Flow({"self": row_dim, "index": None})


@register_rule(aten.embedding.default, exactness=Exactness.COPIES)
def embedding(call: Call, row_dim: int) -> Flow | Blocked:
    if row_dim >= call.ndim("indices"):
        return Flow({"weight": 1, "indices": None})
    return Flow({"weight": None, "indices": row_dim})


@register_rule(aten.index.Tensor, exactness=Exactness.COPIES)
def index(call: Call, row_dim: int) -> Flow | Blocked:
    """``x[:, idx]``: one integer tensor indexes one dim, whose place its own dims take.

    With ``x[N, V]`` and ``idx[K]``, ``x[:, idx]`` is ``[N, K]``: cut along 0, ``x`` is cut along 0 and ``idx`` whole;
    ``x[idx]`` is ``[K, V]``: cut along 0, ``idx`` is cut and ``x`` is whole.
    """
    place = _indexed_dim(call)
    if isinstance(place, Blocked):
        return place
    if not is_contiguous(value_of(call["self"])):
        return Blocked(NOT_AS_FAKED)
    flow: list[Any] = [None] * len(call["indices"])
    idx_ndim = value_of(call["indices"][place]).ndim
    if place <= row_dim < place + idx_ndim:
        flow[place] = row_dim - place
        return Flow({"self": None, "indices": tuple(flow)})
    source = row_dim if row_dim < place else row_dim - idx_ndim + 1
    return Flow({"self": source, "indices": tuple(flow)})


def _put_exactness(call: Call, row_dim: int) -> Exactness:
    return Exactness.CLOSE if call["accumulate"] else Exactness.COPIES


@register_rule(aten.index_put.default, exactness=_put_exactness)
def index_put(call: Call, row_dim: int) -> Flow | Blocked:
    """``x[:, idx] = values``: with ``x[N, V]`` and ``idx[K]``, ``values`` broadcasts to ``[N, K]``.

    ``x[mask] = 0.0``: ``mask[N, V]`` is cut as ``x`` is, and ``mask[N]`` is cut along 0 where ``x`` is.
    """
    if (mask_place := _mask_place_maybe(call)) is not None:
        return _put_by_mask(call, row_dim, mask_place)
    place = _indexed_dim(call)
    if isinstance(place, Blocked):
        return place
    if place == row_dim:
        return Blocked(f"writes rows by index (dim {row_dim})")
    shape, idx_shape = call.shape("self"), tuple(value_of(call["indices"][place]).shape)
    written = (*shape[:place], *idx_shape, *shape[place + 1 :])
    written_dim = row_dim if row_dim < place else row_dim + len(idx_shape) - 1
    values_dim = aligned_dim(call.shape("values"), written, written_dim)
    return Flow({"self": row_dim, "indices": (None,) * len(call["indices"]), "values": values_dim})


def _put_by_mask(call: Call, row_dim: int, place: int) -> Flow | Blocked:
    if not all(same_size(size, 1) for size in call.shape("values")):
        return Blocked("writes values where a mask is set, and which value goes where depends on the rows before")
    flow: list[Any] = [None] * len(call["indices"])
    if place <= row_dim < place + value_of(call["indices"][place]).ndim:
        flow[place] = row_dim - place
    return Flow({"self": row_dim, "indices": tuple(flow), "values": None})


def _mask_place_maybe(call: Call) -> int | None:
    """The first dim of ``self`` that a mask stands for, where a mask is all that ``indices`` holds."""
    places = [place for place, idx in enumerate(call["indices"]) if idx is not None]
    is_mask = len(places) == 1 and value_of(call["indices"][places[0]]).dtype is torch.bool
    return places[0] if is_mask else None


def _indexed_dim(call: Call) -> int | Blocked:
    """The one dim of ``self`` that ``indices`` indexes, by an integer tensor."""
    places = [place for place, idx in enumerate(call["indices"]) if idx is not None]
    if len(places) != 1:
        return Blocked("indexes several dims at once")
    if value_of(call["indices"][places[0]]).dtype in (torch.bool, torch.uint8):
        return Blocked("selects by a mask")
    return places[0]
