"""``allow_rng=True``: draws that run in the windows, so that of a sampler only token ids leave a region."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers import as_list, assert_same, capture_graph, compile_chunked, compile_whole
from torch.export import export

import sortpass
from sortpass import ConfigError, DeclineCode, PassReport
from sortpass.measure import peak_bytes
from sortpass.report import op_name
from sortpass.rules import is_draw

RNG = {"allow_rng": True, "anchors": "rowwise", "row_chunk": 4}


def top_p(logits: Any) -> Any:
    values, index = logits.sort(-1)
    drop = values.softmax(-1).cumsum(-1) <= 0.1
    return logits.masked_fill(drop.scatter(-1, index, drop), -torch.inf)


def sample(logits: Any) -> Any:
    return top_p(logits).softmax(-1).multinomial(1)


def race(logits: Any) -> Any:
    probs = top_p(logits).softmax(-1)
    return (probs / torch.empty_like(probs).exponential_()).argmax(-1)


def gumbel(logits: Any) -> Any:
    scores = top_p(logits)
    return (scores - (-torch.rand_like(scores).log()).log()).argmax(-1)


SAMPLERS = (sample, race, gumbel)


def seeded(step: Callable[..., Any], *args: Any, seed: int = 1) -> list[Any]:
    """Results of one call from a fixed seed, and the generator's state afterwards."""
    torch.manual_seed(seed)
    return [*as_list(step(*args)), torch.get_rng_state()]


def chunked_and_report(fn: Any, *args: Any, inner: str = "aot_eager", **options: Any) -> tuple[Any, PassReport]:
    with sortpass.capture_reports() as reports:
        step = compile_chunked(fn, inner, **{**RNG, **options})
        step(*args)
    return step, reports[0]


def draws_in(report: PassReport) -> list[str]:
    known = {str(op) for op in sortpass.rules.registered_rules() if is_draw(op)}
    return [op for site in report.sites for op in site.region_ops if op in known]


@pytest.mark.parametrize("form", ["loop", "unroll"])
@pytest.mark.parametrize("fn", SAMPLERS)
def test_only_tokens_leave_and_they_are_those_of_the_whole_where_windows_do_not_overlap(fn: Any, form: str) -> None:
    logits = torch.randn(20, 50)
    whole = seeded(compile_whole(fn), logits)
    chunked, report = chunked_and_report(fn, logits, form=form)
    (site,) = report.sites
    assert len(draws_in(report)) == 1 and site.exactness == "distribution" and site.boundary == ()
    assert_same(whole, seeded(chunked, logits))


FILLS: dict[str, Callable[[Any], Any]] = {
    "multinomial": lambda p: p.multinomial(1),
    "multinomial, replaced": lambda p: p.multinomial(5, replacement=True),
    "multinomial of several": lambda p: p.multinomial(3),
    "exponential": lambda p: torch.empty_like(p).exponential_(),
    "rand_like": torch.rand_like,
    "rand": lambda p: p + torch.rand(p.shape),
    "randint": lambda p: p + torch.randint(0, 99, p.shape),
    "bernoulli": torch.bernoulli,
    "dropout": lambda p: F.dropout(p, 0.5),
    "randn_like": torch.randn_like,
    "normal": lambda p: torch.normal(p, 1.0),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", FILLS)
def test_cpu_kernels_fill_rows_in_order(name: str, dtype: torch.dtype) -> None:
    def fn(logits: Any) -> Any:
        probs = logits.softmax(-1)
        return FILLS[name](probs)

    logits = torch.randn(20, 52, dtype=dtype)  # 4 rows of 52: a multiple of 16
    whole = seeded(compile_whole(fn), logits)
    for form in ("loop", "unroll"):
        chunked, report = chunked_and_report(fn, logits, form=form)
        assert draws_in(report)
        assert_same(whole, seeded(chunked, logits))


def test_normal_numbers_are_made_16_at_a_time() -> None:
    def fn(logits: Any) -> Any:
        return logits.softmax(-1) + torch.randn_like(logits)

    logits = torch.randn(20, 50)
    whole, (chunked, report) = seeded(compile_whole(fn), logits), chunked_and_report(fn, logits)
    assert draws_in(report) and not torch.equal(whole[0], seeded(chunked, logits)[0])


SEEDED: dict[str, Callable[[Any], Any]] = {
    "race": race,
    "gumbel": gumbel,
    "two draws": lambda x: x.sort(-1)[0] * torch.rand_like(x) + torch.randn(x.shape),
    "integers": lambda x: x.sort(-1)[0] + torch.randint_like(x, 1000),
    "dropout": lambda x: F.dropout(x.sort(-1)[0], 0.5),
}


@pytest.mark.parametrize("form", ["loop", "unroll"])
@pytest.mark.parametrize("name", SEEDED)
def test_what_inductor_computes_from_a_seed_is_the_same_bits_also_where_windows_overlap(name: str, form: str) -> None:
    logits = torch.randn(22, 50)  # 6 windows of 4
    whole = seeded(compile_whole(SEEDED[name], "inductor"), logits)
    chunked, report = chunked_and_report(SEEDED[name], logits, inner="inductor", form=form)
    assert draws_in(report) and report.sites[0].exactness != "distribution"
    assert_same(whole, seeded(chunked, logits))


def test_the_same_with_any_number_of_rows() -> None:
    whole = compile_whole(gumbel, "inductor", dynamic=True)
    with sortpass.capture_reports() as reports:
        chunked = compile_chunked(gumbel, "inductor", dynamic=True, **RNG)
        for rows in (20, 31, 40, 5, 2):
            logits = torch.randn(rows, 50)
            assert_same(seeded(whole, logits), seeded(chunked, logits))
    assert draws_in(reports[0])


@pytest.mark.parametrize("shape", [(9, 8, 50), (3, 20, 50), (20, 3, 50)])
def test_the_same_where_both_batch_dims_are_cut(shape: tuple[int, ...]) -> None:
    logits = torch.randn(shape)
    whole = seeded(compile_whole(SEEDED["two draws"], "inductor"), logits)
    chunked, report = chunked_and_report(SEEDED["two draws"], logits, inner="inductor")
    assert report.modified
    assert_same(whole, seeded(chunked, logits))


@pytest.mark.parametrize("inner", ["aot_eager", "inductor"])
def test_no_two_rows_share_their_noise(inner: str) -> None:
    def noise(logits: Any) -> Any:
        # Equal rows: what makes results of two rows equal can only be the noise.
        return logits.softmax(-1) + torch.rand_like(logits)

    for rows, row_chunk, form in itertools.product((32, 30), (1, 8), ("loop", "unroll")):
        chunked, report = chunked_and_report(noise, torch.zeros(rows, 16), inner=inner, row_chunk=row_chunk, form=form)
        assert draws_in(report)
        first, second = (seeded(chunked, torch.zeros(rows, 16), seed=seed)[0] for seed in (1, 2))
        assert len({tuple(row.tolist()) for row in (*first, *second)}) == 2 * rows


PROBS = torch.tensor([[0.5, 0.3, 0.15, 0.05], [0.1, 0.1, 0.1, 0.7], [0.0, 0.25, 0.25, 0.5]])
CRITICAL = {3: 16.3, 15: 37.7}
"""Of chi-square at a probability of 0.001, by degrees of freedom."""


def chi_square(counts: torch.Tensor, probs: torch.Tensor) -> float:
    """Of observed counts against a distribution; what cannot be drawn must not have been."""
    assert not counts[probs == 0].any()
    expected = (probs * counts.sum())[probs > 0]
    return float(((counts[probs > 0] - expected) ** 2 / expected).sum())


@pytest.mark.parametrize("inner", ["aot_eager", "inductor"])
@pytest.mark.parametrize("fn", [lambda x: x.softmax(-1).multinomial(1), SAMPLERS[1], SAMPLERS[2]])
def test_the_draws_of_a_row_have_its_distribution(fn: Any, inner: str) -> None:
    logits = PROBS.repeat(6, 1).log()  # 18 rows, windows of 4, which overlap
    chunked, report = chunked_and_report(fn, logits, inner=inner)
    assert draws_in(report)
    torch.manual_seed(0)
    tokens = torch.stack([chunked(logits).view(-1) for _ in range(1_000)])
    kept = top_p(PROBS.log()).softmax(-1) if fn in SAMPLERS else PROBS
    counts = F.one_hot(tokens, 4).sum(0).float()
    # One row of a thousand would fail by chance, if the seed were not fixed.
    for row in range(len(logits)):
        probs = kept[row % 3]
        assert chi_square(counts[row], probs) < CRITICAL[3]
    # Rows at one place of different windows, which begin at 0, 3, 7, 10, 14: their tokens are independent.
    for a, b in ((0, 7), (1, 8), (7, 14), (3, 10), (4, 11)):
        pairs = F.one_hot(tokens[:, a] * 4 + tokens[:, b], 16).sum(0).float()
        joint = torch.outer(kept[a % 3], kept[b % 3]).view(-1)
        assert chi_square(pairs, joint) < CRITICAL[15]


def test_a_draw_of_a_forward_is_not_made_again_in_the_backward() -> None:
    def fn(x: Any) -> Any:
        return F.dropout(x.sort(-1)[0].softmax(-1), 0.5)

    def gradient(step: Any, x: Any) -> list[Any]:
        torch.manual_seed(1)
        out = step(x.requires_grad_())
        return [out.detach(), *torch.autograd.grad(out.square().sum(), x)]

    for inner, form in itertools.product(("aot_eager", "inductor"), ("loop", "unroll")):
        x = torch.randn(20, 48)
        whole = gradient(compile_whole(fn, inner), x)
        with sortpass.capture_reports() as reports:
            chunked = gradient(compile_chunked(fn, inner, **RNG, form=form), x)
        assert draws_in(reports[0])
        for a, b in zip(whole, chunked, strict=True):
            torch.testing.assert_close(a, b)
        assert not whole[1][whole[0] == 0].isnan().any() and torch.equal(whole[0] == 0, chunked[0] == 0)


@pytest.mark.parametrize("form", ["loop", "unroll"])
def test_draws_before_and_after_a_region_keep_their_place(form: str) -> None:
    def fn(logits: Any) -> Any:
        before = torch.rand(3)
        tokens = logits.softmax(-1).multinomial(1)
        return before, tokens, torch.rand(3)

    logits = torch.randn(20, 50)
    whole = seeded(compile_whole(fn), logits)
    chunked, report = chunked_and_report(fn, logits, form=form)
    assert draws_in(report) == ["aten.multinomial.default"]
    assert_same(whole, seeded(chunked, logits))


def test_a_region_does_not_close_around_a_draw_outside() -> None:
    def fn(logits: Any) -> Any:
        probs = logits.softmax(-1)
        first = probs.multinomial(1)
        between = torch.randperm(5)
        return first, between, probs.multinomial(1, replacement=True)

    logits = torch.randn(20, 50)
    whole = seeded(compile_whole(fn), logits)
    chunked, report = chunked_and_report(fn, logits)
    assert len(draws_in(report)) == 1
    assert_same(whole, seeded(chunked, logits))


@pytest.mark.parametrize("inner", ["aot_eager", "inductor"])
def test_by_default_a_draw_stays_outside_and_the_report_says_how_to_change_that(inner: str) -> None:
    logits = torch.randn(20, 50)
    for fn in SAMPLERS:
        whole = seeded(compile_whole(fn, inner), logits)
        chunked, report = chunked_and_report(fn, logits, inner=inner, allow_rng=False)
        codes = [decline for decline in report.sites[0].boundary if decline.code is DeclineCode.RANDOM]
        assert len(codes) == 1 and "allow_rng=True" in codes[0].detail
        assert_same(whole, seeded(chunked, logits))


def test_bitwise_declines_a_draw_and_names_it_but_not_what_comes_from_a_seed() -> None:
    logits = torch.randn(20, 50)
    _, report = chunked_and_report(race, logits, exactness="bitwise")
    assert report.sites[0].code is DeclineCode.NOT_BITWISE and not report.modified
    assert "aten.exponential.default draws anew in each window" in report.sites[0].reason
    _, report = chunked_and_report(SEEDED["two draws"], logits, inner="inductor", exactness="bitwise")
    assert report.sites[0].exactness == "bitwise" and len(draws_in(report)) == 2


def test_a_generator_of_ones_own_stays_outside() -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(20, 50)
    gm = make_fx(lambda x: x.sort(-1)[0].softmax(-1).multinomial(1, generator=generator))(logits)
    report = sortpass.rewrite(gm, **RNG, min_bytes=1, force=True)
    assert report.modified and not draws_in(report)
    assert any("a generator that it was given" in decline.detail for decline in report.sites[0].boundary)


def test_an_exported_program_draws_in_its_pieces() -> None:
    class Sampler(torch.nn.Module):
        def forward(self, logits: Any) -> Any:
            return sample(logits)

    logits = torch.randn(20, 50)
    program = export(Sampler(), (logits,)).run_decompositions()
    whole = seeded(program.module(), logits)
    report = sortpass.rewrite(program, **RNG, min_bytes=1, force=True)
    assert draws_in(report) and report.sites[0].form == "unroll"
    assert_same(whole, seeded(program.module(), logits))


@pytest.mark.parametrize("inner", ["aot_eager", "inductor"])
@pytest.mark.parametrize("fn", SAMPLERS)
def test_the_peak_is_one_window_and_the_tokens(fn: Any, inner: str) -> None:
    rows, vocab = 256, 8_000
    logits = torch.randn(rows, vocab)
    whole, (chunked, report) = compile_whole(fn, inner), chunked_and_report(fn, logits, inner=inner, row_chunk=16)
    whole(logits)
    measured = [peak_bytes(lambda step=step: step(logits)) for step in (whole, chunked)]
    # A window of Inductor's merges its kernels, and so keeps a mask and the noise besides (rows are long, and few).
    assert measured[1] <= measured[0] * 16 / rows * (1.05 if inner == "aot_eager" else 1.3) + 2 * 8 * rows
    for predicted, real in zip((report.peak_bytes_whole, report.peak_bytes_chunked), measured, strict=True):
        assert abs(predicted / real - 1) < (0.02 if inner == "aot_eager" else 0.12)


def test_a_budget_counts_what_a_draw_takes() -> None:
    logits = torch.randn(512, 4_000)
    _, report = chunked_and_report(sample, logits, row_chunk=None, memory_budget="1MiB", force=False)
    assert report.sites[0].window_bytes <= 2**20 and draws_in(report)


def test_a_node_for_each_draw_is_left_in_the_loop() -> None:
    def fn(logits: Any) -> Any:
        probs = logits.softmax(-1)
        return probs.multinomial(1), probs.multinomial(1)  # equal calls, which nobody may take for one

    gm = capture_graph(fn, torch.randn(20, 50))
    sortpass.rewrite(gm, **RNG, min_bytes=1, force=True)
    body = gm.get_submodule("chunk_body_0")
    assert [op_name(node) for node in body.graph.nodes].count("aten.multinomial.default") == 2
    a, b = gm(torch.zeros(20, 50))
    assert not torch.equal(a, b)


def two_tokens_and_a_sum(logits: Any) -> Any:
    kept = top_p(logits).softmax(-1)
    return kept.multinomial(1), logits.sum(-1), kept.multinomial(1, replacement=True)


def test_compare_leaves_draws_out_and_says_so() -> None:
    options = {**RNG, "inner": "aot_eager", "min_bytes": 1, "force": True}
    seen = sortpass.compare(two_tokens_and_a_sum, torch.randn(20, 50), rounds=1, **options)
    assert seen.equal and seen.largest_difference == 0
    # Two draws of a region take turns at the generator, window by window.
    assert [text.split(":")[1].strip() for text in seen.draws] == ["value 0", "value 2"]
    assert "a draw, not compared (same distribution, other numbers): value 0" in str(seen)
    assert sortpass.compare(sample, torch.randn(20, 50), rounds=1, **options).draws == ()  # the same bits


def test_compare_still_shows_what_is_no_draw() -> None:
    calls: list[int] = []

    @torch._dynamo.disable
    def unsteady(x: Any) -> Any:
        calls.append(1)
        return x + (len(calls) == 2)  # the first chunked call

    def fn(logits: Any) -> Any:
        first, total, second = two_tokens_and_a_sum(logits)
        return first, unsteady(total), second

    options = {**RNG, "inner": "aot_eager", "min_bytes": 1, "force": True}
    seen = sortpass.compare(fn, torch.randn(20, 50), rounds=1, **options)
    assert len(seen.draws) == 2 and not seen.equal
    assert [text.split(":")[0] for text in seen.differences] == ["value 1"]


def test_a_wrong_value_is_named() -> None:
    with pytest.raises(ConfigError, match="option 'allow_rng' is 1"):
        sortpass.ChunkConfig(allow_rng=1)  # type: ignore[arg-type]
