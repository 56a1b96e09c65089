"""A peak estimate for one region: liveness over its nodes, at compile-time sizes.

Bytes above the region's inputs, which somebody else holds. Views and items of a tuple own no memory. The model has no
op scratch, so it is exact for CPU kernels that need none and low for CUDA sorts, whole and chunked alike.
"""

from __future__ import annotations

import dataclasses

import torch.fx as fx

from sortpass.edges import is_view, num_bytes
from sortpass.graph_order import is_item
from sortpass.region import Region


@dataclasses.dataclass(frozen=True)
class RegionPeak:
    """Predicted peaks of one region in bytes.

    Attributes:
        whole: as written.
        loop: preallocated outputs + one window.
        unroll: the pieces of every window + the larger of one window and the joined outputs.
    """

    whole: int
    loop: int
    unroll: int


def predict_peak(region: Region, window_fraction: float) -> RegionPeak:
    """Peaks when one window holds ``window_fraction`` of the rows.

    For HF's top-p on ``[512, V]`` fp32 under ``aot_eager``, 64 rows a window: whole 16 B per logit, loop 4 + 16/8 = 6.
    """
    whole = _live_peak(region)
    outputs = sum(num_bytes(node) for node in region.live_outs)
    window = int(whole * window_fraction)
    return RegionPeak(whole=whole, loop=outputs + window, unroll=outputs + max(window, outputs))


def _live_peak(region: Region) -> int:
    """The most bytes alive at once when the region's nodes run in order and each value dies after its last use."""
    owner = _owners(region)
    kept = {owner[node] for node in region.live_outs}
    last_use: dict[fx.Node, fx.Node] = {}
    for node in region.nodes:
        for used in (node, *node.all_input_nodes):
            if used in owner:
                last_use[owner[used]] = node
    alive = peak = 0
    for node in region.nodes:
        alive += num_bytes(node) if owner[node] is node else 0
        peak = max(peak, alive)
        for value in {owner[used] for used in (node, *node.all_input_nodes) if used in owner}:
            if last_use[value] is node and value not in kept:
                alive -= num_bytes(value)
    return peak


def _owners(region: Region) -> dict[fx.Node, fx.Node]:
    """Member -> the member whose memory it shares (itself, where it has its own)."""
    owner: dict[fx.Node, fx.Node] = {}
    for node in region.nodes:
        base = node.args[0] if node.args and isinstance(node.args[0], fx.Node) else None
        shares = is_view(node) or is_item(node)
        owner[node] = owner.get(base, node) if shares and base is not None else node
    return owner
