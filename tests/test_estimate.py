"""Peaks are predicted from shapes alone, and say what a compile then does."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers import compile_chunked
from samplers import SAMPLERS, inputs_for, top_p
from torch._subclasses import FakeTensorMode

import sortpass
from sortpass import estimate
from sortpass.measure import peak_bytes
from sortpass.scratch import CPU_SORT_BYTES, cuda_sort_bytes

IDS = torch.zeros(1, 1, dtype=torch.long)
BIG = (8192, 128_256)
OPTIONS: dict[str, Any] = {"inner": "aot_eager", "row_chunk": 64}


def big_logits(kind: str) -> torch.Tensor:
    if kind == "meta":
        return torch.empty(BIG, device="meta")
    if kind == "expanded":
        return torch.zeros(1, 1).expand(BIG)  # real, and its memory is one number
    with FakeTensorMode():
        return torch.empty(BIG)


@pytest.mark.parametrize("kind", ["meta", "fake", "expanded"])
def test_a_batch_of_4_gigabytes_is_estimated_without_allocating_it(kind: str) -> None:
    logits = big_logits(kind)
    found = []
    used = peak_bytes(lambda: found.append(estimate(top_p, IDS, logits, **OPTIONS)))
    assert used < 2**20
    rows, vocab = BIG
    assert found[0].peak_bytes_whole == 16 * rows * vocab
    assert found[0].peak_bytes_chunked == pytest.approx((4 * rows + 16 * 64) * vocab, rel=1e-6)
    assert found[0].peak_expr.startswith("whole 16*N*V; chunked max(4*N*V + 16*c*V")


@pytest.mark.parametrize("name", SAMPLERS)
def test_an_estimate_is_what_a_compile_reports(name: str) -> None:
    args = inputs_for(name, 100, 4_000)
    predicted = estimate(SAMPLERS[name], *args, row_chunk=8, min_bytes=1, inner="aot_eager")
    with sortpass.capture_reports() as reports:
        compile_chunked(SAMPLERS[name], row_chunk=8, force=False)(*args)
    assert list(predicted.reports) == reports
    assert predicted.peak_bytes_chunked == reports[0].peak_bytes_chunked < predicted.peak_bytes_whole


def test_what_would_not_be_rewritten_has_one_peak_and_says_why() -> None:
    found = estimate(lambda x: x.sort(-1), torch.empty(1000, 50_000, device="meta"), inner="aot_eager")
    assert found.peak_bytes_whole == found.peak_bytes_chunked
    assert "would not lower the peak" in str(found)


def test_another_devices_sort_is_estimated_without_it() -> None:
    logits = torch.empty(BIG, device="meta")
    per_element = {
        rows: estimate(torch.sort, logits, device="cuda", row_chunk=rows).peak_bytes_chunked / logits.numel()
        for rows in (64, 512)
    }
    assert per_element == pytest.approx({64: 12 + 44 * 64 / 8192, 512: 12 + 32 * 512 / 8192}, rel=1e-3)


def test_a_module_with_real_weights_is_followed() -> None:
    head = torch.nn.Linear(50, 16)
    found = estimate(lambda x: head(top_p(IDS, x)), torch.empty(90_000, 50, device="meta"), **OPTIONS)
    assert found.reports[0].num_rewritten == 1


def test_a_function_that_needs_values_says_so() -> None:
    def step(x: Any) -> Any:
        return top_p(IDS, x) if x.sum() > 0 else x

    with pytest.raises(sortpass.EstimateError, match="without running it"):
        estimate(step, torch.empty(BIG, device="meta"), **OPTIONS)


def test_the_probe_agrees_with_the_table_on_cpu() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        for scratch in sortpass.probe_sort("cpu", dtype=dtype).values():
            assert scratch == pytest.approx(CPU_SORT_BYTES, rel=0.03)


def test_the_table_for_cuda_is_that_of_the_kernel_sources() -> None:
    totals = {rows: 12 + cuda_sort_bytes(4, 128_256, rows) for rows in (2, 127, 128, 8192)}
    assert totals == {2: 44, 127: 44, 128: 32, 8192: 32}
    assert [10 + cuda_sort_bytes(2, 128_256, rows) for rows in (127, 128)] == [38, 28]
    assert cuda_sort_bytes(4, 4096, 8192) == 0
