"""Cases from public bug reports that the other test files do not cover by their subject."""

from __future__ import annotations

import gc
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers import TINY, as_list, assert_same, compile_chunked, compile_whole, run_both

import sortpass

OUT_ARGUMENTS: dict[str, Callable[[], tuple[Any, Any]]] = {
    "contiguous": lambda: (torch.empty(10, 20), torch.empty(10, 20, dtype=torch.long)),
    "strided slice": lambda: (torch.empty(10, 40)[:, ::2], torch.empty(20, 10, dtype=torch.long).t()),
    "wrong size": lambda: (torch.empty(3), torch.empty(3, dtype=torch.long)),
    "wrong dtype": lambda: (torch.empty(10, 20, dtype=torch.float64), torch.empty(10, 20, dtype=torch.long)),
}


def outcome(step: Callable[..., Any], *args: Any) -> Any:
    """Outputs, or the type of what was raised."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return as_list(step(*args))
        except Exception as error:
            return type(error)


@pytest.mark.parametrize("kind", OUT_ARGUMENTS)
def test_out_arguments_behave_as_without_the_pass(kind: str) -> None:
    def step(x: Any, values: Any, indices: Any) -> Any:
        torch.sort(x, dim=-1, out=(values, indices))
        return values * 1, indices * 1, values

    x = torch.randn(10, 20)
    whole_args, chunked_args = OUT_ARGUMENTS[kind](), OUT_ARGUMENTS[kind]()
    whole, chunked = outcome(compile_whole(step), x, *whole_args), outcome(compile_chunked(step), x, *chunked_args)
    if isinstance(whole, type):
        assert chunked is whole
    else:
        assert_same([*whole, *whole_args], [*chunked, *chunked_args])


@pytest.mark.parametrize("name", ["topk", "kthvalue", "median", "mode"])
def test_what_is_no_sort_is_as_without_the_pass(name: str) -> None:
    def step(x: Any) -> Any:
        return getattr(torch, name)(x, *((3,) if name in ("topk", "kthvalue") else ()), dim=-1)

    whole, chunked, report = run_both(step, torch.randint(0, 5, (40, 30)).float(), force=False)
    assert report.num_rewritten == 0
    assert_same(whole, chunked)


def test_two_sorts_of_one_tensor_keep_one_order() -> None:
    def step(x: Any) -> Any:
        first, second = x.argsort(-1), x.argsort(-1)
        return first, second, (first == second).all(-1)

    whole, chunked, report = run_both(step, torch.randint(0, 3, (10, 20)))
    assert report.modified
    assert chunked[2].all()
    assert_same(whole, chunked)


def test_no_reference_to_the_callers_logits_is_kept() -> None:
    step = compile_chunked(lambda x: x.sort(-1)[0].softmax(-1))
    logits = torch.randn(10, 20)
    out = step(logits)
    gone = weakref.ref(logits)
    del logits
    gc.collect()
    assert gone() is None
    assert out.shape == (10, 20)


def test_a_cpu_scalar_a_per_row_and_a_per_vocab_tensor_keep_their_roles() -> None:
    def step(x: Any, k: Any, bias: Any, temperature: Any) -> Any:
        ordered, index = ((x + bias) / temperature).sort(-1)
        return torch.where(torch.arange(20) < k[:, None], ordered, 0.0).scatter(-1, index, ordered)

    args = torch.randn(10, 20), torch.randint(0, 20, (10,)), torch.randn(20), torch.tensor(0.7)
    whole, chunked, report = run_both(step, *args)
    assert len(report.sites[0].region_ops) >= 8
    assert_same(whole, chunked)


def test_a_compiled_function_inside_another_keeps_its_own_backend() -> None:
    inner = torch.compile(lambda x: x.sort(-1)[0], backend="chunked_sort", options={**TINY, "inner": "aot_eager"})

    def outer(x: Any) -> Any:
        return inner(x).cumsum(-1)

    x = torch.randn(10, 20)
    assert torch.equal(torch.compile(outer, backend="aot_eager")(x), outer(x))


def test_beam_scores_end_the_region_before_beams_and_vocab_are_merged() -> None:
    def step(logits: Any, beam_scores: Any) -> Any:
        logprobs = logits.log_softmax(-1)
        kept = torch.where(logprobs.sort(-1)[0].cumsum(-1) < -20, logprobs, -torch.inf)
        scores = (kept + beam_scores[:, None]).view(3, -1)
        top = scores.topk(4)
        return top[0], top[1] // logits.shape[-1], top[1] % logits.shape[-1]

    whole, chunked, report = run_both(step, torch.randn(12, 30), torch.randn(12))
    assert report.modified
    assert any("merges or splits the row dim" in d.detail for d in report.sites[0].boundary)
    assert_same(whole, chunked)


@pytest.mark.parametrize("shape", [(8, 8), (4, 4), (3, 3)])
def test_rows_k_and_vocab_of_one_size_are_not_mixed_up(shape: tuple[int, int]) -> None:
    def step(x: Any) -> Any:
        ordered, index = x.sort(-1)
        kept = ordered[:, : x.shape[0]].softmax(-1) + x.softmax(0)
        return kept, index.gather(-1, index), x.t().sort(0)[0].t() + kept.cumsum(-1)

    whole, chunked, report = run_both(step, torch.randn(shape), row_chunk=2)
    assert report.modified
    assert_same(whole, chunked)


def test_a_report_prints_what_was_decided() -> None:
    _, _, report = run_both(lambda x: (x.sort(-1)[0], x[:2].sort(-1)[0]), torch.randn(10, 20))
    assert str(report) == (
        "chunked 1 of 2 sorts: sort: loop of 4 windows, at most 3 rows each (row_chunk=3; a window holds 880 B), 2 ops "
        "in the region; predicted peak 2.5 KiB -> 1.6 KiB (12.8 -> 8.4 bytes per element); "
        "sort_1: declined: has 2 rows, no more than row_chunk=3"
    )
    assert isinstance(report, sortpass.PassReport)
