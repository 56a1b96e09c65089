"""The pictures of ``demo --plot`` and ``bench --output-dir``; matplotlib is the ``plot`` extra."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sortpass.bench_data import BenchResult, BenchRow
from sortpass.console import require
from sortpass.demo import DemoResult

PANEL_INCHES = (5.0, 3.6)
WHOLE_COLOR, CHUNKED_COLOR = "tab:gray", "tab:blue"


def plot_demo(result: DemoResult, path: Path) -> None:
    """Two bars each of peak and time: whole and chunked."""
    figure, (peak, seconds) = _figure()
    names = [row.variant for row in result.rows]
    _bars(peak, names, [row.peak_bytes / 2**20 for row in result.rows], "peak above the logits, MiB")
    _bars(seconds, names, [row.seconds for row in result.rows], f"median of {result.settings.rounds}, s")
    settings = result.settings
    figure.suptitle(f"One top-p sampling step, logits [{settings.rows}, {settings.vocab}] on {settings.device}")
    _save(figure, path)


def plot_bench(result: BenchResult, path: Path) -> None:
    """Peak and time against the row chunk, one line per inner and scope; whole and eager are flat lines."""
    figure, (peak, seconds) = _figure()
    for index, inner in enumerate(result.settings.inners):
        rows = [row for row in result.rows if row.inner == inner]
        _lines(peak, rows, [row.bytes_per_logit for row in rows], f"C{index}")
        _lines(seconds, rows, [row.seconds for row in rows], f"C{index}")
    for axes, label in ((peak, "peak above the logits, bytes per logit"), (seconds, "median time, s")):
        axes.set(xlabel="row chunk, rows", ylabel=label, ylim=(0, None))
        axes.set_xscale("log", base=2)
        axes.set_xticks(result.settings.row_chunks, [str(rows) for rows in result.settings.row_chunks])
        axes.grid(alpha=0.3)
    handles, labels = peak.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2 * len(result.settings.inners), fontsize="small")
    settings = result.settings
    figure.suptitle(f"{settings.sampler}, logits [{settings.num_tokens}, {settings.vocab_size}] on {settings.device}")
    _save(figure, path)


def plot_scaling(result: BenchResult, path: Path) -> None:
    """Peak above input and outputs against the rows of the batch: whole grows, chunked stays flat."""
    figure, panels = _figure()
    for axes, inner in zip(panels, result.settings.inners, strict=False):
        for variant in dict.fromkeys(row.variant for row in result.scaling if row.inner == inner):
            points = sorted(
                (row.rows, row.extra_bytes / 2**20)
                for row in result.scaling
                if (row.inner, row.variant) == (inner, variant)
            )
            color = WHOLE_COLOR if variant == "whole" else None
            axes.plot(*zip(*points, strict=True), "o-", label=variant, color=color)
        axes.set(xlabel="rows of the batch", ylabel="peak above input and outputs, MiB", ylim=(0, None), title=inner)
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
    for axes in panels[len(result.settings.inners) :]:
        axes.set_axis_off()
    figure.suptitle(f"{result.settings.sampler}, rows of {result.settings.vocab_size} on {result.settings.device}")
    _save(figure, path)


def _figure() -> tuple[Any, Any]:
    # Not pyplot: it would pick a window toolkit and keep global state.
    figure = require("matplotlib.figure", "plot").Figure(figsize=(2 * PANEL_INCHES[0], PANEL_INCHES[1]))
    figure.set_layout_engine("constrained")
    return figure, figure.subplots(1, 2)


def _bars(axes: Any, names: list[str], values: list[float], label: str) -> None:
    bars = axes.bar(names, values, color=(WHOLE_COLOR, CHUNKED_COLOR), width=0.6)
    axes.bar_label(bars, fmt="%.3g")
    axes.set(ylabel=label)
    axes.spines[["top", "right"]].set_visible(False)


def _lines(axes: Any, rows: list[BenchRow], values: list[float], color: str) -> None:
    for scope, style in (("region", "o-"), ("sort", "x:")):
        points = sorted((row.row_chunk, value) for row, value in zip(rows, values, strict=True) if row.scope == scope)
        axes.plot(*zip(*points, strict=True), style, color=color, label=f"{scope}, {rows[0].inner}")
    for row, value in zip(rows, values, strict=True):
        if row.scope is None:
            style = "--" if row.variant == "whole" else "-."
            axes.axhline(value, linestyle=style, color=color, alpha=0.6, label=f"{row.variant}, {row.inner}")


def _save(figure: Any, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
