"""Follow a function with fake tensors: its ATen graphs as they are and as the pass leaves them; nothing is computed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
import torch.fx as fx
from functorch.compile import make_boxed_func
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._pytree import tree_leaves, tree_map_only

from sortpass.backend import aot_graphs
from sortpass.chunk_pass import rewrite_graph
from sortpass.config import ChunkConfig
from sortpass.devices import as_if_on
from sortpass.errors import EstimateError
from sortpass.fallback import same_graph
from sortpass.measure import own_callable
from sortpass.memory import graph_peak
from sortpass.report import PassReport
from sortpass.torch_compat import graph_break_reasons


@dataclasses.dataclass(frozen=True)
class TracedGraph:
    """One graph of a function.

    Attributes:
        before: as the pass gets it.
        after: as it leaves it; an untouched copy where nothing was rewritten.
        report: what was decided.
        peak_bytes_whole: predicted bytes above the inputs without the pass.
        peak_bytes_chunked: the same with it.
    """

    before: fx.GraphModule
    after: fx.GraphModule
    report: PassReport
    peak_bytes_whole: int
    peak_bytes_chunked: int


@dataclasses.dataclass(frozen=True)
class Trace:
    """The graphs of a function, and why there is more than one."""

    graphs: tuple[TracedGraph, ...]
    breaks: tuple[str, ...]


def trace_graphs(fn: Callable[..., Any], args: tuple[Any, ...], config: ChunkConfig, device: str | None) -> Trace:
    """Trace ``fn`` as ``torch.compile`` would and rewrite a copy of each graph.

    Raises:
        EstimateError: the function needs the values of a tensor to go on, or does not trace.
    """
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    graphs: list[TracedGraph] = []

    def look_at(gm: fx.GraphModule, example_inputs: Any) -> Callable[..., Any]:
        after = same_graph(gm)
        with as_if_on(device):
            whole = graph_peak(gm, config.inner)
            report = rewrite_graph(after, config)
        chunked = whole if report.peak_bytes_chunked is None else report.peak_bytes_chunked
        graphs.append(TracedGraph(same_graph(gm), after, report, whole, chunked))
        return make_boxed_func(gm.forward)

    name = getattr(fn, "__name__", type(fn).__name__)
    reasons_before = len(graph_break_reasons())
    with mode:
        fakes = tree_map_only(torch.Tensor, lambda tensor: _fake(tensor, mode), args)
        compiled = torch.compile(own_callable(fn), backend=aot_graphs(look_at, config), dynamic=False)
        try:
            _run_backward(compiled(*fakes), fakes)
        except torch._dynamo.exc.TorchDynamoException as error:
            raise EstimateError(f"{name} does not trace: {error}") from error
        except Exception as error:
            raise EstimateError(f"{name} cannot be followed without running it: {error}") from error
    return Trace(tuple(graphs), tuple(dict.fromkeys(graph_break_reasons()[reasons_before:])))


def _run_backward(outputs: Any, inputs: Any) -> None:
    """Have the backward graph compiled, which waits for its first call. (Not into ``.grad``: parameters are real.)"""
    made = [leaf for leaf in tree_leaves(outputs) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    wanted = [leaf for leaf in tree_leaves(inputs) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    if made and wanted:
        torch.autograd.grad(made, wanted, [torch.ones_like(out) for out in made], allow_unused=True)


def _fake(tensor: torch.Tensor, mode: FakeTensorMode) -> torch.Tensor:
    if isinstance(tensor, FakeTensor) and tensor.fake_mode is mode:
        return tensor
    device = "cpu" if tensor.device.type == "meta" else tensor.device
    return torch.empty_strided(
        tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device, requires_grad=tensor.requires_grad
    )
