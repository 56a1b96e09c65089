"""Dynamic rows: right for every batch size, in at most one compile more than the same function takes without."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers import assert_same, compile_chunked, compile_whole
from samplers import top_p
from torch._dynamo.utils import counters

import sortpass

MIXED = [5, 12, 30, 8, 9, 64, 3, 100, 17, 2, 1, 0, 33, 7, 200, 16, 15, 40, 1, 0]
IDS = torch.zeros(1, 1, dtype=torch.long)


def run_sizes(step: Any, sizes: list[int], *, mark: bool = False) -> tuple[list[Any], int]:
    """Outputs for each batch size, and how many graphs were compiled."""
    counters.clear()
    outs = []
    for rows in sizes:
        logits = torch.randn(rows, 50, generator=torch.Generator().manual_seed(rows))
        if mark:
            torch._dynamo.mark_dynamic(logits, 0)
        outs.append(step(IDS, logits))
    return outs, counters["stats"]["unique_graphs"]


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("inner", ["aot_eager", "inductor"])
def test_mixed_batch_sizes_take_at_most_one_compile_more(inner: str, dynamic: bool | None) -> None:
    whole, graphs_whole = run_sizes(compile_whole(top_p, inner, dynamic=dynamic), MIXED)
    torch._dynamo.reset()
    with sortpass.capture_reports() as reports:
        chunked, graphs_chunked = run_sizes(compile_chunked(top_p, inner, dynamic=dynamic, row_chunk=8), MIXED)
    assert_same(whole, chunked)
    assert any(report.modified for report in reports)
    assert graphs_chunked <= graphs_whole + 1


def test_mark_dynamic_holds_and_small_batches_stay_whole() -> None:
    sizes = [size for size in MIXED if size > 1]
    whole, graphs_whole = run_sizes(compile_whole(top_p), sizes, mark=True)
    torch._dynamo.reset()
    with sortpass.capture_reports() as reports:
        chunked, graphs_chunked = run_sizes(compile_chunked(top_p, row_chunk=8), sizes, mark=True)
    assert_same(whole, chunked)
    assert graphs_whole == 1
    assert sorted(report.num_rewritten for report in reports) == [0, 1]


def sorted_sums(x: Any) -> Any:
    return x.sort(-1)[0].cumsum(-1)


def run_shapes(step: Any, shapes: list[tuple[int, ...]]) -> tuple[list[Any], int]:
    counters.clear()
    outs = [step(torch.randn(shape, generator=torch.Generator().manual_seed(1))) for shape in shapes]
    return outs, counters["stats"]["unique_graphs"]


@pytest.mark.parametrize(("inner", "row_chunk"), [("aot_eager", 6), ("aot_eager", 2), ("inductor", 2)])
def test_rows_per_step_may_be_above_and_below_row_chunk_in_one_graph(inner: str, row_chunk: int) -> None:
    shapes = [(5, k, 7) for k in (5, 2, 3, 4, 9, 2, 7, 8, 6)]  # cut along the 5 or k, steps of more or less rows
    whole, graphs_whole = run_shapes(compile_whole(sorted_sums, inner), shapes)
    torch._dynamo.reset()
    with sortpass.capture_reports() as reports:
        chunked, graphs_chunked = run_shapes(compile_chunked(sorted_sums, inner, row_chunk=row_chunk), shapes)
    assert_same(whole, chunked)
    assert all(report.sites[0].row_chunk <= row_chunk for report in reports)
    assert graphs_chunked <= graphs_whole + 1


def test_two_varying_batch_dims_take_at_most_two_compiles_for_each_of_whole() -> None:
    shapes = [(b, t, 7) for b in (3, 2, 9, 4) for t in (5, 3, 8, 2)]  # a 1 is a graph of its own
    whole, graphs_whole = run_shapes(compile_whole(sorted_sums), shapes)
    torch._dynamo.reset()
    chunked, graphs_chunked = run_shapes(compile_chunked(sorted_sums, row_chunk=6), shapes)
    assert_same(whole, chunked)
    assert graphs_chunked <= 2 * graphs_whole


@pytest.mark.parametrize("rows", [(9, 4), (2, 30), (30, 2), (20, 20), (1, 50), (50, 1)])
def test_two_dynamic_batch_dims_are_right_and_bounded(rows: tuple[int, int]) -> None:
    def step(x: Any) -> Any:
        return x.sort(-1)[0].cumsum(-1)

    x = torch.randn(*rows, 11)
    with sortpass.capture_reports() as reports:
        chunked = compile_chunked(step, dynamic=True, row_chunk=4)(x)
    assert reports[0].sites[0].row_chunk <= 4
    assert torch.equal(chunked, step(x))


def test_rows_that_are_a_product_are_right() -> None:
    def step(x: Any) -> Any:
        return x.flatten(0, 1).sort(-1)[0].softmax(-1).view_as(x)

    chunked = compile_chunked(step, dynamic=True, row_chunk=4)
    for shape in [(3, 5, 9), (7, 2, 9), (1, 6, 9), (4, 4, 9)]:
        x = torch.randn(shape)
        assert torch.equal(chunked(x), compile_whole(step, dynamic=True)(x))


@pytest.mark.parametrize("inner", ["aot_eager", "inductor"])
def test_an_unbacked_row_count_is_right_for_any_count(inner: str) -> None:
    def step(x: Any, keep: Any) -> Any:
        return x[keep.nonzero().squeeze(1)].sort(-1)[0].cumsum(-1)

    x = torch.randn(40, 9)
    with (
        torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True),
        sortpass.capture_reports() as reports,
    ):
        chunked = compile_chunked(step, inner, row_chunk=4)
        for count in (0, 1, 3, 4, 5, 40):
            keep = torch.arange(40) < count
            assert torch.equal(chunked(x, keep), step(x, keep))
    assert reports[0].modified
    assert len(reports) == 1


def test_unroll_declines_dynamic_rows() -> None:
    with sortpass.capture_reports() as reports:
        compile_chunked(lambda x: x.sort(-1)[0], dynamic=True, form="unroll")(torch.randn(10, 5))
    assert reports[0].sites[0].code is sortpass.DeclineCode.DYNAMIC_ROWS
