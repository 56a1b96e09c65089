"""What became of the logits processors of the ``generate`` calls that went through a bridge."""

from __future__ import annotations

import dataclasses
import threading

from sortpass.errors import SortPassError
from sortpass.report import PassReport


class BridgeError(SortPassError):
    """A model the bridge cannot be put on, or has not been put on."""


@dataclasses.dataclass
class GenerationReport:
    """Filled while ``generate`` runs; ``print`` it afterwards.

    Attributes:
        in_graph: names of the processors that ran in a compiled graph, in the order of the list.
        as_is: name -> why it ran as it is.
        graphs: one report for each graph in use: which sorts were chunked, predicted peaks.
        compiles: graphs compiled on behalf of these calls; 0 where earlier calls had compiled them already.
        steps: processor lists applied, one for each token (in assisted decoding one for each candidate).
        steps_below_threshold: those of them whose sort is below ``min_bytes``; nothing was compiled for these.
    """

    in_graph: list[str] = dataclasses.field(default_factory=list)
    as_is: dict[str, str] = dataclasses.field(default_factory=dict)
    graphs: list[PassReport] = dataclasses.field(default_factory=list)
    compiles: int = 0
    steps: int = 0
    steps_below_threshold: int = 0
    _lock: threading.Lock = dataclasses.field(default_factory=threading.Lock, repr=False, compare=False)

    def count(self, **more: int) -> None:
        """Add to the counters named."""
        with self._lock:
            for name, number in more.items():
                setattr(self, name, getattr(self, name) + number)

    def add_graphs(self, names: list[str], reports: list[PassReport]) -> None:
        """Note which processors run as a graph, and what the pass did to it."""
        with self._lock:
            self.in_graph += [name for name in names if name not in self.in_graph]
            self.as_is = {name: reason for name, reason in self.as_is.items() if name not in names}
            self.graphs += [report for report in reports if not any(report is known for known in self.graphs)]

    def run_as_is(self, names: list[str], reason: str) -> None:
        """Note processors that run as they are."""
        with self._lock:
            self.in_graph = [name for name in self.in_graph if name not in names]
            self.as_is.update(dict.fromkeys(names, reason))

    def __str__(self) -> str:
        if not self.steps:
            return "no logits processor ran: nothing to sample from, or the model was not used"
        below = f", {self.steps_below_threshold} of them below min_bytes" if self.steps_below_threshold else ""
        lines = [f"{self.steps} steps{below}, {self.compiles} compiles"]
        if self.in_graph:
            lines.append(f"in one graph: {', '.join(self.in_graph)}")
        lines += [f"as it is: {name}: {reason}" for name, reason in self.as_is.items()]
        return "\n".join([*lines, *map(str, self.graphs)])
