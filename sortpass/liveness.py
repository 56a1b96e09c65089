"""What is alive while a list of nodes runs: storages made, read for the last time, and given back.

Storages, not values: views and items of a tuple own nothing, and a write returns what it wrote into. Inputs belong to
the caller and cost nothing. Everything is an expression of sizes (:mod:`sortpass.sizes`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import sympy
import torch.fx as fx

from sortpass.graph_order import is_item
from sortpass.sizes import ZERO, Peak
from sortpass.torch_compat import fake_values, while_loop_op

Storage = tuple[fx.Node, int]
"""The node that allocates it, and which of the node's outputs it is."""


@dataclasses.dataclass(frozen=True)
class Event:
    """One kernel, or one loop.

    Attributes:
        node: what runs; of several nodes of a fused kernel, the last.
        makes: storages it allocates, with their bytes.
        reads: storages it reads.
        scratch: bytes it takes and gives back.
        is_own: it is a kernel that the inner compiler wrote, which can write an output over an input that nobody reads
            later, if another such kernel made it.
        earlier: the other stored nodes of a fused kernel.
    """

    node: fx.Node
    makes: Mapping[Storage, sympy.Expr]
    reads: frozenset[Storage]
    scratch: Peak = Peak()
    is_own: bool = False
    earlier: frozenset[fx.Node] = frozenset()

    def runs_any(self, nodes: Collection[fx.Node]) -> bool:
        """Whether one of some nodes is computed here."""
        return self.node in nodes or any(node in nodes for node in self.earlier)


@dataclasses.dataclass(frozen=True)
class Moment:
    """The bytes alive while one event runs."""

    event: Event
    alive: Peak


def run_events(events: Sequence[Event], kept: Iterable[Storage], sizes: Mapping[sympy.Symbol, Any]) -> list[Moment]:
    """Play events in order; ``kept`` storages (the outputs) are never given back.

    ``sizes`` tell which storages are equally large, where one is known as ``N`` rows and another as 512.
    """
    last_read: dict[Storage, int] = {}
    for position, event in enumerate(events):
        last_read.update(dict.fromkeys([*event.makes, *event.reads], position))
    dies: dict[int, list[Storage]] = {}
    for storage, position in last_read.items():
        dies.setdefault(position, []).append(storage)
    never = set(kept)
    size: dict[Storage, sympy.Expr] = {}
    own: set[Storage] = set()
    alive, moments = ZERO, []
    for position, event in enumerate(events):
        size.update(event.makes)
        dying = [s for s in dies.get(position, ()) if s in size and s not in never]
        alive = alive + sum(event.makes.values(), ZERO)
        moments.append(Moment(event, event.scratch.plus(alive - _written_over(event, dying, size, own, sizes))))
        own |= set(event.makes) if event.is_own else set()
        alive = sympy.expand(alive - sum((size[s] for s in dying), ZERO))
    return moments


def _written_over(
    event: Event,
    dying: Iterable[Storage],
    size: Mapping[Storage, sympy.Expr],
    own: Collection[Storage],
    sizes: Mapping[sympy.Symbol, Any],
) -> sympy.Expr:
    """Bytes of a dying input that one of the outputs takes the place of."""
    made = {Peak((count,)).at(sizes) for count in event.makes.values()} if event.is_own else set()
    over = (s for s in dying if s in own and s not in event.makes and Peak((size[s],)).at(sizes) in made)
    return next((size[s] for s in over), ZERO)


def peak_of(moments: Iterable[Moment]) -> Peak:
    """The most that is alive at any of some moments."""
    return Peak.of(count for moment in moments for count in moment.alive.counts)


class Storages:
    """Whose memory each node's value is."""

    def __init__(self, nodes: Iterable[fx.Node], made_by_loop: Mapping[fx.Node, fx.Node | None] | None = None) -> None:
        """``made_by_loop`` are the live-outs of a region that is not among ``nodes``, but run as one event, each with
        the node that it is written over, if any."""
        made_by_loop = made_by_loop or {}
        written_over = {target: node for node, target in made_by_loop.items() if target is not None}
        self._of: dict[fx.Node, tuple[Storage, ...]] = {node: ((node, 0),) for node in made_by_loop}
        for node in nodes:
            self._of[node] = self._find(node)
            if node in written_over:
                self._of[written_over[node]] = self._of[node]

    def __getitem__(self, node: fx.Node) -> tuple[Storage, ...]:
        """The storages a node's value lies in: one, one per output of a tuple, none where an input's."""
        return self._of.get(node, ())

    def made_by(self, node: fx.Node) -> list[Storage]:
        return [storage for storage in self._of.get(node, ()) if storage[0] is node]

    def read_by(self, node: fx.Node) -> frozenset[Storage]:
        return frozenset(storage for used in node.all_input_nodes for storage in self[used])

    def _find(self, node: fx.Node) -> tuple[Storage, ...]:
        if node.op != "call_function":
            return ()
        if is_item(node):
            owner: Any = node.args[0]
            index = node.args[1]
            if owner.target is while_loop_op:
                return self[owner.args[2][index]]
            of_owner = self[owner]
            return (of_owner[index],) if isinstance(index, int) and index < len(of_owner) else ()
        if node.target is while_loop_op:
            carried: Any = node.args[2]
            return tuple(storage for buffer in carried for storage in self[buffer])
        if (base := shared_argument(node)) is not None:
            return self[base]
        return tuple((node, position) for position, _ in enumerate(fake_values(node)))


def shared_argument(node: fx.Node) -> fx.Node | None:
    """The argument whose memory the output lies in: of a view, or of a write."""
    schema = getattr(node.target, "_schema", None)
    shares = schema is not None and any(r.alias_info is not None for r in schema.returns)
    if not (shares or str(node.target) == "aten._unsafe_view.default"):  # a view whose schema does not say so
        return None
    return next((arg for arg in node.args if isinstance(arg, fx.Node)), None)


SizeOf = Callable[[fx.Node], Mapping[int, sympy.Expr]]
"""Bytes of each output of a node."""

ScratchOf = Callable[[fx.Node], Peak]


def node_events(
    steps: Iterable[fx.Node | Event], storages: Storages, size_of: SizeOf, scratch_of: ScratchOf
) -> list[Event]:
    """One event per node, as a graph is run node by node; events among them stay what they are."""
    events = []
    for node in steps:
        if isinstance(node, Event):
            events.append(node)
        elif node.op == "call_function":
            made = size_of(node)
            makes = {storage: made[storage[1]] for storage in storages.made_by(node)}
            events.append(Event(node, makes, storages.read_by(node), scratch_of(node)))
    return events
