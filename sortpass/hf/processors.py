"""The list of processors that stands in for the one ``generate`` built: same items, same results, chunked."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers.generation.logits_process import LogitsProcessorList

from sortpass.config import ChunkConfig
from sortpass.hf.compiled import Budget, CompiledProcessors
from sortpass.hf.options import INDEX_BYTES
from sortpass.hf.plan import Plan, Stretch, plan_for
from sortpass.hf.report import GenerationReport
from sortpass.hf.tracing import mark_growing


@dataclasses.dataclass
class Bridge:
    """How the lists of one ``enable`` are run, where that is written down, and whether it is still on."""

    config: ChunkConfig
    options: dict[str, Any]
    report: GenerationReport
    active: bool = True

    def is_small(self, scores: torch.Tensor) -> bool:
        """Whether a sort of the scores would be left alone, so that a graph had nothing to offer."""
        return scores.numel() * (scores.element_size() + INDEX_BYTES) < self.config.min_bytes


class ChunkedProcessorList(LogitsProcessorList):
    """Applies its processors in order: stretches that trace as compiled graphs, the others as they are.

    One list serves one ``generate`` call. It compiles at most :data:`sortpass.hf.compiled.MAX_COMPILES` graphs; what
    asks for more runs as it is from then on.
    """

    def __init__(self, processors: Sequence[Callable[..., Any]], bridge: Bridge) -> None:
        super().__init__(processors)
        self._bridge = bridge
        self._plan: Plan | None = None
        self._planned_for: tuple[int, ...] = ()
        self._budget = Budget(bridge.report)

    def __call__(self, input_ids: Any, scores: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        report = self._bridge.report
        if len(self):
            report.count(steps=1)
        if self._bridge.is_small(scores):
            report.count(steps_below_threshold=1)
            return super().__call__(input_ids, scores, **kwargs)
        # Other shapes and arguments are not a decoding loop's; in somebody else's trace there is one graph anyway.
        if kwargs or input_ids.dim() != 2 or scores.dim() != 2 or is_compile_off():
            return super().__call__(input_ids, scores, **kwargs)
        for stretch in self._plan_of(input_ids, scores).stretches:
            processors = self[stretch.start : stretch.stop]
            if stretch.compiled is None or stretch.compiled.why_not is not None:
                scores = LogitsProcessorList(processors)(input_ids, scores)
            else:
                scores = self._run_compiled(stretch.compiled, processors, input_ids, scores)
        return scores

    def _plan_of(self, input_ids: torch.Tensor, scores: torch.Tensor) -> Plan:
        items = tuple(map(id, self))  # a caller may add to the list
        if self._plan is None or items != self._planned_for:
            self._plan = plan_for(self, input_ids, scores, self._bridge.options)
            self._planned_for = items
            for position, reason in self._plan.why_not.items():
                self._bridge.report.run_as_is([name_of(self[position])], reason)
            for stretch in self._plan.stretches:
                self._note_given_up(stretch)
        return self._plan

    def _note_given_up(self, stretch: Stretch) -> None:
        if stretch.compiled is not None and stretch.compiled.why_not is not None:
            names = [name_of(processor) for processor in self[stretch.start : stretch.stop]]
            self._bridge.report.run_as_is(names, stretch.compiled.why_not)

    def _run_compiled(
        self,
        compiled: CompiledProcessors,
        processors: list[Callable[..., Any]],
        input_ids: Any,
        scores: torch.Tensor,
    ) -> torch.Tensor:
        report, names = self._bridge.report, [name_of(processor) for processor in processors]
        mark_growing(input_ids)
        result = compiled.run_maybe(self._budget, names, processors, input_ids, scores)
        if result is not None:
            report.add_graphs(names, compiled.reports)
            return result
        report.run_as_is(names, str(compiled.why_not))
        return LogitsProcessorList(processors)(input_ids, scores)


def name_of(processor: Callable[..., Any]) -> str:
    """What a report calls a processor: its class, or the function's own name."""
    return getattr(processor, "__qualname__", type(processor).__name__)


def is_compile_off() -> bool:
    """Whether nothing can be compiled now: torch.compile is disabled, or somebody traces or captures this very call."""
    capturing = torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
    return capturing or torch.compiler.is_compiling() or bool(torch._dynamo.config.disable)
