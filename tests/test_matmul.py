"""``through_matmul=True``: logits that exist one window at a time."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers import capture_graph, compile_chunked, compile_whole, run_both

import sortpass
from sortpass import ConfigError, DeclineCode
from sortpass.measure import peak_bytes

HEAD = {"through_matmul": True, "anchors": "rowwise", "row_chunk": 4}


def log_probs(hidden: Any, weight: Any, tokens: Any) -> Any:
    """``[..., H]`` hidden states -> log-prob and rank of one token each."""
    lp = F.linear(hidden, weight).float().log_softmax(-1)
    chosen = lp.gather(-1, tokens.unsqueeze(-1))
    return chosen.squeeze(-1), (lp > chosen).sum(-1)


def top_p(hidden: Any, weight: Any, bias: Any) -> Any:
    logits = F.linear(hidden, weight, bias)
    values, index = logits.sort(-1)
    mask = values.softmax(-1).cumsum(-1) <= 0.1
    return logits.masked_fill(mask.scatter(-1, index, mask), -torch.inf).argmax(-1)


def head(*shape: int, vocab: int = 50, width: int = 8, dtype: torch.dtype = torch.float32) -> tuple[Any, ...]:
    """Small whole numbers, whose products are exact in any order."""
    return torch.randint(-3, 4, (*shape, width)).to(dtype), torch.randint(-3, 4, (vocab, width)).to(dtype)


# One step may hold more rows than a chunk, and then both dims are cut.
@pytest.mark.parametrize("shape", [(30,), (1, 30), (3, 20), (20, 3), (6, 9)])
@pytest.mark.parametrize("form", ["loop", "unroll"])
def test_a_head_over_any_batch_dims_is_taken_in(shape: tuple[int, ...], form: str) -> None:
    hidden, weight = head(*shape)
    for fn, last in ((log_probs, torch.randint(50, shape)), (top_p, torch.randint(-3, 4, (50,)).float())):
        whole, chunked, report = run_both(fn, hidden, weight, last, form=form, **HEAD)
        for a, b in zip(whole, chunked, strict=True):
            torch.testing.assert_close(a, b)
        (site,) = report.sites
        assert {"aten.mm.default", "aten.addmm.default"} & set(site.region_ops)
        assert site.exactness == "close"


@pytest.mark.parametrize("fn", [lambda h, w: (h @ w).sort(-1)[1], lambda h, w: (w.mT @ h.mT).sort(1)[1]])
def test_batched_products_are_taken_in(fn: Any) -> None:
    hidden, weight = head(5, 20)
    weights = weight.t().expand(5, 8, 50).contiguous()
    whole, chunked, report = run_both(fn, hidden, weights, **HEAD)
    assert torch.equal(whole[0], chunked[0])
    assert "aten.bmm.default" in report.sites[0].region_ops


def test_a_product_that_uses_the_rows_up_is_taken_in() -> None:
    def mean_embedding(logits: Any, table: Any) -> Any:
        return torch.tanh(logits.float().softmax(-1) @ table)

    whole, chunked, report = run_both(mean_embedding, torch.randn(30, 50), torch.randn(50, 8), **HEAD)
    torch.testing.assert_close(whole, chunked)
    assert report.sites[0].region_ops[-1] == "aten.mm.default"  # and nothing of what is small behind it


def test_a_region_ends_at_the_first_product() -> None:
    def mlp(hidden: Any, up: Any, weight: Any, tokens: Any) -> Any:
        return log_probs(torch.relu(hidden @ up), weight, tokens)

    hidden, weight = head(30)
    report = run_both(mlp, hidden, torch.randn(8, 8), weight, torch.randint(50, (30,)), **HEAD)[2]
    assert report.sites[0].region_ops.count("aten.mm.default") == 1
    assert "aten.relu.default" not in report.sites[0].region_ops


def test_by_default_a_product_stays_outside_and_the_report_says_how_to_change_that() -> None:
    hidden, weight = head(30)
    report = run_both(top_p, hidden, weight, torch.zeros(50))[2]
    assert [d.code for d in report.sites[0].boundary] == [DeclineCode.MATMUL]
    assert "through_matmul=True" in report.sites[0].boundary[0].detail


def test_bitwise_declines_it_and_names_the_product() -> None:
    hidden, weight = head(30)
    report = run_both(top_p, hidden, weight, torch.zeros(50), exactness="bitwise", **HEAD)[2]
    assert report.sites[0].code is DeclineCode.NOT_BITWISE
    assert "addmm" in report.sites[0].reason


@pytest.mark.parametrize("shape", [(30,), (3, 20)])
@pytest.mark.parametrize("form", ["loop", "unroll"])
def test_logits_that_are_read_flat_outside_are_made_outside(shape: tuple[int, ...], form: str) -> None:
    def with_logits(hidden: Any, weight: Any) -> Any:
        logits = hidden.view(-1, 8) @ weight.t()
        return logits, logits.view(*hidden.shape[:-1], 50).sort(-1)[1][..., 0]

    whole, chunked, report = run_both(with_logits, *head(*shape), form=form, **HEAD)
    assert all(torch.equal(a, b) for a, b in zip(whole, chunked, strict=True))
    assert report.modified and "aten.mm.default" not in report.sites[0].region_ops


def test_logits_that_are_also_returned_are_held_once() -> None:
    def with_logits(hidden: Any, weight: Any) -> Any:
        logits = F.linear(hidden, weight)
        return logits, logits.sort(-1)[1][..., 0]

    for shape in ((30,), (3, 20)):
        whole, chunked, report = run_both(with_logits, *head(*shape), **HEAD)
        assert all(torch.equal(a, b) for a, b in zip(whole, chunked, strict=True))
        assert report.modified and report.peak_bytes_chunked < 0.9 * report.peak_bytes_whole


@pytest.mark.parametrize("mark", [True, None])
def test_any_batch_size(mark: bool | None) -> None:
    whole = compile_whole(log_probs, dynamic=mark)
    with sortpass.capture_reports() as reports:
        chunked = compile_chunked(log_probs, dynamic=mark, **HEAD)
        for batch, length in ((3, 20), (4, 31), (31, 4), (9, 9), (2, 3), (7, 2)):
            hidden, weight = head(batch, length)
            tokens = torch.randint(50, (batch, length))
            for a, b in zip(whole(hidden, weight, tokens), chunked(hidden, weight, tokens), strict=True):
                torch.testing.assert_close(a, b)
    assert any("aten.mm.default" in site.region_ops for report in reports for site in report.sites)


@pytest.mark.parametrize(("inner", "fn"), [("aot_eager", log_probs), ("aot_eager", top_p), ("inductor", log_probs)])
def test_the_peak_is_one_window_and_the_outputs(inner: str, fn: Any) -> None:
    hidden, weight = head(512, vocab=8000)
    last = torch.randint(8000, (512,)) if fn is log_probs else torch.zeros(8000)
    options = {**HEAD, "row_chunk": 32, "force": False}
    chunked = compile_chunked(fn, inner, **options)
    with sortpass.capture_reports() as reports:
        chunked(hidden, weight, last)
    site = reports[0].sites[0]
    outputs = 2 * 512 * 8
    assert peak_bytes(lambda: chunked(hidden, weight, last)) < 1.05 * site.window_bytes + outputs
    assert site.window_bytes <= 32 * 8000 * 20
    whole = compile_whole(fn, inner)
    whole(hidden, weight, last)
    assert peak_bytes(lambda: whole(hidden, weight, last)) >= 512 * 8000 * 4


def test_no_further_from_float64_than_whole() -> None:
    hidden, weight = torch.randn(256, 64), torch.randn(3000, 64) / 8
    tokens = torch.randint(3000, (256,))
    exact, _ = log_probs(hidden.double(), weight.double(), tokens)
    whole, chunked, _ = run_both(log_probs, hidden, weight, tokens, **{**HEAD, "row_chunk": 16})
    errors = [(out[0].double() - exact).abs().max().item() for out in (whole, chunked)]
    assert errors[1] <= max(2 * errors[0], 4 * torch.finfo(torch.float32).eps * exact.abs().max().item())


def test_a_graph_of_linear_ops_and_a_bias_that_is_a_matrix() -> None:
    def fn(bias: Any, hidden: Any, weight: Any) -> Any:
        return torch.addmm(bias, hidden, weight.t()).sort(-1)[1]

    hidden, weight = head(30)
    whole, chunked, report = run_both(fn, torch.randint(-2, 2, (30, 50)).float(), hidden, weight, **HEAD)
    assert torch.equal(whole[0], chunked[0]) and "aten.addmm.default" in report.sites[0].region_ops
    gm = capture_graph(fn, torch.zeros(30, 50), hidden, weight)
    assert sortpass.rewrite(gm, through_matmul=True, row_chunk=4, min_bytes=1, force=True).modified


def test_a_wrong_value_is_named() -> None:
    with pytest.raises(ConfigError, match="option 'through_matmul' is 1"):
        sortpass.ChunkConfig(through_matmul=1)  # type: ignore[arg-type]
