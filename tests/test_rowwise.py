"""``anchors="rowwise"``: regions that no sort starts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers import assert_same, capture_graph, compile_chunked, compile_whole, run_both

import sortpass
from sortpass import ConfigError, DeclineCode
from sortpass.measure import peak_bytes


def log_probs(logits: Any, tokens: Any) -> Any:
    """Prompt log-probs without a sort: what an RL trainer or an engine computes."""
    lp = logits.float().log_softmax(-1)
    chosen = lp.gather(-1, tokens[:, None])
    return chosen.squeeze(-1), (lp > chosen).sum(-1), *lp.topk(3, -1)


def entropy(logits: Any) -> Any:
    probs = logits.float().softmax(-1)
    return -(probs * probs.log()).sum(-1)


OPS: dict[str, Callable[[Any, int], Any]] = {
    "log_softmax": lambda x, dim: x.log_softmax(dim).argmax(dim),
    "softmax": lambda x, dim: x.softmax(dim).amax(dim),
    "logsumexp": lambda x, dim: (x * 2).logsumexp(dim),
    "amax": lambda x, dim: (x * 2).amax(dim, keepdim=True),
    "argmax": lambda x, dim: (x * 2).argmax(dim),
    "cumsum": lambda x, dim: (x * 2).cumsum(dim),
    "sum": lambda x, dim: (x * 2).sum(dim),
}


@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize(("shape", "dim"), [((8, 5), 1), ((8, 5), 0), ((2, 7, 5), 2), ((5, 2, 7), 0), ((7, 5, 2), 1)])
@pytest.mark.parametrize("form", ["loop", "unroll"])
def test_a_region_may_start_from_each_op(name: str, shape: tuple[int, ...], dim: int, form: str) -> None:
    x = torch.randint(-8, 8, shape).float()
    whole, chunked, report = run_both(lambda x: OPS[name](x, dim), x, anchors="rowwise", row_chunk=2, form=form)
    assert report.num_rewritten >= 1
    for a, b in zip(whole, chunked, strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        torch.testing.assert_close(a, b)


def test_by_default_only_sorts_do() -> None:
    x = torch.randn(9, 20)
    assert run_both(entropy, x)[2].sites == ()
    assert run_both(entropy, x, anchors=("sort",))[2].sites == ()
    assert run_both(entropy, x, anchors=["sort", "rowwise"])[2].modified


@pytest.mark.parametrize("inner", ["aot_eager", "inductor"])
def test_log_probs_materialise_nothing_of_the_size_of_the_logits(inner: str) -> None:
    logits, tokens = torch.randn(256, 4000, dtype=torch.bfloat16), torch.randint(4000, (256,))
    options = {"anchors": "rowwise", "row_chunk": 16, "force": False}
    whole, chunked = compile_whole(log_probs, inner), compile_chunked(log_probs, inner, **options)
    results = whole(logits, tokens), chunked(logits, tokens)
    assert_same(*results) if inner == "aot_eager" else torch.testing.assert_close(*results)
    given = logits.numel() * logits.element_size()
    assert peak_bytes(lambda: whole(logits, tokens)) > 1.9 * given
    assert peak_bytes(lambda: chunked(logits, tokens)) < 0.6 * given


def test_two_steps_of_one_function_are_one_region() -> None:
    logits, tokens = torch.randn(32, 40), torch.randint(40, (32,))
    report = run_both(log_probs, logits, tokens, anchors="rowwise")[2]
    assert report.num_rewritten == len(report.sites) == 1


def test_a_region_without_a_sort_promises_no_indices() -> None:
    x = torch.randn(32, 40)
    for fn, level in ((lambda x: x.log_softmax(-1).argmax(-1), "bitwise"), (lambda x: x.sigmoid().argmax(-1), "close")):
        assert run_both(fn, x, anchors="rowwise")[2].sites[0].exactness == level


def test_a_sampler_without_a_sort_at_any_batch_size() -> None:
    def min_p(logits: Any) -> Any:
        probs = logits.softmax(-1)
        return logits.masked_fill(probs < 0.1 * probs.amax(-1, keepdim=True), -torch.inf)

    whole = compile_whole(min_p, dynamic=True)
    with sortpass.capture_reports() as reports:
        chunked = compile_chunked(min_p, dynamic=True, anchors="rowwise")
        for rows in (7, 12, 2, 40):
            x = torch.randn(rows, 30)
            assert torch.equal(whole(x), chunked(x))
    assert len(reports) <= 2


def test_what_a_compiler_fuses_away_is_left_to_it() -> None:
    gm = capture_graph(
        lambda x: x.float().logsumexp(-1), torch.randn(512, 40_000, dtype=torch.bfloat16), decompose=True
    )
    site = sortpass.rewrite(gm, anchors="rowwise", row_chunk=32).sites[0]
    assert site.code is DeclineCode.NO_GAIN and "by min_bytes=16,777,216" in site.reason


def test_a_sum_over_all_dims_has_no_rows() -> None:
    for fn in (lambda x: x.sum(), lambda x: x.sum((0, 1)), lambda x: x.argmax(), lambda x: x[0].sum(-1)):
        gm = capture_graph(fn, torch.randn(9, 20))
        assert not sortpass.rewrite(gm, anchors="rowwise", row_chunk=2, min_bytes=1, force=True).modified


def test_gradients_are_those_of_the_whole() -> None:
    x = torch.randn(9, 20, requires_grad=True)
    grads = []
    for fn in (compile_whole(entropy), compile_chunked(entropy, anchors="rowwise")):
        (grad,) = torch.autograd.grad(fn(x).sum(), x)
        grads.append(grad)
    torch.testing.assert_close(*grads)


def test_under_inductor_a_gradient_is_not_written_over_what_a_scatter_wrote_into() -> None:
    logits, tokens = torch.randn(256, 4000, requires_grad=True), torch.randint(4000, (256,))
    options = {"anchors": "rowwise", "row_chunk": 16, "min_bytes": 1 << 18, "force": False}

    def gradient(fn: Any) -> Any:
        return torch.autograd.grad(fn(logits, tokens).sum(), logits)

    def chosen(logits: Any, tokens: Any) -> Any:
        return logits.log_softmax(-1).gather(-1, tokens[:, None])

    whole, chunked = compile_whole(chosen, "inductor"), compile_chunked(chosen, "inductor", **options)
    torch.testing.assert_close(gradient(whole), gradient(chunked))
    assert peak_bytes(lambda: gradient(whole)) > 1.9 * logits.nbytes  # zeros with ones scattered in, and the gradient
    assert peak_bytes(lambda: gradient(chunked)) < 1.1 * logits.nbytes


@pytest.mark.parametrize("value", ["rows", ("sort", "rows"), (), 3])
def test_a_wrong_value_is_named(value: Any) -> None:
    with pytest.raises(ConfigError, match="option 'anchors'"):
        sortpass.ChunkConfig(anchors=value)
