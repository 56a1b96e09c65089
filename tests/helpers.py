"""Compile a function with and without the pass and compare, the only difference being the pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx as fx
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd
from torch._inductor.decomposition import select_decomp_table

import sortpass
from sortpass import PassReport
from sortpass.measure import own_code

TINY = {"row_chunk": 3, "min_bytes": 1, "force": True, "scope": "region"}
"""Options under which every sort with more than three rows is rewritten, whether that lowers the peak or not."""


def compile_whole(fn: Callable[..., Any], inner: str = "aot_eager", **kwargs: Any) -> Callable[..., Any]:
    return torch.compile(own_code(fn), backend=inner, **kwargs)


def compile_chunked(fn: Callable[..., Any], inner: Any = "aot_eager", *, dynamic: Any = None, **options: Any) -> Any:
    return torch.compile(
        own_code(fn),
        backend="chunked_sort",
        options={**TINY, "inner": inner, **options},
        dynamic=dynamic,
    )


def run_both(
    fn: Callable[..., Any], *args: Any, inner: str = "aot_eager", **options: Any
) -> tuple[list[Any], list[Any], PassReport]:
    """Outputs whole, outputs chunked, and the report of the chunked graph."""
    whole = as_list(compile_whole(fn, inner)(*args))
    with sortpass.capture_reports() as reports:
        chunked = as_list(compile_chunked(fn, inner, **options)(*args))
    return whole, chunked, reports[0]


def assert_same(whole: Sequence[Any], chunked: Sequence[Any]) -> None:
    """Same dtypes, shapes, strides and bits; NaN equals NaN."""
    assert len(whole) == len(chunked)
    for a, b in zip(whole, chunked, strict=True):
        assert (a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride())
        assert torch.equal(a, b) or torch.equal(a.nan_to_num(), b.nan_to_num()) and torch.equal(a.isnan(), b.isnan())


def as_list(out: Any) -> list[Any]:
    return list(out) if isinstance(out, (tuple, list)) else [out]


def capture_graph(fn: Callable[..., Any], *args: Any, decompose: bool = False, dynamic: Any = None) -> fx.GraphModule:
    """The ATen inference graph of ``fn``: as ``aot_eager`` sees it, or decomposed as Inductor sees it."""
    graphs: list[fx.GraphModule] = []

    def keep(gm: fx.GraphModule, example_inputs: Any) -> Any:
        graphs.append(gm)
        return make_boxed_func(gm.forward)

    backend = aot_autograd(
        fw_compiler=keep,
        decompositions=select_decomp_table() if decompose else None,
        keep_inference_input_mutations=True,
    )
    torch.compile(fn, backend=backend, dynamic=dynamic)(*args)
    torch._dynamo.reset()
    return graphs[0]


def ops_of(gm: fx.GraphModule) -> list[str]:
    """The call targets of a graph, in order."""
    return [str(node.target) for node in gm.graph.nodes if node.op == "call_function"]
