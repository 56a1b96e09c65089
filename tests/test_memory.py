"""Measured peaks stay below a bound computed from the plan, and grow only by what must be returned."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers import capture_graph, compile_chunked, compile_whole
from samplers import SAMPLERS, inputs_for

import sortpass
from sortpass.measure import check_meter, peak_bytes

VOCAB = 4_000
FP32 = 4
COUNTER_BYTES = 64  # what a loop's counter takes, and its condition
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


# tests/predictions.py has every sampler at every shape, and Inductor; it takes minutes.
CASES = [(name, 256, 4_000) for name in SAMPLERS] + [("typical", 60, 20_000), ("per_row_in_place", 512, 1_000)]


@pytest.mark.parametrize("name, rows, vocab", CASES)
def test_predictions_are_within_5_percent_of_what_is_measured(name: str, rows: int, vocab: int) -> None:
    args = inputs_for(name, rows, vocab)
    for row_chunk in (4, 16):
        predicted, measured = predicted_and_measured(name, args, "aot_eager", row_chunk)
        assert measured == pytest.approx(predicted, rel=0.05)


@pytest.mark.parametrize("name", ["top_p", "eta", "per_row_in_place"])
def test_predictions_are_within_15_percent_under_inductor(name: str) -> None:
    args = inputs_for(name, 256, VOCAB)
    predicted, measured = predicted_and_measured(name, args, "inductor", 16)
    assert measured == pytest.approx(predicted, rel=0.15)


def predicted_and_measured(name: str, args: tuple[Any, ...], inner: str, row_chunk: int) -> tuple[list[int], list[int]]:
    """Bytes, whole and chunked."""
    predicted = sortpass.estimate(SAMPLERS[name], *args, row_chunk=row_chunk, min_bytes=1, inner=inner)
    measured = []
    for step in (
        compile_whole(SAMPLERS[name], inner),
        compile_chunked(SAMPLERS[name], inner, row_chunk=row_chunk, force=False),
    ):
        step(*args)
        measured.append(peak_bytes(lambda step=step: step(*args)))
    return [predicted.peak_bytes_whole, predicted.peak_bytes_chunked], measured


def outputs_kept(x: Any) -> Any:
    return x.sort(-1)


def many_outputs(x: Any) -> Any:
    values, index = x.sort(-1)
    return values, index, values.softmax(-1), values.cumsum(-1), x.exp()


def read_in_turn(x: Any) -> Any:
    values, index = x.sort(-1)
    return values.cumsum(0).sum() + index.cumsum(0).sum() + values.exp().cumsum(0).sum()


def two_sorts(x: Any) -> Any:
    return x.sort(-1)[0].cumsum(-1), x.mT.contiguous().sort(-1)[1].to(torch.int32)


def largest(x: Any) -> Any:
    return x.topk(5)[0].softmax(-1)


def cast_up(x: Any) -> Any:
    return x.bfloat16().sort(-1)[0].float().cumsum(-1).bfloat16()


GRAPHS = {
    **{fn.__name__: fn for fn in (outputs_kept, many_outputs, read_in_turn, two_sorts, largest, cast_up)},
    **SAMPLERS,
}


CHOICES = [
    ("auto", "auto", 48),
    ("loop", "region", 6),
    ("unroll", "region", 12),
    ("loop", "sort", 48),
    ("unroll", "sort", 12),
]


@pytest.mark.parametrize("name", GRAPHS)
def test_no_graph_has_a_higher_peak_with_the_pass(name: str) -> None:
    rows, vocab = 96, 2_000
    args = inputs_for(name, rows, vocab) if name in SAMPLERS else (torch.randn(rows, vocab),)
    whole = compile_whole(GRAPHS[name])
    whole(*args)
    most = peak_bytes(lambda: whole(*args))
    for form, scope, row_chunk in CHOICES:
        chunked = compile_chunked(GRAPHS[name], row_chunk=row_chunk, form=form, scope=scope, force=False)
        chunked(*args)
        assert peak_bytes(lambda chunked=chunked: chunked(*args)) <= most + COUNTER_BYTES


def test_what_does_not_pay_is_declined_with_both_numbers_and_changes_nothing() -> None:
    gm = capture_graph(outputs_kept, torch.randn(100, 1_000))
    before = str(gm.graph)
    site = sortpass.rewrite(gm, row_chunk=8, min_bytes=1).sites[0]
    assert site.code is sortpass.DeclineCode.NO_GAIN
    assert "whole 1.2 MiB, chunked 1.2 MiB" in site.reason
    assert str(gm.graph) == before


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
