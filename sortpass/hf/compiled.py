"""Processors as a compiled function, and how many of those one ``generate`` call may compile."""

from __future__ import annotations

from collections import Counter
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

MAX_COMPILES = 3  # of one list, thus of one generate call
MAX_COMPILES_TOGETHER = 2  # of several processors: one for a first length of 1, one for all others


class BudgetSpent(Exception):
    """Raised inside of the backend, before anything runs."""


class Budget:
    """The graphs one ``generate`` call may compile, counted in its report."""

    def __init__(self, report: GenerationReport) -> None:
        self._report = report
        self._spent: Counter[int] = Counter()

    def spend(self, spender: CompiledProcessors) -> None:
        """Take one.

        Raises:
            BudgetSpent: there is none left; or the spender had its share, which is then no longer to be called: one of
                its processors asks for another graph at each step, and without it the others may not.
        """
        if self._spent.total() == MAX_COMPILES:
            raise BudgetSpent(f"{MAX_COMPILES} graphs are compiled in one generate call, no more")
        if self._spent[id(spender)] == spender.most_compiles:
            spender.why_not = f"together they ask for more than {spender.most_compiles} graphs in one generate call"
            raise BudgetSpent(spender.why_not)
        self._spent[id(spender)] += 1
        self._report.count(compiles=1)


class NoGraph(Exception):
    """Processors have to run as they are; says why."""


class CompiledProcessors:
    """Processors as one compiled function.

    The processors are its first argument, so that the next ``generate`` call, which builds new ones, finds the graph of
    those before: Dynamo's guards compare what their code reads.

    Attributes:
        most_compiles: of one generate call.
        reports: of its graphs.
        why_not: why it is no longer to be called; None where it is.
    """

    def __init__(self, fn: Callable[..., torch.Tensor], options: dict[str, Any], *, most_compiles: int) -> None:
        self.most_compiles = most_compiles
        self._fn = fn
        self._options = options
        self._call = self._new_call()
        self.reports: list[PassReport] = []
        self.why_not: str | None = None

    def _new_call(self) -> Callable[..., torch.Tensor]:
        return torch.compile(own_code(self._fn), backend=self._compile, fullgraph=True)

    def run(self, budget: Budget, *args: Any) -> torch.Tensor:
        """The scores.

        Raises:
            NoGraph: there is none to be had now; nothing has run.
            SortPassError: an option is wrong, or asks for an error. And whatever the processors raise.
        """
        token = _budget.set(budget)
        try:
            return self._call(*args)
        except torch._dynamo.exc.FailOnRecompileLimitHit:
            # Dynamo compiles one function about eight times; over many generate calls there may be more to it.
            self._call = self._new_call()
            return self.run(budget, *args)
        except (torch._dynamo.exc.TorchDynamoException, GuardOnDataDependentSymNode) as error:
            cause: Any = error
            while hasattr(cause, "inner_exception"):
                cause = cause.inner_exception
            if isinstance(cause, SortPassError):
                raise cause from None
            reason = str(cause).strip().split("\n")[0]
            if not isinstance(cause, BudgetSpent):
                self.why_not = reason
            raise NoGraph(reason) from error
        finally:
            _budget.reset(token)

    def _compile(self, gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        _budget.get().spend(self)
        with capture_reports() as reports:
            compiled = chunked_sort(gm, example_inputs, options=self._options)
        self.reports.extend(reports)
        for report in reports:
            publish(report)  # to a capture_reports block of the user's
        return compiled


_budget: ContextVar[Budget] = ContextVar("sortpass_compile_budget")
