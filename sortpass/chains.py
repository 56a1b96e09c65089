"""Find the chains of row-wise ops that a backward would better repeat than have what they make kept for it.

A chain is a value that is kept, and all it is computed from by ops that may be repeated, up to its sources: inputs,
which the caller holds; results of matmuls and random draws; whatever is small. To repeat it frees what is kept of it,
and keeps its sources.

    logits -> float -> log_softmax -> gather -> log-probs        4*N*V bytes kept: log_softmax
    source    chain    chain          small                      repeated: 0, the source is an input
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch.fx as fx
from torch.utils.checkpoint import CheckpointPolicy

from sortpass.config import ChunkConfig
from sortpass.graph_order import call_of
from sortpass.liveness import Storage, Storages
from sortpass.rules import find_rule_maybe, is_draw, is_pure
from sortpass.sites import ROWWISE_OPS, SECONDARY_OPS, SORT_OPS
from sortpass.sizes import Peak, bytes_of, hints_of
from sortpass.torch_compat import fake_values, is_compute_intensive, num_input_updates, overwritten_inputs

_KEPT_BY_USER = (CheckpointPolicy.MUST_SAVE, CheckpointPolicy.PREFER_SAVE)

ANCHOR_OPS = (*SORT_OPS, *SECONDARY_OPS, *ROWWISE_OPS)


@dataclasses.dataclass(frozen=True)
class Choice:
    """What to mark in a joint graph, by name.

    Attributes:
        repeated: the nodes of the chains that are better repeated.
        saved: sources that are to be kept as they are, since the forward writes over an input they are computed from.
    """

    repeated: frozenset[str]
    saved: frozenset[str]


def choose_chains(joint: fx.Graph, forward: fx.GraphModule, num_outputs: int, config: ChunkConfig) -> Choice:
    """The chains of a joint graph that are better repeated in the backward.

    Args:
        joint: the graph that was cut.
        forward: what it was cut into without any node marked.
        num_outputs: of the outputs of ``forward``, those that are not kept for the backward, but the function's.
        config: the options.
    """
    by_name = {node.name: node for node in joint.nodes}
    # Where a checkpointed op draws, torch keeps the generator's state, which only the forward has a node for.
    outputs = [by_name[node.name] for node in outputs_of(forward) if node.name in by_name]
    if [node.name for node in outputs[:num_outputs]] != [node.name for node in outputs_of(forward)[:num_outputs]]:
        return Choice(frozenset(), frozenset())
    kept = Kept(joint, outputs, num_outputs, config.min_bytes)
    overwritten = _computed_from(overwritten_inputs(joint), joint)
    repeated: set[fx.Node] = set()
    saved: set[fx.Node] = set()
    chains = [_chain_of(node, kept.may_repeat) for node in outputs[num_outputs:] if kept.may_repeat(node)]
    for chain in _joined(chains, kept.may_be_kept):
        sources = {source for node in chain for source in node.all_input_nodes} - chain
        made_once = {source for source in sources & overwritten if next(fake_values(source), None) is not None}
        # Where no region can start, the backward would hold what it repeats whole.
        near = {*chain, *(user for node in chain | sources for user in node.users)}
        has_anchor = any(node.target in ANCHOR_OPS for node in near)
        if has_anchor and kept.gain(chain, sources) >= config.min_bytes and all(map(kept.bytes.is_own, made_once)):
            repeated |= chain
            saved |= made_once
    return Choice(frozenset(node.name for node in repeated), frozenset(node.name for node in saved))


class Kept:
    """What a cut keeps between forward and backward, and what it would with a chain repeated.

    Args:
        graph: the joint graph, or the forward.
        outputs: of the forward: new values of inputs it writes into, what the function returns, what is kept.
        num_outputs: of these, those that are not kept.
        min_bytes: bytes of a value that is worth repeating.
    """

    def __init__(self, graph: fx.Graph, outputs: Sequence[fx.Node], num_outputs: int, min_bytes: int) -> None:
        self.bytes = ValueBytes(graph)
        self.min_bytes = min_bytes
        num_updates = num_input_updates(graph)
        # The caller holds what the function returns; a new value of an input is copied there and dropped.
        self.updates = self.bytes.storages_of(outputs[:num_updates])
        self.returned = self.bytes.storages_of(outputs[num_updates:num_outputs])
        self.kept = self.bytes.storages_of(outputs[num_outputs:]) - self.returned

    def may_repeat(self, node: fx.Node) -> bool:
        """Whether the node may be part of a chain. A call with several outputs may with all of them, or not at all."""
        call = call_of(node)
        is_output = bool(self.bytes.storages_of([call]) & (self.updates | self.returned))
        return self._is_large(node) and not is_output and _is_rowwise(call)

    def may_be_kept(self, node: fx.Node) -> bool:
        return node.op == "call_function" and self._is_large(node)

    def gain(self, chain: set[fx.Node], sources: set[fx.Node]) -> int:
        """Bytes less that are kept if the chain is repeated and its sources are kept."""
        freed = self.bytes.storages_of(chain) & self.kept
        needed = self.bytes.storages_of(filter(self._is_large, sources)) - self.kept - self.returned
        return self.bytes.of(freed) - self.bytes.of(needed)

    def _is_large(self, node: fx.Node) -> bool:
        return self.bytes.of(self.bytes.storages_of([node])) >= self.min_bytes


class ValueBytes:
    """The memory that values of a graph lie in, at compile-time sizes. Inputs cost nothing: the caller holds them."""

    def __init__(self, graph: fx.Graph) -> None:
        self._storages = Storages(graph.nodes)
        self._size = functools.cache(self._find_size)
        self._hints = hints_of(value for node in graph.nodes for value in fake_values(node))

    def storages_of(self, nodes: Iterable[fx.Node]) -> set[Storage]:
        return {storage for node in nodes for storage in self._storages[node]}

    def is_own(self, node: fx.Node) -> bool:
        """Whether the value does not lie in an input."""
        return bool(self._storages[node])

    def of(self, storages: Iterable[Storage]) -> int:
        return sum(map(self._size, storages))

    def _find_size(self, storage: Storage) -> int:
        node, position = storage
        return Peak((bytes_of(list(fake_values(node))[position]),)).at(self._hints)


def outputs_of(gm: fx.GraphModule) -> list[fx.Node]:
    """The nodes a graph returns."""
    returned: Any = gm.graph.output_node().args[0]
    return [arg for arg in returned if isinstance(arg, fx.Node)]


def _computed_from(inputs: set[fx.Node], graph: fx.Graph) -> set[fx.Node]:
    """Some inputs and all that is computed from them."""
    found = set(inputs)
    for node in graph.nodes if inputs else ():
        if not found.isdisjoint(node.all_input_nodes):
            found.add(node)
    return found


def _is_rowwise(call: fx.Node) -> bool:
    """Whether the op may be repeated, in windows, at about the cost of reading its arguments, or of a sort."""
    if call.op != "call_function" or call.meta.get("recompute") in _KEPT_BY_USER:
        return False
    op = call.target
    return is_pure(op) and not is_draw(op) and find_rule_maybe(op) is not None and not is_compute_intensive(call)


def _chain_of(node: fx.Node, may_repeat: Callable[[fx.Node], bool]) -> set[fx.Node]:
    """The node and all it is made of that may be repeated."""
    chain, frontier = {node}, [node]
    while frontier:
        for source in frontier.pop().all_input_nodes:
            if source not in chain and may_repeat(source):
                chain.add(source)
                frontier.append(source)
    return chain


def _joined(chains: Iterable[set[fx.Node]], may_be_kept: Callable[[fx.Node], bool]) -> list[set[fx.Node]]:
    """Chains that share nodes, or a source, as one: to keep the source frees them all."""
    groups: list[tuple[set[fx.Node], set[fx.Node]]] = []
    for chain in chains:
        reach = chain | {source for node in chain for source in node.all_input_nodes if may_be_kept(source)}
        apart = []
        for group, others in groups:
            if reach & others:
                chain, reach = chain | group, reach | others
            else:
                apart.append((group, others))
        groups = [*apart, (chain, reach)]
    return [chain for chain, _ in groups]
