"""A budget in bytes becomes rows per window: as many as fit, of a size the device likes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers import capture_graph, compile_chunked
from samplers import top_p

import sortpass
from sortpass.budget import budget_bytes, choose_rows
from sortpass.cache import cache_id
from sortpass.config import ChunkConfig, parse_bytes_maybe
from sortpass.measure import peak_bytes

VOCAB = 4_000
ROW_BYTES = 16 * VOCAB  # of HF's top-p under aot_eager, fp32
IDS = torch.zeros(1, 1, dtype=torch.long)


def rows_for(budget: Any, device: str = "cpu", row_bytes: int = 1_000) -> int:
    return choose_rows(lambda rows: rows * row_bytes, ChunkConfig(memory_budget=budget), device).rows


@pytest.fixture
def four_threads() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("four_threads")
def test_on_cpu_rows_are_a_multiple_of_the_threads_from_twice_their_number_on() -> None:
    assert [rows_for(budget * 1_000) for budget in (103, 9, 8, 7, 2, 1)] == [100, 8, 8, 7, 2, 1]


def test_on_cuda_rows_are_one_of_the_good_numbers_or_below_the_path_that_needs_more() -> None:
    assert [rows_for(budget * 1_000, "cuda") for budget in (9_999, 511, 255, 127, 94, 92, 2, 1)] == [
        *(512, 256, 128, 93, 93, 92, 2, 1)
    ]


def test_on_cuda_128_rows_are_taken_where_127_would_not_fit() -> None:
    def window(rows: int) -> int:
        return rows * (44 if rows < 128 else 32)

    assert choose_rows(window, ChunkConfig(memory_budget=128 * 32), "cuda").rows == 128


def test_a_row_count_wins_over_a_budget() -> None:
    config = ChunkConfig(memory_budget=1, row_chunk=7)
    assert choose_rows(lambda rows: rows * 1_000, config, "cpu").rows == 7


@pytest.mark.parametrize("inner", ["aot_eager", "inductor"])
def test_one_window_stays_within_the_budget(inner: str) -> None:
    logits = torch.randn(200, VOCAB)
    budget = 21 * ROW_BYTES
    step = compile_chunked(top_p, inner, row_chunk=None, memory_budget=budget, force=False)
    with sortpass.capture_reports() as reports:
        step(IDS, logits)
    site = reports[0].sites[0]
    assert site.window_bytes <= budget
    assert site.rows_why == f"memory_budget={budget / 2**20:.1f} MiB"
    slack = 1.15 if inner == "inductor" else 1.0  # what the prediction is held to
    assert peak_bytes(lambda: step(IDS, logits)) <= 4 * logits.numel() + budget * slack


def test_dynamic_rows_get_one_row_count_for_every_batch() -> None:
    with sortpass.capture_reports() as reports:
        step = compile_chunked(top_p, row_chunk=None, memory_budget=20 * ROW_BYTES, dynamic=True)
        for rows in (50, 200, 21):
            step(IDS, torch.randn(rows, VOCAB))
    assert [report.sites[0].row_chunk for report in reports] == [20]


def test_a_budget_below_one_row_gives_one_row_and_a_warning_that_names_the_bytes() -> None:
    gm = capture_graph(lambda x: top_p(IDS, x), torch.randn(9, VOCAB))
    with pytest.warns(
        UserWarning, match=r"memory_budget=1000 B is less than the 80,000 bytes that one row of sort needs"
    ):
        report = sortpass.rewrite(gm, memory_budget=1_000, min_bytes=1, inner="aot_eager")
    assert report.sites[0].row_chunk == 1


def test_all_rows_within_the_budget_are_left_alone() -> None:
    gm = capture_graph(lambda x: top_p(IDS, x), torch.randn(9, VOCAB))
    report = sortpass.rewrite(gm, memory_budget="1GiB", min_bytes=1, inner="aot_eager")
    assert report.sites[0].code is sortpass.DeclineCode.FEW_ROWS
    assert "that memory_budget allows" in report.sites[0].reason


def test_a_fraction_is_of_the_free_memory_and_steady() -> None:
    budgets = [budget_bytes(ChunkConfig(memory_budget=fraction), "cpu") for fraction in (0.001, 0.01)]
    assert budgets[0] > 0
    assert budgets[1] / budgets[0] == pytest.approx(10, rel=0.3)
    assert bin(budgets[0]).rstrip("0").count("1") <= 4
    with pytest.raises(sortpass.ConfigError, match="not known for device 'xpu'"):
        budget_bytes(ChunkConfig(memory_budget=0.5), "xpu")


@pytest.mark.parametrize(
    "text, expected",
    [
        ("512MiB", 2**29),
        ("1.5 gb", 1_500_000_000),
        ("7B", 7),
        ("MiB", None),
        ("5", None),
        ("-1MiB", None),
        ("0B", None),
    ],
)
def test_bytes_are_read_with_their_unit(text: str, expected: int | None) -> None:
    assert parse_bytes_maybe(text) == expected


@pytest.mark.parametrize("budget", ["512 apples", 0, -5, 1.5, 0.0, True, [1]])
def test_a_wrong_budget_says_what_was_expected(budget: Any) -> None:
    with pytest.raises(sortpass.ConfigError, match=r"option 'memory_budget' is .*; expected bytes"):
        ChunkConfig(memory_budget=budget)


def test_the_cache_id_tells_thread_counts_apart_where_they_decide(four_threads: Any) -> None:
    ids = []
    for threads in (4, 3):
        torch.set_num_threads(threads)
        ids.append((cache_id(ChunkConfig()), cache_id(ChunkConfig(row_chunk=8))))
    assert ids[0][0] != ids[1][0]
    assert ids[0][1] == ids[1][1]
