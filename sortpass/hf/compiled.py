"""Processors as a compiled function, and how many of those one ``generate`` call may compile."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any

import torch
import torch.fx as fx
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from sortpass.backend import chunked_sort
from sortpass.errors import SortPassError
from sortpass.hf.report import GenerationReport
from sortpass.measure import own_code
from sortpass.report import PassReport, capture_reports, publish

logger = logging.getLogger("sortpass.hf")

MAX_COMPILES = 3  # of one list, thus of one generate call


class TooManyCompiles(Exception):
    """Raised inside of the backend, before anything runs, by a list that has had its compiles."""

    def __str__(self) -> str:
        return f"they ask for more than {MAX_COMPILES} graphs in one generate call"


class Budget:
    """The graphs one ``generate`` call may compile, counted in its report."""

    def __init__(self, report: GenerationReport) -> None:
        self._report = report
        self._spent = 0

    def spend(self) -> None:
        """Take one; raises :class:`TooManyCompiles` where none is left."""
        if self._spent == MAX_COMPILES:
            raise TooManyCompiles
        self._spent += 1
        self._report.count(compiles=1)


class CompiledProcessors:
    """Processors as one compiled function.

    The processors are its first argument, so that the next ``generate`` call, which builds new ones, finds the graph of
    those before: Dynamo's guards compare what their code reads.

    Attributes:
        reports: of its graphs.
        why_not: why it is no longer to be called; None where it is.
    """

    def __init__(self, fn: Callable[..., torch.Tensor], options: dict[str, Any]) -> None:
        self._fn = fn
        self._options = options
        self._call = self._new_call()
        self.reports: list[PassReport] = []
        self.why_not: str | None = None

    def _new_call(self) -> Callable[..., torch.Tensor]:
        return torch.compile(own_code(self._fn), backend=self._compile, fullgraph=True)

    def run_maybe(self, budget: Budget, names: Sequence[str], *args: Any) -> torch.Tensor | None:
        """The scores; None where no graph can be had: nothing has run then, and ``why_not`` says why.

        Args:
            budget: what compiling is taken from.
            names: of the processors, for the log.
            args: of the function.

        Raises:
            SortPassError: an option is wrong, or asks for an error. And whatever the processors raise.
        """
        token = _budget.set(budget)
        try:
            return self._call(*args)
        except torch._dynamo.exc.FailOnRecompileLimitHit:
            # Dynamo compiles one function about eight times; over many generate calls there may be more to it.
            self._call = self._new_call()
            return self.run_maybe(budget, names, *args)
        except (torch._dynamo.exc.TorchDynamoException, GuardOnDataDependentSymNode) as error:
            cause: Any = error
            while hasattr(cause, "inner_exception"):
                cause = cause.inner_exception
            if isinstance(cause, SortPassError):
                raise cause from None
            self.why_not = str(cause).strip().split("\n")[0]
            logger.warning("%s run as they are from here on: %s", ", ".join(names), self.why_not)
            return None
        finally:
            _budget.reset(token)

    def _compile(self, gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        _budget.get().spend()
        with capture_reports() as reports:
            compiled = chunked_sort(gm, example_inputs, options=self._options)
        self.reports.extend(reports)
        for report in reports:
            publish(report)  # to a capture_reports block of the user's
        return compiled


_budget: ContextVar[Budget] = ContextVar("sortpass_compile_budget")
