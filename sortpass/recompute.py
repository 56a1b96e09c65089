"""Cut a joint graph into forward and backward such that nothing of a row's length is kept in between.

AOT autograd hands a joint graph to a partitioner. torch's keeps the log-softmax of ``[N, V]`` logits, in float32,
rather than compute it twice. Cut here, the forward keeps its inputs and what is small, the backward repeats the
row-wise ops in between, and the pass runs both in windows:

    forward    logits -> log_softmax -> gather -> log-probs          keeps logits, which the caller holds
    backward   logits -> log_softmax ---.                            one region, with grad_logits as its live-out
               grad -> zeros, scatter_add -> _log_softmax_backward_data -> grad_logits

torch's partitioner does the cutting: once as it is, which tells what it keeps, and once more with the ops to repeat
(:mod:`sortpass.chains`) marked as ``torch.utils.checkpoint`` marks them. Of the two cuts the cheaper is taken.
"""

from __future__ import annotations

import dataclasses
import logging
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.fx as fx
from torch._decomp import get_decompositions
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch.utils.checkpoint import CheckpointPolicy

from sortpass.cache import cache_id
from sortpass.chains import Choice, Kept, choose_chains, outputs_of
from sortpass.chunk_pass import rewrite_graph
from sortpass.config import ChunkConfig, format_bytes
from sortpass.fallback import same_graph
from sortpass.memory import graph_peak
from sortpass.report import is_capturing
from sortpass.torch_compat import CustomPartitionerFn

log = logging.getLogger(__name__)

aten = torch.ops.aten

Partition = Callable[..., "tuple[fx.GraphModule, fx.GraphModule]"]


class RecomputePartitioner(CustomPartitionerFn):
    """A partition function for AOT autograd, and for Inductor's ``custom_partitioner_fn``.

    Args:
        config: the options.
        partition: what cuts the graph.
        partition_id: tells ``partition`` from others in cache keys.
    """

    def __init__(
        self, config: ChunkConfig, partition: Partition = min_cut_rematerialization_partition, partition_id: Any = ""
    ) -> None:
        self.config = config
        self.partition = partition
        self.partition_id = partition_id

    @classmethod
    def around(cls, theirs: CustomPartitionerFn | None, config: ChunkConfig) -> RecomputePartitioner:
        """One that cuts with what the user gave Inductor, if anything."""
        return cls(config) if theirs is None else cls(config, theirs, theirs.uuid())

    def __call__(self, gm: fx.GraphModule, joint_inputs: Any, **kwargs: Any) -> tuple[fx.GraphModule, fx.GraphModule]:
        """Cut a joint graph into forward and backward; the arguments are those of torch's partitioner."""
        joint = same_graph(gm)
        as_is = self.partition(joint, joint_inputs, **kwargs)
        num_outputs = kwargs["num_fwd_outputs"]
        # Not of gm: the cut has merged equal nodes of its copy, and what it keeps goes by the names that are left.
        choice = choose_chains(joint.graph, as_is[0], num_outputs, self.config)
        if not choice.repeated:
            log.info("recompute: nothing of at least %s is better repeated", format_bytes(self.config.min_bytes))
            return as_is
        _mark(gm.graph, choice)
        try:
            repeating = self.partition(gm, joint_inputs, **kwargs)
        except RuntimeError as error:  # what the user demands of other nodes may leave no cut
            log.warning("recompute: no cut repeats %s; cut as without: %s", ", ".join(choice.repeated), error)
            return as_is
        costs = [_cost(*graphs, num_outputs, self.config) for graphs in (as_is, repeating)]
        is_better = costs[1].is_below(costs[0], self.config.min_bytes)
        log.info(
            "recompute: %s ops are %s; kept for the backward: %s -> %s, its predicted peak: %s -> %s",
            len(choice.repeated),
            "repeated" if is_better else "not repeated after all",
            *(format_bytes(cost.kept) for cost in costs),
            *(format_bytes(cost.peak) for cost in costs),
        )
        return repeating if is_better else as_is

    def uuid(self) -> Any:
        """The cache id of the options and the user's partitioner."""
        return None if self.partition_id is None or is_capturing() else (cache_id(self.config), self.partition_id)


def loss_decompositions() -> dict[Any, Callable[..., Any]]:
    """What ``cross_entropy`` reads log-probs with, as row-wise ops and a sum over rows: as one op it is no part of a
    region, and would have all log-probs at once."""
    nll = (aten.nll_loss_forward, aten.nll_loss_backward, aten.nll_loss2d_forward, aten.nll_loss2d_backward)
    return get_decompositions(nll)


def _mark(joint: fx.Graph, choice: Choice) -> None:
    for node in joint.nodes:
        if node.name in choice.repeated:
            node.meta["recompute"] = CheckpointPolicy.MUST_RECOMPUTE
        elif node.name in choice.saved:
            node.meta["recompute"] = CheckpointPolicy.MUST_SAVE


@dataclasses.dataclass(frozen=True)
class _Cost:
    """What a cut costs at compile-time sizes, in bytes.

    Attributes:
        kept: between forward and backward; what the caller holds costs nothing.
        peak: of the backward in windows, above what it is given.
    """

    kept: int
    peak: int

    def is_below(self, other: _Cost, least: int) -> bool:
        return self.kept + least <= other.kept and self.kept + self.peak <= other.kept + other.peak


def _cost(forward: fx.GraphModule, backward: fx.GraphModule, num_outputs: int, config: ChunkConfig) -> _Cost:
    memory = Kept(forward.graph, outputs_of(forward), num_outputs, config.min_bytes)
    spare = same_graph(backward)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the pass will say it of the cut that is taken
        report = rewrite_graph(spare, config)
    peak = graph_peak(backward, config.inner) if report.peak_bytes_chunked is None else report.peak_bytes_chunked
    return _Cost(memory.bytes.of(memory.kept), peak)
