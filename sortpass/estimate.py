"""Predict the peak of a function, whole and chunked, without running it or allocating anything."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from sortpass.config import ChunkConfig, format_bytes
from sortpass.report import PassReport
from sortpass.trace import trace_graphs


@dataclasses.dataclass(frozen=True)
class Estimate:
    """Predicted peaks of a function.

    Attributes:
        peak_bytes_whole: bytes above the inputs, without the pass.
        peak_bytes_chunked: the same with it; equal where nothing would be rewritten.
        reports: what the pass would do, one per graph (more than one where the function has graph breaks).
    """

    peak_bytes_whole: int
    peak_bytes_chunked: int
    reports: tuple[PassReport, ...]

    @property
    def peak_expr(self) -> str:
        """The peaks for any number of rows; see :attr:`PassReport.peak_expr`."""
        return "; ".join(report.peak_expr for report in self.reports if report.peak_expr)

    def __str__(self) -> str:
        whole, chunked = format_bytes(self.peak_bytes_whole), format_bytes(self.peak_bytes_chunked)
        return "\n".join(
            [f"predicted peak above the inputs: {whole} whole, {chunked} chunked", *map(str, self.reports)]
        )


def estimate(fn: Callable[..., Any], *args: Any, device: str | None = None, **options: Any) -> Estimate:
    """Predict what ``torch.compile(fn, backend="chunked_sort", options=options)`` would take, without running ``fn``.

    Args:
        fn: the function.
        args: its arguments; tensors may be real, fake or on the meta device (``torch.empty(8192, 128256,
            device="meta")``), and are only asked for their shape, strides, dtype and device.
        device: predict for this device's kernels, e.g. ``"cuda"`` on a machine without one. None: the arguments' own,
            CPU for meta tensors.
        options: see :class:`sortpass.ChunkConfig`.

    Returns:
        Peaks of the largest graph, in bytes, and the reports.

    Raises:
        ConfigError: an option is wrong.
        EstimateError: the function needs the values of a tensor to go on, or does not trace.

    Example:
        >>> estimate(top_p, torch.empty(8192, 128256, device="meta"), inner="aot_eager").peak_bytes_whole / 2**30
        15.65...
    """
    graphs = trace_graphs(fn, args, ChunkConfig.from_options(options), device).graphs
    return Estimate(
        peak_bytes_whole=max((graph.peak_bytes_whole for graph in graphs), default=0),
        peak_bytes_chunked=max((graph.peak_bytes_chunked for graph in graphs), default=0),
        reports=tuple(graph.report for graph in graphs),
    )
