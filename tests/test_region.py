"""Regions: a sampler's whole graph is one, and what couples rows ends it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers import TINY, assert_same, capture_graph, run_both
from samplers import SAMPLERS, inputs_for

import sortpass

ROWS, VOCAB = 37, 101


@pytest.mark.parametrize("decompose", [False, True], ids=["aot_eager", "inductor"])
@pytest.mark.parametrize("name", SAMPLERS)
def test_a_samplers_graph_is_one_region(name: str, decompose: bool) -> None:
    gm = capture_graph(SAMPLERS[name], *inputs_for(name, ROWS, VOCAB), decompose=decompose)
    report = sortpass.rewrite(gm, row_chunk=2, min_bytes=1, force=True)
    assert report.num_rewritten == len(report.sites) >= 1
    assert len({site.region_ops for site in report.sites}) == 1
    outside = {
        str(node.target)
        for node in gm.graph.nodes
        if node.op == "call_function"
        and isinstance(value := node.meta.get("val"), torch.Tensor)
        and value.numel() >= ROWS * VOCAB
    }
    # Nothing as large as the logits is made outside the loop but its own output.
    assert outside <= {"aten.empty_strided.default", "<built-in function getitem>", "aten.copy_.default"}


COUPLED: dict[str, Callable[[Any], Any]] = {
    "max over all": lambda x: (x - x.max()).sort()[0],
    "sum over all after": lambda x: (v := x.sort()[0]) / v.sum(),
    "any as a switch": lambda x: torch.where((x > 2).any(), x, -x).sort()[0],
    "mean(0)": lambda x: x.sort()[0].mean(0),
    "cumsum(0)": lambda x: x.sort()[0].cumsum(0),
    "softmax(0)": lambda x: x.sort()[0].softmax(0),
    "flip(0)": lambda x: x.sort()[0].flip(0),
    "roll(0)": lambda x: x.sort()[0].roll(1, 0),
    "permuted rows": lambda x: x.sort()[0][torch.tensor([3, 1, 2, 0, 4, 9, 8, 7, 6, 5])],
    "view(-1)": lambda x: x.sort()[0].view(-1).cumsum(0),
    "t()": lambda x: x.sort()[0].t().cumsum(0),
    "x + x.t()": lambda x: (x.sort()[0] + x.sort()[0].t()).cumsum(-1),
    "row of one": lambda x: x.sort()[0] - x.sort()[0][0],
    "rows[1:] - rows[:-1]": lambda x: (v := x.sort()[0])[1:] - v[:-1],
    "matmul": lambda x: x.sort()[0] @ x,
    "row-indexed write": lambda x: x.sort()[0].index_put((torch.arange(4), torch.arange(4)), torch.zeros(4)),
    "index_add(0)": lambda x: x.sort()[0].index_add(0, torch.tensor([0, 0]), torch.ones(2, 10)),
    "scatter along rows": lambda x: x.scatter(0, x.argsort(-1), x).cumsum(-1),
    "gather along rows": lambda x: x.gather(0, x.argsort(-1)).cumsum(-1),
    "beam view": lambda x: x.sort()[0].log_softmax(-1).view(2, -1).topk(3)[1] // 10,
    "out and back in": lambda x: (v := x.sort()[0]) - v.max() + v.cumsum(-1),
}


@pytest.mark.parametrize("name", COUPLED)
@pytest.mark.parametrize("form", ["loop", "unroll"])
def test_what_couples_rows_stays_outside_and_values_are_as_whole(name: str, form: str) -> None:
    x = torch.randn(10, 10)  # square, so that a rule that compared sizes would be wrong
    whole, chunked, report = run_both(COUPLED[name], x, form=form)
    assert report.modified
    assert_same(whole, chunked)


ROW_WISE: dict[str, Callable[[Any], Any]] = {
    "view(shape)": lambda x: x.sort()[0].view(x.shape[0], 1, x.shape[1]).softmax(-1).view(x.shape).cumsum(-1),
    "arange(rows)": lambda x: x.sort()[0] * torch.arange(x.shape[0])[:, None],
    "expand to rows": lambda x: x.sort()[0] + torch.linspace(0, 1, 20).expand(x.shape[0], -1),
    "new_zeros(shape)": lambda x: x.sort()[0].cumsum(-1) + x.new_zeros(x.shape),
    "full(rows)": lambda x: torch.where(x.sort()[0] > 0, torch.full((x.shape[0], 1), 2.0), x),
    "pad": lambda x: torch.nn.functional.pad(x.sort()[0], (1, 2)).cumsum(-1),
    "cat along vocab": lambda x: torch.cat([x, x.sort()[0]], -1).softmax(-1),
    "split along vocab": lambda x: (parts := x.sort()[0].split(7, -1))[0].sum(-1) + parts[1].sum(-1),
    "per-vocab bias": lambda x: (x + torch.linspace(0, 1, 20)).sort()[0].softmax(-1),
    "unsqueeze and squeeze": lambda x: x.sort()[0].unsqueeze(1).softmax(-1).squeeze(1),
    "top n": lambda x: x.log_softmax(-1).sort(descending=True)[0][:, :3].sum(-1),
    "index columns": lambda x: x.sort()[0][:, torch.tensor([1, 5, 3])].softmax(-1),
    "one_hot": lambda x: torch.nn.functional.one_hot(x.argsort(-1)[:, 0], 20).sum(-1),
    "rank of target": lambda x: (x.sort()[0] > x[:, :1]).sum(-1),
    "softplus of cast": lambda x: torch.nn.functional.softplus(x.double().sort()[0]).float(),
}


@pytest.mark.parametrize("name", ROW_WISE)
@pytest.mark.parametrize("form", ["loop", "unroll"])
def test_row_wise_neighbours_join_and_values_are_as_whole(name: str, form: str) -> None:
    whole, chunked, report = run_both(ROW_WISE[name], torch.randn(10, 20), form=form)
    assert len(report.sites[0].region_ops) >= 4
    assert_same(whole, chunked)


def test_a_view_that_is_returned_still_aliases_its_base() -> None:
    def fn(x: Any) -> Any:
        values = x.sort()[0]
        return values, values[:, -1], values[:, :2]

    whole, chunked, report = run_both(fn, torch.randn(10, 20))
    assert report.modified
    assert_same(whole, chunked)
    assert chunked[1].untyped_storage().data_ptr() == chunked[0].untyped_storage().data_ptr()
    assert chunked[1]._is_view() == whole[1]._is_view()


def test_two_outputs_that_need_one_cast_do_not_keep_it_twice() -> None:
    def fn(x: Any) -> Any:
        f = x.float()
        return f.sort()[0].softmax(-1), f

    _, _, report = run_both(fn, torch.randn(10, 20).bfloat16())
    # The cast is returned whole anyway, so it is a live-in, not computed in the loop and copied out.
    assert "aten._to_copy.default" not in report.sites[0].region_ops


def test_a_cast_up_at_the_entry_and_a_shrinking_exit_are_inside() -> None:
    def fn(x: Any, target: Any) -> Any:
        logprobs = x.float().log_softmax(-1)
        rank = (logprobs.sort(descending=True)[0] > logprobs.gather(-1, target)).sum(-1)
        return logprobs.gather(-1, target).squeeze(-1), rank

    x, target = torch.randn(64, 200).bfloat16(), torch.randint(0, 200, (64, 1))
    whole, chunked, report = run_both(fn, x, target, row_chunk=8)
    assert {"aten._to_copy.default", "aten.gather.default", "aten.sum.dim_IntList"} <= set(report.sites[0].region_ops)
    assert_same(whole, chunked)


def test_random_ops_keep_their_place_their_order_and_the_generator_state() -> None:
    def fn(x: Any) -> Any:
        noise_a = torch.rand_like(x)
        probs = (x + noise_a).sort()[0].softmax(-1)
        noise_b = torch.rand_like(x)
        draw = (probs / torch.empty_like(probs).exponential_()).argmax(-1)
        return draw, probs.cumsum(-1) + noise_b, torch.rand(3)

    x = torch.randn(10, 20)
    torch.manual_seed(3)
    from helpers import as_list, compile_chunked, compile_whole

    whole = as_list(compile_whole(fn)(x))
    state = torch.get_rng_state()
    torch.manual_seed(3)
    with sortpass.capture_reports() as reports:
        chunked = as_list(compile_chunked(fn)(x))
    assert reports[0].modified
    assert_same(whole, chunked)
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("form", ["loop", "unroll"])
def test_an_in_place_sampler_writes_into_the_callers_logits(form: str) -> None:
    logits, k, p = inputs_for("per_row_in_place", 10, 50)
    expected = logits.clone()
    SAMPLERS["per_row_in_place"](expected, k, p)
    before = logits.data_ptr()
    from helpers import compile_chunked

    out = compile_chunked(SAMPLERS["per_row_in_place"], form=form)(logits, k, p)
    assert torch.equal(logits, expected)
    assert out.data_ptr() == logits.data_ptr() == before


def test_regions_do_not_cross_an_in_place_write_in_a_graph_that_has_one() -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    def fn(x: Any) -> Any:
        y = x * 2
        v = y.sort()[0]
        y.mul_(3)
        return v + y, v.cumsum(-1) + x

    x = torch.randn(10, 20)
    gm = make_fx(fn)(x)
    report = sortpass.rewrite(gm, **TINY)
    assert report.modified
    assert any("in-place write" in decline.detail for decline in report.sites[0].boundary)
    assert_same(list(fn(x)), list(gm(x)))


def test_the_report_names_the_node_that_cut_the_region() -> None:
    _, _, report = run_both(lambda x: x.sort()[0].cumsum(0).softmax(-1), torch.randn(10, 20))
    blame = {decline.node: decline.detail for decline in report.sites[0].boundary}
    assert blame["cumsum"] == "aten.cumsum.default runs along the row dim (0), so rows are not independent"


def test_a_second_consumer_of_the_logits_is_computed_as_whole() -> None:
    whole, chunked, report = run_both(lambda x: (x.sort()[0].softmax(-1), x.log_softmax(-1)), torch.randn(10, 20))
    assert report.modified
    assert_same(whole, chunked)
