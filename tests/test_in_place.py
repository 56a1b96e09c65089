"""Regions that are written over their own input, window by window."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers import assert_same, capture_graph, compile_chunked, compile_whole, ops_of

import sortpass
from sortpass import DeclineCode, PassReport
from sortpass.measure import peak_bytes

N, V = 64, 2000
INF = float("inf")
aten = torch.ops.aten


def top_k_top_p_(logits: torch.Tensor, k: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
    """vLLM's filter, into the caller's logits."""
    values, index = logits.sort(dim=-1)
    least = values.gather(1, (values.size(1) - k).unsqueeze(1))
    values.masked_fill_(values < least, -INF)
    drop = values.softmax(-1).cumsum(-1) <= 1 - p.unsqueeze(1)
    drop[:, -1] = False
    values.masked_fill_(drop, -INF)
    return logits.scatter_(1, index, values)


def drop_tail_(logits: torch.Tensor, k: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
    values, index = logits.sort(dim=-1, descending=True)
    drop = values.softmax(-1).cumsum(-1) > p.unsqueeze(1)
    logits.masked_fill_(drop.scatter(1, index, drop), -INF)
    return logits.argmax(-1)


def cool_(logits: torch.Tensor, k: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
    logits.div_(p.unsqueeze(1))
    return logits.softmax(-1).argmax(-1)


def arguments(rows: int = N, length: int = V) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(rows, length, generator=generator)
    return logits, torch.full((rows,), 50), torch.rand(rows, generator=generator) * 0.5 + 0.4


def run_in_place(
    fn: Callable[..., Any], args: tuple[torch.Tensor, ...], inner: str = "aot_eager", **options: Any
) -> tuple[PassReport, int]:
    """Run whole and chunked on copies of ``args``, compare results and what became of the arguments.

    Returns:
        The report, and the measured peak of a later call.
    """

    def copies() -> list[torch.Tensor]:
        # clone() would drop the strides of a slice.
        return [torch.as_strided(t._base.clone(), t.shape, t.stride()) if t._is_view() else t.clone() for t in args]

    ours, theirs, later = copies(), copies(), copies()
    with sortpass.capture_reports() as reports:
        chunked = compile_chunked(fn, inner, **options)
        result = chunked(*ours)
    expected = compile_whole(fn, "aot_eager")(*theirs)
    assert_same([expected, *theirs], [result, *ours])
    return reports[0], peak_bytes(lambda: chunked(*later))


@pytest.mark.parametrize("rows", [N, N + 3])
@pytest.mark.parametrize("fn", [top_k_top_p_, drop_tail_, cool_])
def test_nothing_of_the_logits_size_is_held(fn: Callable[..., Any], rows: int) -> None:
    report, peak = run_in_place(fn, arguments(rows), row_chunk=8, anchors="rowwise", force=False)
    (site,) = report.sites
    window = site.window_bytes
    assert site.written_over == ("arg0_1",) and "written over arg0_1" in site.reason
    assert peak <= window + 0.2 * rows * V
    assert report.peak_bytes_chunked == pytest.approx(peak, rel=0.02)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("rows", [N, N + 3])
def test_inductor_writes_in_place_too(rows: int, dynamic: bool) -> None:
    args = arguments(rows)
    report, peak = run_in_place(top_k_top_p_, args, "inductor", row_chunk=8, dynamic=dynamic)
    site = report.sites[0]
    assert len(site.written_over) == 1
    assert peak <= site.window_bytes + 0.2 * rows * V


def doubled_old_values(logits: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    old = logits * 2
    values, index = logits.sort(-1)
    logits.scatter_(1, index, values.cumsum(-1))
    return old.sum(0) + logits.sum(0)


def copied_old_values(logits: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    old = logits[:, 1:3].clone()
    values, index = logits.sort(-1)
    logits.scatter_(1, index, values.cumsum(-1))
    return old.sum(0) + logits.sum(0)[1:3]


def doubled_product(logits: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    product = logits @ weight
    return (product * 2).sum(0) + product.sort(-1)[0].sum(0)


@pytest.mark.parametrize("fn", [doubled_old_values, copied_old_values, doubled_product])
def test_old_values_are_not_written_over_where_a_compiler_computes_them_later(fn: Callable[..., Any]) -> None:
    args = torch.randint(-9, 9, (11, 8)).float(), torch.randint(-9, 9, (8, 8)).float()
    for inner, may_overwrite in (("aot_eager", True), ("inductor", False)):
        report, _ = run_in_place(fn, args, inner, scope="sort" if fn is doubled_product else "region")
        assert bool(report.sites[0].written_over) is may_overwrite


def test_a_copy_is_no_memory_of_its_own_where_a_compiler_may_drop_it() -> None:
    def step(logits: torch.Tensor) -> torch.Tensor:
        return logits.clone().sort(-1)[0] + 1

    for inner, target in (("aot_eager", ("clone",)), ("inductor", ())):
        gm = capture_graph(step, torch.randn(11, 8))
        report = sortpass.rewrite(gm, row_chunk=3, min_bytes=1, force=True, scope="sort", inner=inner)
        assert report.sites[0].written_over == target


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("row_chunk", [1, 2, 3, 4, 5, 7])
def test_windows_never_meet_rows_that_are_written(row_chunk: int, dynamic: bool) -> None:
    def count_(logits: torch.Tensor) -> torch.Tensor:
        # Each further time a row goes through changes it again.
        logits.copy_(logits.sort(-1)[0].cumsum(-1) + 1)
        return logits.sum(-1)

    compiled = compile_chunked(count_, row_chunk=row_chunk, dynamic=dynamic)
    for rows in (11, 12, 13, 17) if dynamic else (11,):
        logits = torch.randint(0, 9, (rows, 6)).float()
        expected = logits.sort(-1)[0].cumsum(-1) + 1
        total = compiled(logits)
        assert torch.equal(logits, expected) and torch.equal(total, expected.sum(-1))


def test_padded_logits_are_written_in_place() -> None:
    logits, k, p = arguments()
    padded = torch.zeros(N, V + 48)
    padded[:, :V] = logits
    report, peak = run_in_place(top_k_top_p_, (padded[:, :V], k, p), row_chunk=8)
    assert report.sites[0].written_over == ("arg0_1",)
    assert peak <= report.sites[0].window_bytes + 0.2 * N * V


def test_two_inputs_are_written_at_once() -> None:
    def both_(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        values, index = a.sort(-1)
        b.copy_(b.gather(-1, index) * 2)
        a.copy_(values)
        return values[:, 0] + 1

    report, _ = run_in_place(both_, (torch.randn(11, 8), torch.randn(11, 8)))
    assert set(report.sites[0].written_over) == {"arg0_1", "arg1_1"}


def test_what_is_read_of_the_old_values_is_read_before() -> None:
    def step(logits: torch.Tensor) -> torch.Tensor:
        old = logits
        values, index = old.sort(-1)
        new = old.scatter(1, index, values.cumsum(-1))
        column_sums = old.sum(0)  # all rows: no part of the region
        logits.copy_(new)
        return column_sums

    report, _ = run_in_place(step, (torch.randint(-9, 9, (11, 8)).float(),))
    assert report.sites[0].written_over == ("arg0_1",)


def test_nodes_nobody_reads_later_are_written_over() -> None:
    def step(hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        logits = hidden @ weight
        values, index = logits.sort(-1)
        return logits.scatter(1, index, values.cumsum(-1))

    args = torch.randn(N, 16), torch.randn(16, V)
    report, peak = run_in_place(step, args, row_chunk=8)
    assert report.sites[0].written_over == ("mm",)
    assert peak <= 4 * N * V + report.sites[0].window_bytes + 0.2 * N * V  # the logits, once


def old_values_needed_later(logits: torch.Tensor) -> torch.Tensor:
    new = logits.sort(-1)[0].cumsum(-1)
    column_sums = new.sum(0)
    after = logits + column_sums
    logits.copy_(new)
    return after


def other_rows_read(logits: torch.Tensor) -> torch.Tensor:
    new = logits.sort(-1)[0] + logits.sum(0)
    logits.copy_(new + logits.t())
    return new[:, 0] + 1


def view_read_later(logits: torch.Tensor) -> torch.Tensor:
    first = logits[0]
    new = logits.sort(-1)[0].cumsum(-1)
    after = first + new.sum(0)
    logits.copy_(new)
    return after


@pytest.mark.parametrize(
    ("fn", "why"),
    [
        (old_values_needed_later, "whose old values add"),
        (other_rows_read, "is a view of|rows of arg0_1 that other windows read"),
        (view_read_later, "whose old values"),
    ],
)
def test_what_cannot_be_written_in_place_says_why(fn: Callable[..., Any], why: str) -> None:
    report, _ = run_in_place(fn, (torch.randint(-9, 9, (9, 9)).float(),))
    site = next(site for site in report.sites if site.status == "rewritten")
    assert site.written_over == ()
    (decline,) = [decline for decline in site.boundary if decline.code is DeclineCode.COPIED_BACK]
    assert decline.node.startswith("copy_")
    assert re.search(why, decline.detail), decline.detail


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda graph, new: new, "a tensor that is also returned, as masked_fill"),
        (lambda graph, new: graph.call_function(aten.slice.Tensor, (new, 1, 0, 2)), "also returned, as slice"),
        (lambda graph, new: graph.call_function(aten.slice.Tensor, (logits_of(graph), 1, 0, 2)), "what slice"),
    ],
)
def test_what_is_returned_shares_no_memory_with_the_input(change: Callable[..., Any], why: str) -> None:
    gm = capture_graph(drop_tail_, *arguments(12, 20))
    (copy,) = gm.graph.find_nodes(op="call_function", target=aten.copy_.default)
    (output,) = gm.graph.find_nodes(op="output")
    with gm.graph.inserting_before(copy):
        returned = change(gm.graph, copy.args[1])
        returned.meta.setdefault("val", copy.args[1].meta["val"][:, :2])
    output.args = ((returned,),)
    gm.recompile()
    site = sortpass.rewrite(gm, row_chunk=4, min_bytes=1, force=True).sites[0]
    assert site.status == "rewritten" and site.written_over == ()
    assert any(why in decline.detail for decline in site.boundary if decline.code is DeclineCode.COPIED_BACK)


def logits_of(graph: torch.fx.Graph) -> torch.fx.Node:
    return graph.find_nodes(op="placeholder")[0]


def test_the_copy_at_the_end_is_gone() -> None:
    gm = capture_graph(drop_tail_, *arguments(12, 20))
    assert "aten.copy_.default" in ops_of(gm)
    report = sortpass.rewrite(gm, row_chunk=4, min_bytes=1, force=True, inner="aot_eager")
    assert report.sites[0].written_over == ("arg0_1",)
    assert "aten.copy_.default" not in ops_of(gm)


def test_unrolled_it_is_copied_at_the_end() -> None:
    report, _ = run_in_place(drop_tail_, arguments(12, 20), form="unroll")
    assert report.sites[0].form == "unroll" and report.sites[0].written_over == ()


def test_no_later_region_moves_behind_the_writes() -> None:
    def step(logits: torch.Tensor) -> torch.Tensor:
        new = logits.sort(-1)[0].cumsum(-1)
        other = (logits * 2).sort(-1)[0] + new.sum(0)
        logits.copy_(new)
        return other

    report, _ = run_in_place(step, (torch.randint(-9, 9, (11, 8)).float(),))
    assert [site.written_over for site in report.sites] == [("arg0_1",), ("mul",)]


def test_a_loop_inside_of_a_loop_reads_what_the_outer_one_writes_over() -> None:
    def step(logits: torch.Tensor) -> torch.Tensor:
        logits.copy_(logits.softmax(-1).sort(-1)[0])
        return logits.sum()

    report, _ = run_in_place(step, (torch.randn(7, 6, 5).permute(1, 0, 2),), row_chunk=2)
    assert report.sites[0].written_over == ("arg0_1",) and report.sites[0].num_windows > 7
