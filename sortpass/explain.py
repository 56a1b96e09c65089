"""Show what the pass would do to a function: a table of sorts, and the graph before and after. Nothing is computed."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import torch.fx as fx

from sortpass.config import ChunkConfig, format_bytes
from sortpass.console import Table, plain, say, show
from sortpass.observe import as_json, text_diff
from sortpass.report import SiteReport
from sortpass.trace import TracedGraph, trace_graphs


@dataclasses.dataclass(frozen=True)
class Explanation:
    """What the pass would do; ``str()`` of it is the table and the diff as plain text.

    Attributes:
        graphs: the ATen graphs, each before and after, with its report.
        breaks: why there is more than one graph; empty where there are no graph breaks.
    """

    graphs: tuple[TracedGraph, ...]
    breaks: tuple[str, ...]

    @property
    def diff(self) -> str:
        """The graphs before and after as one unified diff; empty where nothing was rewritten."""
        return "".join(
            graph_diff(graph.before, graph.after, f"graph {index}") for index, graph in enumerate(self.graphs)
        )

    @property
    def table(self) -> Table:
        """One line a sort."""
        rows = [
            _cells(index, site) for index, graph in enumerate(self.graphs) for site in (graph.report.sites or (None,))
        ]
        headers = ("sort", "at", "of", "decision", "ops", "exactness", "predicted peak")
        return Table("Sorts, and what happens to them", headers, rows)

    def to_json(self) -> str:
        """Reports and diff as JSON text."""
        reports = [dataclasses.asdict(graph.report) for graph in self.graphs]
        fields = {"graphs": reports, "breaks": self.breaks, "diff": self.diff}
        return json.dumps(fields, indent=1, default=as_json)

    def notes(self) -> list[str]:
        """What the table has no room for: reasons, what ended each region, graph breaks."""
        lines = []
        for index, graph in enumerate(self.graphs):
            for site in graph.report.sites:
                lines.append(f"graph {index}, {site.node}, {site.source or 'source not known'}")
                lines.append(f"    {site.reason}")
                lines += [f"    outside: {decline.detail}" for decline in site.boundary]
        return lines + [f"graph break: {reason}" for reason in self.breaks]

    def __str__(self) -> str:
        return "\n".join([plain(self.table), *self.notes(), self.diff])


def explain(fn: Callable[..., Any], *args: Any, device: str | None = None, **options: Any) -> Explanation:
    """Trace ``fn`` with fake tensors, show a table of its sorts and what the pass would do to each, and the graph diff.

    Args:
        fn: the function.
        args: its arguments; tensors may be real, fake or on the meta device.
        device: decide for this device's kernels, e.g. ``"cuda"`` on a machine without one.
        options: see :class:`sortpass.ChunkConfig`.

    Returns:
        What was shown, and the graphs.

    Raises:
        ConfigError: an option is wrong.
        EstimateError: the function needs the values of a tensor to go on, or does not trace.

    Example:
        >>> explain(top_p, torch.empty(8192, 128256, device="meta")).graphs[0].report.num_rewritten
        1
    """
    trace = trace_graphs(fn, args, ChunkConfig.from_options(options), device)
    explanation = Explanation(trace.graphs, trace.breaks)
    show(explanation.table)
    for line in explanation.notes():
        say(line)
    say(explanation.diff)
    return explanation


def graph_diff(before: fx.GraphModule, after: fx.GraphModule, name: str) -> str:
    """Unified diff of two graphs as ``print_readable`` writes them."""
    return text_diff(before.print_readable(print_output=False), after.print_readable(print_output=False), name)


def _cells(index: int, site: SiteReport | None) -> tuple[str, ...]:
    if site is None:
        return (f"graph {index}: none", *("",) * 6)
    place = ":".join(site.source.split(":")[:2])  # the line's text stands in the notes
    cells = (f"graph {index}: {site.node}", place, site.shape)
    if site.code is not None:
        return (*cells, f"left alone: {site.code.value}", "", "", "")
    assert site.peak_bytes_whole is not None and site.peak_bytes_chunked is not None
    return (
        *cells,
        f"{site.form}, {site.num_windows} windows of {site.row_chunk} rows",
        str(len(site.region_ops)),
        str(site.exactness),
        f"{format_bytes(site.peak_bytes_whole)} -> {format_bytes(site.peak_bytes_chunked)}",
    )
