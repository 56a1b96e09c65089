"""The same claims on a GPU; skipped where there is none."""

from __future__ import annotations

import pytest
import torch
from helpers import assert_same, compile_chunked, compile_whole
from samplers import SAMPLERS, inputs_for

import sortpass
from sortpass.measure import peak_bytes

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

VOCAB = 32_064


@pytest.mark.parametrize("rows", [1, 64, 127, 128, 256, 8192])
def test_a_sort_takes_what_the_table_says(rows: int) -> None:
    keys = torch.randn(rows, VOCAB, device="cuda")
    predicted = sortpass.estimate(torch.sort, keys).peak_bytes_whole
    torch.sort(keys)
    assert peak_bytes(lambda: torch.sort(keys), "cuda") == pytest.approx(predicted, rel=0.03)


@pytest.mark.parametrize("rows", [1, 64, 127, 128, 256, 8192])
def test_sorts_are_bit_equal_in_windows_of_every_path(rows: int) -> None:
    keys = torch.randint(0, 50, (rows, VOCAB), device="cuda").float()
    whole = torch.sort(keys)
    for row_chunk in (32, 93, 128, 512):
        chunked = compile_chunked(torch.sort, row_chunk=row_chunk)(keys)
        assert_same(list(whole), list(chunked))


@pytest.mark.parametrize("inner", ["aot_eager", "inductor"])
@pytest.mark.parametrize("name", ["top_p", "typical", "per_row"])
def test_predictions_hold(name: str, inner: str) -> None:
    args = tuple(arg.cuda() for arg in inputs_for(name, 1024, VOCAB))
    step = compile_chunked(SAMPLERS[name], inner, row_chunk=128, force=False)
    with sortpass.capture_reports() as reports:
        step(*args)
    whole = compile_whole(SAMPLERS[name], inner)
    whole(*args)
    report, tolerance = reports[0], 0.05 if inner == "aot_eager" else 0.15
    for predicted, run in ((report.peak_bytes_whole, whole), (report.peak_bytes_chunked, step)):
        assert peak_bytes(lambda run=run: run(*args), "cuda") == pytest.approx(predicted, rel=tolerance)


def test_tokens_are_those_of_whole() -> None:
    args = tuple(arg.cuda() for arg in inputs_for("top_p", 512, VOCAB))
    chunked = compile_chunked(SAMPLERS["top_p"], "inductor", row_chunk=128)(*args)
    whole = compile_whole(SAMPLERS["top_p"], "inductor")(*args)
    assert torch.equal(whole.isinf(), chunked.isinf())
