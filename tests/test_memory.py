"""Measured peaks stay below a bound computed from the plan, and grow only by what must be returned."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers import compile_chunked, compile_whole
from samplers import SAMPLERS, inputs_for

from sortpass.measure import check_meter, peak_bytes

VOCAB = 4_000
FP32 = 4
SLACK = 0.3  # bytes per logit: small tensors, masks, the counter


def peak_per_logit(step: Any, args: tuple[Any, ...], rows: int) -> float:
    step(*args)
    return peak_bytes(lambda: step(*args)) / (rows * VOCAB)


def test_the_meter_reads_what_a_plain_sort_allocates() -> None:
    assert check_meter() == pytest.approx(12, rel=0.03)


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("row_chunk", [8, 32])
def test_a_samplers_peak_is_its_output_and_one_window(name: str, row_chunk: int) -> None:
    rows = 256
    args = inputs_for(name, rows, VOCAB)
    whole = peak_per_logit(compile_whole(SAMPLERS[name]), args, rows)
    chunked = peak_per_logit(compile_chunked(SAMPLERS[name], row_chunk=row_chunk), args, rows)
    # One window needs what whole needs (its own output chunk included), for row_chunk rows; the output is there anyway.
    assert chunked <= FP32 + whole * row_chunk / rows + SLACK
    assert chunked < whole


@pytest.mark.parametrize("inner", ["aot_eager", "inductor"])
def test_top_p_reaches_the_published_bound(inner: str) -> None:
    rows, row_chunk = 256, 16
    args = inputs_for("top_p", rows, VOCAB)
    chunked = peak_per_logit(compile_chunked(SAMPLERS["top_p"], inner, row_chunk=row_chunk), args, rows)
    assert chunked <= FP32 + 22 * row_chunk / rows + SLACK


@pytest.mark.parametrize("form, allowed", [("loop", 0.0), ("unroll", 12.0)])
def test_the_sort_alone_never_exceeds_whole_by_more_than_a_chunks_outputs(form: str, allowed: float) -> None:
    rows, row_chunk = 256, 16
    x = torch.randn(rows, VOCAB)
    step = compile_chunked(lambda x: x.sort(-1), scope="sort", form=form, row_chunk=row_chunk)
    # cat holds what it joins twice: the price of the unroll form.
    assert peak_per_logit(step, (x,), rows) <= 12 + 12 * row_chunk / rows + allowed + SLACK


def test_doubling_the_rows_adds_only_the_outputs() -> None:
    step = compile_chunked(SAMPLERS["top_p"], row_chunk=16)
    peaks = {}
    for rows in (128, 256):
        args = inputs_for("top_p", rows, VOCAB)
        peaks[rows] = peak_per_logit(step, args, rows) * rows * VOCAB
    assert peaks[256] - peaks[128] <= 128 * VOCAB * (FP32 + SLACK)


def test_both_batch_dims_above_the_chunk_are_bounded() -> None:
    x = torch.randn(32, 32, 1_000)
    step = compile_chunked(lambda x: x.sort(-1)[0].softmax(-1).cumsum(-1), row_chunk=8)
    step(x)
    assert peak_bytes(lambda: step(x)) / x.numel() <= FP32 + 22 * 8 / 1024 + SLACK
