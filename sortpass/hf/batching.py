"""Continuous batching: the manager's list of processors, chunked.

Its processors may take a row of per-request arguments each, and its rows are the requests that get a token in a step.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers.generation.continuous_batching.cb_logits_processors import ContinuousBatchingLogitsProcessorList

from sortpass.hf.compiled import MAX_COMPILES, Budget, CompiledProcessors, NoGraph
from sortpass.hf.options import is_small
from sortpass.hf.processors import Bridge, logger, name_of
from sortpass.torch_compat import is_compile_off


def chunk_manager(manager: Any, bridge: Bridge) -> None:
    """Let a ``ContinuousBatchingManager`` run its processors as one graph."""
    if type(manager.logit_processor) is ContinuousBatchingLogitsProcessorList:
        manager.logit_processor = ChunkedBatchProcessors(manager.logit_processor, bridge)


class ChunkedBatchProcessors(ContinuousBatchingLogitsProcessorList):
    """Stands in for the list it is made from: all of its processors as one graph, or all as they are."""

    def __init__(self, processors: ContinuousBatchingLogitsProcessorList, bridge: Bridge) -> None:
        vars(self).update(vars(processors))
        self._bridge = bridge
        self._budget = Budget(bridge.report)
        self._compiled = CompiledProcessors(_run_whole, bridge.options, most_compiles=MAX_COMPILES)
        self._whole = processors

    def __call__(self, input_ids: Any, scores: torch.Tensor, logits_processor_args: torch.Tensor) -> torch.Tensor:
        if not self._bridge.active:  # a manager that the model keeps for later calls
            return self._whole(input_ids, scores, logits_processor_args)
        report, names = self._bridge.report, [name_of(processor) for processor in self.logits_processor]
        report.count(steps=1)
        if is_small(scores, self._bridge.config):
            report.count(steps_below_threshold=1)
        elif self._compiled.why_not is None and not is_compile_off():
            torch._dynamo.maybe_mark_dynamic(input_ids, 0)
            torch._dynamo.maybe_mark_dynamic(scores, 0)
            args = (self._whole, input_ids, scores, logits_processor_args)
            try:
                result = self._compiled.run(self._budget, *args)
                report.add_graphs(names, self._compiled.reports)
                return result
            except NoGraph as error:
                self._compiled.why_not = str(error)  # the budget is the same for all steps
                logger.warning("%s run as they are from here on: %s", ", ".join(names), error)
                report.run_as_is(names, str(error))
        return self._whole(input_ids, scores, logits_processor_args)


def _run_whole(
    processors: ContinuousBatchingLogitsProcessorList,
    input_ids: Any,
    scores: torch.Tensor,
    logits_processor_args: torch.Tensor,
) -> torch.Tensor:
    return processors(input_ids, scores, logits_processor_args)
