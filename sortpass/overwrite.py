"""Live-outs that a loop can write over what the region reads, window by window, instead of into a buffer of their own.

AOT autograd turns code that writes into its input into code that computes a new value and copies it back at the end::

    sorted = aten.sort(logits); ...; scatter = aten.scatter(logits, 1, index, masked)      aten.copy_(logits, scatter)

As a live-out, ``scatter`` would be a second tensor of the size of the logits. A loop that carries ``logits`` as its
buffer needs none, and no ``copy_``. The same holds where an earlier node made ``logits`` and nobody reads them later.

NOTE [Windows that write over what they read]: a window may only read rows that no window before it has written. The
region must read its input along the row dim alone, and where windows overlap by a step, the window that comes first
leaves that step to the next one (``emit/body.py``). Whoever else reads the old values stands in front of the loop.

NOTE [Order under a compiler]: a compiler that fuses computes ``logits * 2`` where it is read, be that behind a loop
that has written over ``logits`` (Inductor 2.13: wrong results), and drops a ``clone``, so that what looked like memory
of its own is the input's. So there nobody outside may read the old values, and nothing that may be a mere copy is
written over.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

import torch
import torch.fx as fx

from sortpass.config import EAGER_INNERS, ChunkConfig
from sortpass.graph_order import GraphOrder, call_of, is_write
from sortpass.liveness import shared_argument
from sortpass.report import Decline, DeclineCode
from sortpass.torch_compat import fake_values, is_dropped_by_compilers, known_true

aten = torch.ops.aten


@dataclasses.dataclass(frozen=True)
class Overwrite:
    """What a live-out is written over.

    Attributes:
        target: an input of the graph, or a node nobody needs later.
        copy: the ``copy_`` into that input, which the loop makes superfluous.
        readers: nodes outside of the region that read the old values; the loop stands behind them.
        is_read: the region reads the old values, so its windows must not meet rows that are written.
        is_used: the new values are read outside of the region, other than by ``copy``.
    """

    target: fx.Node
    copy: fx.Node | None
    readers: frozenset[fx.Node]
    is_read: bool
    is_used: bool


def find_overwrites(
    live_outs: Sequence[fx.Node],
    recomputed: Sequence[fx.Node],
    row_dims: Mapping[fx.Node, object],
    reads: Mapping[fx.Node, Sequence[object]],
    order: GraphOrder,
    config: ChunkConfig,
) -> tuple[dict[fx.Node, Overwrite], dict[fx.Node, Decline]]:
    """The live-outs of a region that need no buffer; and ``copy_`` -> why what it copies needs one.

    Args:
        live_outs: of the region.
        recomputed: members that are made again outside.
        row_dims: member -> the dim along which it is cut.
        reads: node outside whose values the region reads -> the dims it cuts it along; None for all of it.
        order: the graph.
        config: the options; who compiles the graph decides whether its order is kept.
    """
    search = _Search(recomputed, row_dims, reads, order, keeps_order=config.inner in EAGER_INNERS)
    found: dict[fx.Node, Overwrite] = {}
    declines: dict[fx.Node, Decline] = {}
    for node in live_outs:
        for copy in (user for user in node.users if _is_copy_of(user, node)):
            target = copy.args[0]
            assert isinstance(target, fx.Node)
            why = search.why_not(node, target, copy)
            if why is None and node not in found:
                found[node] = search.overwrite(node, target, copy)
            elif why is not None:
                declines[copy] = Decline(DeclineCode.COPIED_BACK, copy.name, f"{copy.target} {why}")
    for node in live_outs:
        taken = {overwrite.target for overwrite in found.values()}
        dying = (t for t in reads if t not in taken and search.is_own(t) and search.why_not(node, t, None) is None)
        if node not in found and (target := next(dying, None)) is not None:
            found[node] = search.overwrite(node, target, None)
    return found, declines


class _Search:
    """Answers whether one live-out may be written over one node."""

    def __init__(
        self,
        recomputed: Sequence[fx.Node],
        row_dims: Mapping[fx.Node, object],
        reads: Mapping[fx.Node, Sequence[object]],
        order: GraphOrder,
        *,
        keeps_order: bool,
    ) -> None:
        self.inside = set(row_dims) - set(recomputed)
        self.row_dims, self.reads, self.order, self.keeps_order = row_dims, reads, order, keeps_order
        self.start = min(map(order.position.__getitem__, row_dims))

    def overwrite(self, node: fx.Node, target: fx.Node, copy: fx.Node | None) -> Overwrite:
        readers = frozenset(self._readers(target, copy))
        return Overwrite(target, copy, readers, bool(self.reads.get(target)), self._is_used(node, copy))

    def why_not(self, live_out: fx.Node, target: fx.Node, copy: fx.Node | None) -> str | None:
        """Why not, as the end of a sentence; None where nothing is against it."""
        if not _is_like(live_out, target, same_strides=self._is_used(live_out, copy)):
            return f"writes into a tensor of other strides or dtype than {live_out.name} has"
        if any(dim != self.row_dims[live_out] for dim in self.reads.get(target, ())):
            return f"writes rows of {target.name} that other windows read"
        leaving = next(filter(_is_returned, _aliases(live_out)), None)
        if leaving is not None and copy is not None:
            # It would be the input itself, where the caller was promised a tensor of its own.
            return f"writes a tensor that is also returned, as {leaving.name}"
        for alias in _aliases(target):
            if alias is not target and (_is_returned(alias) or alias in self.reads):
                return f"writes into what {alias.name} is a view of"
        if copy is None and _is_returned(target):
            return "writes over a result"
        for reader in self._readers(target, copy):
            if is_write(reader):
                return f"writes into {target.name}, which {reader.name} writes into as well"
            if not self.keeps_order:
                return f"writes into {target.name}, whose old values {reader.name} reads, which a compiler may do later"
            if self._runs_later(reader):
                return f"writes into {target.name}, whose old values {reader.name} needs after the region"
        return None

    def is_own(self, node: fx.Node) -> bool:
        """Whether the value is a tensor in memory that this node allocates."""
        call = call_of(node)
        if not isinstance(call.target, torch._ops.OpOverload) or shared_argument(call) is not None:
            return False
        is_tensor = isinstance(node.meta.get("val"), torch.Tensor)
        return is_tensor and (self.keeps_order or not is_dropped_by_compilers(call.target))

    def _is_used(self, live_out: fx.Node, copy: fx.Node | None) -> bool:
        return any(user is not copy and user not in self.inside for user in live_out.users)

    def _runs_later(self, reader: fx.Node) -> bool:
        """Whether a node outside of the region cannot stand in front of it."""
        needs_region = not self.order.ancestors(reader).isdisjoint(self.row_dims)
        is_behind_a_write = not self.order.same_segment(reader, next(iter(self.row_dims)))
        return needs_region or (is_behind_a_write and self.order.position[reader] > self.start)

    def _readers(self, target: fx.Node, copy: fx.Node | None) -> Iterator[fx.Node]:
        """Calls outside of the region that read the memory of ``target``."""
        for alias in _aliases(target):
            for user in alias.users:
                if user is not copy and user not in self.row_dims and user.op == "call_function":
                    yield user


def _is_copy_of(user: fx.Node, node: fx.Node) -> bool:
    """Whether a node copies another into an input of the graph, as AOT autograd ends graphs that write into one."""
    if user.target is not aten.copy_.default or user.args[1] is not node or node is user.args[0]:
        return False
    target = user.args[0]
    return isinstance(target, fx.Node) and target.op == "placeholder"


def _is_like(live_out: fx.Node, target: fx.Node, *, same_strides: bool) -> bool:
    (a,), (b,) = fake_values(live_out), fake_values(target)
    same = a.dtype == b.dtype and a.device == b.device and a.ndim == b.ndim
    if not (same and all(known_true(x == y) for x, y in zip(a.shape, b.shape, strict=True))):
        return False
    return not same_strides or all(known_true(x == y) for x, y in zip(a.stride(), b.stride(), strict=True))


def _aliases(node: fx.Node) -> Iterator[fx.Node]:
    """The node and the views of it, however far from it."""
    yield node
    for user in node.users:
        if user.op == "call_function" and shared_argument(user) is node and not is_write(user):
            yield from _aliases(user)


def _is_returned(node: fx.Node) -> bool:
    return any(user.op == "output" for user in node.users)
