"""When the inner compiler fails, or memory runs out: the bound still holds, and the message says what to do."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from helpers import compile_chunked
from torch._dynamo.exc import BackendCompilerFailed

import sortpass
from sortpass.measure import peak_bytes


def sort_cumsum(x: Any) -> Any:
    return x.sort(-1)[0].softmax(-1).cumsum(-1)


def failing_inner(gm: torch.fx.GraphModule, example_inputs: Any) -> Any:
    raise ZeroDivisionError("the inner compiler has a bug")


def test_a_failing_inner_compiler_leaves_the_chunked_graph_uncompiled_with_one_warning() -> None:
    x = torch.randn(64, 4_000)
    step = compile_chunked(sort_cumsum, failing_inner, row_chunk=4)
    with pytest.warns(UserWarning, match="ZeroDivisionError: the inner compiler has a bug.*but uncompiled") as caught:
        out = step(x)
    assert len(caught) == 1
    assert torch.equal(out, sort_cumsum(x))
    assert peak_bytes(lambda: step(x)) / x.numel() < 6  # whole: 16


def test_inductor_failing_on_a_chunked_graph_leaves_it_uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **kwargs: Any) -> Any:
        raise ZeroDivisionError("lowering has a bug")

    monkeypatch.setattr("torch._inductor.graph.GraphLowering.run", fail)
    x = torch.randn(64, 4_000)
    step = compile_chunked(sort_cumsum, "inductor", row_chunk=4)
    with (
        torch._inductor.config.patch(force_disable_caches=True),
        pytest.warns(UserWarning, match="lowering has a bug.*but uncompiled"),
        sortpass.capture_reports() as reports,
    ):
        out = step(x)
    assert [report.num_rewritten for report in reports] == [1]
    assert torch.allclose(out, sort_cumsum(x))
    assert peak_bytes(lambda: step(x)) / x.numel() < 6


def test_a_graph_that_was_not_rewritten_fails_as_without_the_pass() -> None:
    with pytest.raises(BackendCompilerFailed, match="the inner compiler has a bug"):
        compile_chunked(lambda x: x * 2, failing_inner)(torch.randn(4, 4))


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB."),
        RuntimeError("[enforce fail] . DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes."),
    ],
    ids=["cuda", "cpu"],
)
def test_running_out_of_memory_names_the_option_to_lower(error: RuntimeError) -> None:
    def inner(gm: torch.fx.GraphModule, example_inputs: Any) -> Any:
        def call(*args: Any) -> Any:
            raise error

        return call

    with pytest.raises(type(error), match="lower row_chunk or memory_budget to lower the peak") as raised:
        compile_chunked(sort_cumsum, inner)(torch.randn(10, 20))
    assert str(error) in str(raised.value)
    assert raised.value.__cause__ is error


def test_other_errors_at_run_time_are_not_touched() -> None:
    def inner(gm: torch.fx.GraphModule, example_inputs: Any) -> Any:
        def call(*args: Any) -> Any:
            raise RuntimeError("something else")

        return call

    with warnings.catch_warnings(), pytest.raises(RuntimeError, match="^something else$"):
        warnings.simplefilter("error")
        compile_chunked(sort_cumsum, inner)(torch.randn(10, 20))
