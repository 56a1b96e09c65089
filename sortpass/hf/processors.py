"""The list of processors that stands in for the one ``generate`` built: same items, same results, chunked."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers.generation.logits_process import LogitsProcessorList

from sortpass.config import EAGER_INNERS, ChunkConfig
from sortpass.hf.compiled import Budget, CompiledProcessors, NoGraph
from sortpass.hf.options import is_small
from sortpass.hf.plan import Plan, Stretch, plan_for
from sortpass.hf.report import GenerationReport
from sortpass.hf.tracing import mark_growing
from sortpass.torch_compat import is_compile_off

logger = logging.getLogger("sortpass.hf")


@dataclasses.dataclass
class Bridge:
    """How the lists of one ``enable`` are run, where that is written down, and whether it is still on."""

    config: ChunkConfig
    options: dict[str, Any]
    report: GenerationReport
    active: bool = True

    @property
    def is_eager(self) -> bool:
        """Whether graphs run the kernels that the processors would."""
        return self.config.inner in EAGER_INNERS


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
        self._as_is: set[int] = set()  # where stretches begin that have a graph, and do not use it in this call

    def __call__(self, input_ids: Any, scores: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        if not self:
            return scores
        report = self._bridge.report
        report.count(steps=1)
        if is_small(scores, self._bridge.config):
            report.count(steps_below_threshold=1)
            return super().__call__(input_ids, scores, **kwargs)
        # Other shapes and arguments are not a decoding loop's; in somebody else's trace there is one graph anyway.
        if kwargs or input_ids.dim() != 2 or scores.dim() != 2 or is_compile_off():
            return super().__call__(input_ids, scores, **kwargs)
        position = 0
        while position < len(self):
            stretch = self._stretch_at(position, input_ids, scores)
            processors = self[position : stretch.stop]
            if stretch.compiled is None or position in self._as_is:
                scores = LogitsProcessorList(processors)(input_ids, scores)
            else:
                result = self._run_compiled(stretch, stretch.compiled, processors, input_ids, scores)
                if result is None:
                    continue  # the plan has smaller graphs here now, or none
                scores = result
            position = stretch.stop
        return scores

    def _stretch_at(self, position: int, input_ids: torch.Tensor, scores: torch.Tensor) -> Stretch:
        items = tuple(map(id, self))  # a caller may add to the list
        if self._plan is None or items != self._planned_for:
            self._planned_for = items
            self._as_is.clear()
            self._use(plan_for(self, input_ids, scores, self._bridge.options))
        assert self._plan is not None
        return next(stretch for stretch in self._plan.stretches if stretch.start == position)

    def _use(self, plan: Plan) -> None:
        self._plan = plan
        for i, reason in plan.why_not.items():
            self._bridge.report.run_as_is([name_of(self[i])], reason)

    def _run_compiled(
        self,
        stretch: Stretch,
        compiled: CompiledProcessors,
        processors: list[Callable[..., Any]],
        input_ids: Any,
        scores: torch.Tensor,
    ) -> torch.Tensor | None:
        """The scores; None where there is no graph for these processors, which the plan then says."""
        report, names = self._bridge.report, [name_of(processor) for processor in processors]
        mark_growing(input_ids)
        try:
            result = compiled.run(self._budget, processors, input_ids, scores)
        except NoGraph as error:
            logger.warning("%s run as they are from here on: %s", ", ".join(names), error)
            report.run_as_is(names, str(error))
            if compiled.why_not is None or self._plan is None:
                self._as_is.add(stretch.start)  # for the rest of this call
            else:
                self._use(self._plan.without(stretch))
            return None
        report.add_graphs(names, compiled.reports)
        if self._bridge.is_eager and not any(graph.modified for graph in compiled.reports):
            # An eager graph without chunks has nothing over the processors as they are.
            self._as_is.add(stretch.start)
        return result


def name_of(processor: Callable[..., Any]) -> str:
    """What a report calls a processor: its class, or the function's own name."""
    return getattr(processor, "__qualname__", type(processor).__name__)
