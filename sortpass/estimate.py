"""Predict the peak of a function, whole and chunked, without running it or allocating anything."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
import torch.fx as fx
from functorch.compile import make_boxed_func
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._pytree import tree_map_only

from sortpass.backend import aot_graphs
from sortpass.chunk_pass import rewrite_graph
from sortpass.config import ChunkConfig, format_bytes
from sortpass.devices import as_if_on
from sortpass.errors import EstimateError
from sortpass.fallback import same_graph
from sortpass.measure import own_code
from sortpass.memory import graph_peak
from sortpass.report import PassReport


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
    config = ChunkConfig.from_options(options)
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    peaks: list[tuple[int, int]] = []
    reports: list[PassReport] = []

    def look_at(gm: fx.GraphModule, example_inputs: Any) -> Callable[..., Any]:
        spare = same_graph(gm)
        with as_if_on(device):
            whole = graph_peak(gm, config.inner)
            report = rewrite_graph(spare, config)
        reports.append(report)
        peaks.append((whole, whole if report.peak_bytes_chunked is None else report.peak_bytes_chunked))
        return make_boxed_func(gm.forward)

    def call(*tensors: Any) -> Any:
        return fn(*tensors)

    with mode:
        fakes = tree_map_only(torch.Tensor, lambda tensor: _fake(tensor, mode), args)
        compiled = torch.compile(own_code(call), backend=aot_graphs(look_at, config.inner), dynamic=False)
        try:
            compiled(*fakes)
        except torch._dynamo.exc.TorchDynamoException as error:
            raise EstimateError(f"{_name(fn)} does not trace: {error}") from error
        except Exception as error:
            raise EstimateError(f"{_name(fn)} cannot be followed without running it: {error}") from error
    whole, chunked = (max(side, default=0) for side in zip(*peaks, strict=True)) if peaks else (0, 0)
    return Estimate(whole, chunked, tuple(reports))


def _fake(tensor: torch.Tensor, mode: FakeTensorMode) -> torch.Tensor:
    if isinstance(tensor, FakeTensor) and tensor.fake_mode is mode:
        return tensor
    device = "cpu" if tensor.device.type == "meta" else tensor.device
    return torch.empty_strided(
        tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device, requires_grad=tensor.requires_grad
    )


def _name(fn: Any) -> str:
    return getattr(fn, "__name__", type(fn).__name__)
