"""Which values Inductor never stores.

Inductor computes an elementwise value where it is read, so only some nodes of a graph get memory:

- what leaves the graph, or is read by a kernel that is not Inductor's own (sort, cumsum on CPU, topk, multinomial);
- the results of reductions, scans and scatters;
- an elementwise value with several readers, where computing it again would cost too much: it holds an ``exp`` or
  ``sigmoid`` (CPU) or reads more than four buffers. (``StorageBox.should_realize_on_reuse`` and
  ``realize_reads_threshold`` in ``torch._inductor``.)

A kernel writes over an input of the same size that nobody reads later, if Inductor made that too and no scatter wrote
into it. What is left out: the order Inductor's scheduler may choose, and buffers that live inside one kernel only.
``tests/predictions.py`` measures how far off that is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import torch
import torch.fx as fx

from sortpass.devices import device_type
from sortpass.graph_order import is_item
from sortpass.liveness import Event, ScratchOf, SizeOf, Storage, Storages, shared_argument
from sortpass.random_rows import random_rows
from sortpass.rules import is_pure
from sortpass.sizes import Peak
from sortpass.torch_compat import fake_values

aten, prims = torch.ops.aten, torch.ops.prims

MANY_READS = 4
HEAVY = (aten.exp.default, aten.sigmoid.default)

_INLINED = (
    *(aten.full.default, aten.scalar_tensor.default, aten.where.self, aten.gather.default, aten.slice_scatter.default),
    *(aten.select_scatter.default, aten.copy.default, aten._to_copy.default, prims.convert_element_type.default),
    *(aten.index_select.default, aten.index.Tensor, aten.embedding.default, aten.clone.default, prims.iota.default),
    *(aten.constant_pad_nd.default, aten.flip.default, aten.repeat.default, aten.lift_fresh_copy.default),
    *(aten.masked_fill.Scalar, aten.masked_fill.Tensor, aten.fill.Scalar, aten.full_like.default),
)

_SCATTERS = (aten.scatter.src, aten.scatter.value, aten.scatter_add.default, aten.index_put.default)
"""Written into once they are there, so nothing is written over them later, and they over nothing."""

_OWN_KERNEL = (
    *(aten.amax.default, aten.amin.default, aten.sum.dim_IntList, aten.sum.default, aten.prod.dim_int),
    *(aten.any.dim, aten.any.dims, aten.argmax.default, aten.argmin.default, aten.max.dim, aten.min.dim),
    *(aten.var_mean.correction, aten.mean.dim, aten.cat.default, aten.copy_.default, *_SCATTERS),
    prims.inductor_random.default,
    random_rows,
)
"""Stored, but their arguments are computed as they are read."""

_OWN_ON_GPU = (aten.cumsum.default, aten.cumprod.default)


def fused_events(
    steps: Iterable[fx.Node | Event],
    storages: Storages,
    size_of: SizeOf,
    scratch_of: ScratchOf,
    reads_memory: Callable[[fx.Node], bool],
    *,
    merges: bool,
) -> list[Event]:
    """One event per kernel; an inlined value is read through to what it is made of.

    Args:
        steps: nodes, and events that are known already, in the order they run.
        storages: whose memory their values are.
        size_of: bytes of their outputs.
        scratch_of: what they take while they run.
        reads_memory: whether a reader needs its arguments stored (:func:`reads_memory`).
        merges: neighbouring kernels run as one that keeps every stored value (:func:`runs_as_one`).
    """
    inlined: dict[Storage, _Inlined] = {}
    events: list[Event] = []
    for node in steps:
        if isinstance(node, Event):
            events.append(dataclasses.replace(node, reads=_all_reads(node.reads, inlined)))
            continue
        if node.op != "call_function" or is_item(node) or _is_view(node):
            continue
        read = storages.read_by(node)
        reads = _all_reads(read, inlined)
        has_heavy = node.target in HEAVY or any(inlined[storage].has_heavy for storage in read if storage in inlined)
        made = storages.made_by(node)
        if _is_inlined(node) and not _needs_storing(node, len(reads), has_heavy, reads_memory):
            inlined[made[0]] = _Inlined(reads, has_heavy)
            continue
        sizes = size_of(node)
        is_own = _is_inlined(node) or node.target in _OWN_KERNEL
        makes = {storage: sizes[storage[1]] for storage in made}
        scratch = Peak() if is_own else scratch_of(node)
        event = Event(node, makes, reads, scratch, is_own and node.target not in _SCATTERS)
        if merges and is_own and (before := _kernel_to_join(events)) is not None:
            events.remove(before)
            event = dataclasses.replace(
                event,
                makes={**before.makes, **makes},
                reads=before.reads | reads,
                earlier=before.earlier | {before.node},
            )
        events.append(event)
    return events


def _kernel_to_join(events: Sequence[Event]) -> Event | None:
    """Inductor's own latest kernel, if what comes after it needs none of its results and so can run before it.

    One that keeps several large values does not wait for later loops, which write over them (measured on HF's eta).
    """
    later_reads: set[Storage] = set()
    for event in reversed(events):
        if event.is_own:
            largest = max(event.makes.values(), key=lambda size: Peak((size,)).at({}), default=None)
            is_simple = event is events[-1] or list(event.makes.values()).count(largest) == 1
            return event if is_simple and not later_reads.intersection(event.makes) else None
        later_reads |= event.reads
    return None


def runs_as_one(rows: int, row_length: int, device: str) -> bool:
    """Whether neighbouring kernels share their loops' outermost level only in name.

    Inductor's C++ fuses the loops over rows of a softmax, and keeps what is read inside one row in a local buffer or
    writes over it, unless a row is more than 300 times as long as there are rows. Then loop follows loop in one
    function, with all its inputs and outputs allocated. (``torch._inductor.codegen.cpp``:
    ``OuterLoopFusedSchedulerNode.check_outer_fusion_loop_level_attr``.)
    """
    return device == "cpu" and row_length > 300 * rows


@dataclasses.dataclass(frozen=True)
class _Inlined:
    reads: frozenset[Storage]
    has_heavy: bool


def _all_reads(storages: Iterable[Storage], inlined: Mapping[Storage, _Inlined]) -> frozenset[Storage]:
    found: set[Storage] = set()
    for storage in storages:
        found |= inlined[storage].reads if storage in inlined else {storage}
    return frozenset(found)


def _is_view(node: fx.Node) -> bool:
    return shared_argument(node) is not None and is_pure(node.target)


def _is_inlined(node: fx.Node) -> bool:
    op = node.target
    return is_pure(op) and (op in _INLINED or torch.Tag.pointwise in getattr(op, "tags", ()))


def _needs_storing(node: fx.Node, num_reads: int, has_heavy: bool, reads_memory: Callable[[fx.Node], bool]) -> bool:
    if any(map(reads_memory, _readers(node))):
        return True
    on_cpu = device_type(node.meta["val"]) == "cpu"
    return len(node.users) > 1 and (num_reads > MANY_READS or (has_heavy and on_cpu))


def reads_memory(user: fx.Node) -> bool:
    """Whether a reader is a kernel of somebody else's, or leaves the graph."""
    if user.op != "call_function":
        return True
    on_gpu = user.target in _OWN_ON_GPU and device_type(next(fake_values(user))) != "cpu"
    return not (_is_inlined(user) or user.target in _OWN_KERNEL or on_gpu)


def _readers(node: fx.Node) -> Iterator[fx.Node]:
    """The users, looking through views."""
    for user in node.users:
        if user.op == "call_function" and _is_view(user) and shared_argument(user) is node:
            yield from _readers(user)
        else:
            yield user
