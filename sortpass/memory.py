"""Predict peak bytes: of a graph as it is, and of the same graph with a region run in windows.

Bytes above the graph's inputs, which the caller holds; outputs count. The whole graph is played through
(:mod:`sortpass.liveness`), so what other nodes hold while the region runs is in the figure. A loop is one event: it
makes the live-outs, and its scratch is what one window holds.

    HF's top-p on [N, V] fp32, aot_eager, c rows a window:  whole 16*N*V,  chunked 4*N*V + 16*c*V
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Collection, Sequence
from typing import Any

import sympy
import torch.fx as fx

from sortpass.devices import device_type
from sortpass.fusion import fused_events, reads_memory, runs_as_one
from sortpass.graph_order import GraphOrder
from sortpass.liveness import Event, Storage, Storages, node_events, peak_of, run_events
from sortpass.placement import last_needed, moved_behind
from sortpass.region import Region, RowDim, tensor_inputs
from sortpass.rules import Call
from sortpass.scratch import scratch_of
from sortpass.sites import ROWWISE_OPS, SECONDARY_OPS, SORT_OPS, axis_maybe, find_anchors, num_rows_maybe
from sortpass.sizes import ROWS, WINDOW, ZERO, Peak, bytes_of, hints_of
from sortpass.torch_compat import fake_values, size_hint_maybe, while_loop_op

WINDOW_PEAK = "sortpass_window_peak"
"""Key of a loop node's ``meta``: the :class:`Peak` of one of its windows."""


@dataclasses.dataclass(frozen=True)
class Span:
    """Predicted peaks, in bytes above the graph's inputs.

    Attributes:
        region: while the region runs, whatever else is alive then.
        graph: over the whole graph.
    """

    region: Peak
    graph: Peak


def graph_peak(gm: fx.GraphModule, inner: Any) -> int:
    """Predicted bytes above the inputs of a whole graph, at compile-time sizes."""
    memory = GraphMemory(GraphOrder(gm.graph), None, inner)
    anchors = itertools.chain.from_iterable(find_anchors(gm.graph, rowwise=True))
    sorts = [rows for node in anchors if (rows := size_hint_maybe(num_rows_maybe(node) or 1))]
    return memory.whole(max(sorts, default=1)).graph.at(memory.hints)


def _first_sort(order: GraphOrder) -> tuple[int, str]:
    """Row length of the first sort, else of the first row-wise op, and its device."""
    for ops in ((*SORT_OPS, *SECONDARY_OPS), ROWWISE_OPS):
        for node in (node for node in order.nodes if node.target in ops):
            call = Call(node)
            if (axis := axis_maybe(call)) is not None and call.ndim("self"):
                return size_hint_maybe(call.shape("self")[axis]) or 1, device_type(call.out)
    return 1, "cpu"


class GraphMemory:
    """Predicts the peaks of one graph around one region.

    Args:
        order: the graph.
        region: what would run in windows; None to look at the graph alone.
        inner: who compiles it; Inductor stores fewer values.
    """

    def __init__(self, order: GraphOrder, region: Region | None, inner: Any) -> None:
        self.order = order
        self.fuses = inner == "inductor"
        self.members = frozenset(() if region is None else region.nodes)
        self.row_dims: dict[fx.Node, RowDim] = {}
        self.steps = 1 if region is None else size_hint_maybe(region.site.steps) or 1
        if region is not None:
            self.region = region
            self.row_dims.update(region.row_dims)
            # A live-in is seen by a window as its slice.
            for node in region.nodes:
                for producer, dim in tensor_inputs(node, region.flows[node]):
                    if isinstance(dim, RowDim):
                        self.row_dims.setdefault(producer, dim)
        self.row_length, self.device = _first_sort(order)
        self.hints = hints_of(value for node in order.nodes for value in fake_values(node))

    def whole(self, rows: int) -> Span:
        """The graph as written; ``rows`` sorted sequences decide which sort kernel runs."""
        nodes = self.order.nodes
        return self._span(nodes, Storages(nodes), rows, self.members)

    def window(self, rows: int) -> Peak:
        """What one window of so many sorted sequences holds, its chunks of the live-outs included; in ``c``."""
        storages = Storages(self.region.nodes)
        # A window ends by writing its live-outs, which Inductor fuses with what makes them.
        write = Event(self.region.site.node, {}, frozenset(storages[node][0] for node in self.region.live_outs))
        events = self._events(
            [*self.region.nodes, write],
            storages,
            WINDOW,
            rows,
            needs_memory=lambda user: user in self.members and reads_memory(user),
        )
        return peak_of(run_events(events, (), self.hints))

    def in_windows(self, scratch: Peak, rows: int, *, in_place: bool) -> Span:
        """The graph with the region as one step that makes the live-outs and takes this much scratch.

        ``in_place``: those that can be are written over what the region reads.
        """
        region, anchor = self.region, self.region.site.node
        overwrites = region.overwrites if in_place else {}
        dropped = {overwrite.copy for overwrite in overwrites.values()}
        stays = [node for node in self.order.nodes if node not in dropped]
        outside = [node for node in stays if node not in self.members or node in region.recomputed]
        targets = {node: overwrites[node].target if node in overwrites else None for node in region.live_outs}
        storages = Storages(outside, targets)
        inputs = {dep for node in region.nodes for dep in node.all_input_nodes if dep not in self.members}
        reads = frozenset(storage for node in inputs for storage in storages[node])
        makes = {(node, 0): size for node, size in self.live_out_bytes().items() if node not in overwrites}
        point = last_needed(region, self.order)
        early = moved_behind(point, region, self.order)
        behind = self.order.position[point] + 1
        first = [node for node in self.order.nodes[:behind] if node not in early]
        rest = [node for node in (*early, *self.order.nodes[behind:]) if node in outside]
        steps: list[fx.Node | Event] = [*first, Event(anchor, makes, reads, scratch), *rest]
        return self._span(
            steps,
            storages,
            rows,
            {anchor},
            held=[storage for node in region.live_outs for storage in storages[node]],
            needs_memory=lambda user: user in self.members or reads_memory(user),
        )

    def live_out_bytes(self) -> dict[fx.Node, sympy.Expr]:
        return {node: self._bytes(node, ROWS)[0] for node in self.region.live_outs}

    def _span(
        self,
        steps: Sequence[fx.Node | Event],
        storages: Storages,
        rows: int,
        local: Collection[fx.Node],
        held: Collection[Storage] = (),
        needs_memory: Callable[[fx.Node], bool] = reads_memory,
    ) -> Span:
        output = next(node for node in self.order.nodes if node.op == "output")
        kept = set(storages.read_by(output))
        if self.fuses:
            # Inductor's wrapper holds what a loop returned until the call ends.
            loops = [node for node in steps if isinstance(node, fx.Node) and node.target is while_loop_op]
            kept.update(held, *(storages[node] for node in loops))
        events = self._events(steps, storages, ROWS, rows, needs_memory)
        moments = run_events(events, kept, {**self.hints, ROWS: self.steps})
        return Span(peak_of(m for m in moments if m.event.runs_any(local)), peak_of(moments))

    def _events(
        self,
        steps: Sequence[fx.Node | Event],
        storages: Storages,
        row_count: sympy.Expr,
        rows: int,
        needs_memory: Callable[[fx.Node], bool],
    ) -> list[Event]:
        def size_of(node: fx.Node) -> dict[int, sympy.Expr]:
            return self._bytes(node, row_count)

        def taken_by(node: fx.Node) -> Peak:
            if node.target is while_loop_op:
                return node.meta.get(WINDOW_PEAK, Peak())
            return Peak((scratch_of(node, lambda arg: sum(size_of(arg).values(), ZERO), rows),))

        if not self.fuses:
            return node_events(steps, storages, size_of, taken_by)
        merges = runs_as_one(rows, self.row_length, self.device)
        return fused_events(steps, storages, size_of, taken_by, needs_memory, merges=merges)

    def _bytes(self, node: fx.Node, row_count: sympy.Expr) -> dict[int, sympy.Expr]:
        row_dim = self.row_dims.get(node)
        return {i: bytes_of(value, row_dim, row_count) for i, value in enumerate(fake_values(node))}
