"""autograd, torch.func transforms and nested compilers: the same values, or the same error, as without the pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers import as_list, assert_same, compile_chunked, compile_whole
from torch.fx.experimental.proxy_tensor import make_fx

import sortpass

ROWS, VOCAB = 10, 12


def sorted_scores(x: Any) -> Any:
    return x.sort(-1)[0].softmax(-1).cumsum(-1)


def top_p(x: Any) -> Any:
    ordered, index = x.sort(-1)
    drop = ordered.softmax(-1).cumsum(-1) <= 0.3
    return x.masked_fill(drop.scatter(-1, index, drop), 0.0).softmax(-1)


def log_prob_of_rank(x: Any) -> Any:
    ordered, index = x.log_softmax(-1).sort(-1, descending=True, stable=True)
    return ordered[:, :3].sum(-1) + x.gather(-1, index[:, :1]).squeeze(-1)


def masked_in_place(x: Any) -> Any:
    ordered, index = x.sort(-1)
    ordered.masked_fill_(ordered < 0, 0.0)
    return torch.zeros_like(x).scatter(-1, index, ordered.square())


def spoils_a_saved_value(x: Any) -> Any:
    probs = x.sort(-1)[0].softmax(-1)
    out = probs.square()
    probs.masked_fill_(probs < 0.1, 0.0)  # softmax and square need it for backward
    return out


class SortInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x.sort(-1)[0] * 2

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        (x,) = ctx.saved_tensors
        return grad.gather(-1, x.argsort(-1).argsort(-1)).sort(-1)[0].cumsum(-1)


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    fn.__name__: fn for fn in (sorted_scores, top_p, log_prob_of_rank, masked_in_place)
}
FUNCTIONS["sort in backward"] = lambda x: SortInBackward.apply(x)


def outcome(run: Callable[..., Any], *args: Any) -> list[Any] | type[BaseException]:
    """What a run returns, detached; or the type of what it raises."""
    torch._dynamo.reset()
    try:
        return [out.detach() for out in as_list(run(*args))]
    except Exception as error:
        return type(error)


def assert_as_whole(
    run: Callable[[Callable[[Any], Any]], Any], fn: Callable[[Any], Any], *, chunks: bool = True
) -> None:
    """``run`` gets ``fn`` compiled without and with the pass; ``chunks``: the pass must have found something to do."""
    whole = outcome(lambda: run(compile_whole(fn)))
    with sortpass.capture_reports() as reports:
        chunked = outcome(lambda: run(compile_chunked(fn)))
    if isinstance(whole, type) or isinstance(chunked, type):
        assert whole == chunked
        return
    assert any(report.modified for report in reports) == chunks
    assert_same(whole, chunked)


def backward(fn: Callable[[Any], Any]) -> list[Any]:
    x = torch.linspace(-2, 2, ROWS * VOCAB).sin().view(ROWS, VOCAB).requires_grad_()
    out = fn(x)
    (grad,) = torch.autograd.grad((out * torch.arange(out.numel()).view_as(out)).sum(), x)
    return [out, grad]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_are_those_of_the_whole(name: str) -> None:
    assert_as_whole(backward, FUNCTIONS[name])


def test_writing_into_a_value_that_backward_needs_is_the_same_error_or_gradient() -> None:
    assert_as_whole(backward, spoils_a_saved_value)


def test_a_caller_who_spoils_a_saved_output_gets_the_same_error() -> None:
    def spoil(fn: Callable[[Any], Any]) -> Any:
        x = torch.randn(ROWS, VOCAB, generator=torch.Generator().manual_seed(1), requires_grad=True)
        out = fn(x)
        out.mul_(2)
        return torch.autograd.grad(out.sum(), x)[0]

    assert_as_whole(spoil, sorted_scores)


def test_double_backward_is_as_whole() -> None:
    def twice(fn: Callable[[Any], Any]) -> Any:
        x = torch.ones(ROWS, VOCAB, requires_grad=True)
        (grad,) = torch.autograd.grad(fn(x).square().sum(), x, create_graph=True)
        return torch.autograd.grad(grad.sum(), x)[0]

    assert_as_whole(twice, sorted_scores)


def logits(*shape: int) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


func = torch.func
OVER_COMPILED: dict[str, Callable[[Callable[[Any], Any]], Any]] = {
    "grad": lambda fn: func.grad(lambda x: fn(x).square().sum())(logits(ROWS, VOCAB)),
    "vjp": lambda fn: func.vjp(fn, logits(ROWS, VOCAB))[1](torch.ones(ROWS, VOCAB)),
    "jvp": lambda fn: func.jvp(fn, (logits(ROWS, VOCAB),), (logits(ROWS, VOCAB).sin(),)),
    "jacrev": lambda fn: func.jacrev(fn)(logits(ROWS, 3)),
    "vmap": lambda fn: func.vmap(fn)(logits(3, ROWS, VOCAB)),
    "vmap in_dims=1": lambda fn: func.vmap(fn, in_dims=1)(logits(ROWS, 3, VOCAB)),
    "nested vmap": lambda fn: func.vmap(func.vmap(fn))(logits(2, 3, ROWS, VOCAB)),
    "functionalize": lambda fn: func.functionalize(fn)(logits(ROWS, VOCAB)),
    "make_fx": lambda fn: make_fx(fn)(logits(ROWS, VOCAB))(logits(ROWS, VOCAB)),
    "compile": lambda fn: torch.compile(lambda x: fn(x) + 1, backend="eager")(logits(ROWS, VOCAB)),
    "forward AD": lambda fn: forward_ad(fn, logits(ROWS, VOCAB)),
    "no_grad then grad": lambda fn: [no_grad(fn, logits(ROWS, VOCAB)), *backward(fn)],
    "inference_mode": lambda fn: inference_mode(fn, logits(ROWS, VOCAB)),
}


def forward_ad(fn: Callable[[Any], Any], x: Any) -> Any:
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, x.sin())
        return tuple(torch.autograd.forward_ad.unpack_dual(fn(dual)))


def no_grad(fn: Callable[[Any], Any], x: Any) -> Any:
    with torch.no_grad():
        return fn(x)


def inference_mode(fn: Callable[[Any], Any], x: Any) -> Any:
    with torch.inference_mode():
        return fn(x).clone()


@pytest.mark.parametrize("name", OVER_COMPILED)
@pytest.mark.parametrize("fn", [sorted_scores, top_p], ids=lambda fn: fn.__name__)
def test_a_transform_over_a_compiled_function_ends_as_over_the_whole(name: str, fn: Callable[[Any], Any]) -> None:
    whole = outcome(lambda: OVER_COMPILED[name](compile_whole(fn)))
    chunked = outcome(lambda: OVER_COMPILED[name](compile_chunked(fn)))
    if isinstance(whole, type) or isinstance(chunked, type):
        assert whole == chunked
    else:
        assert_same(whole, chunked)


COMPILED_OVER: dict[str, tuple[Callable[[Any], Any], tuple[int, ...]]] = {
    "grad": (func.grad(lambda x: sorted_scores(x).square().sum()), (ROWS, VOCAB)),
    "per-sample grad": (func.vmap(func.grad(lambda x: sorted_scores(x).square().sum())), (ROWS, VOCAB)),
    "jvp": (lambda x: func.jvp(sorted_scores, (x,), (x.sin(),)), (ROWS, VOCAB)),
    "vmap of rows": (func.vmap(lambda x: sorted_scores(x)), (ROWS, VOCAB)),
    "vmap": (func.vmap(lambda x: top_p(x)), (3, ROWS, VOCAB)),
    "vmap in_dims=1": (func.vmap(lambda x: sorted_scores(x), in_dims=1), (ROWS, 3, VOCAB)),
    "vmap out_dims=1": (func.vmap(lambda x: top_p(x), out_dims=1), (3, ROWS, VOCAB)),
    "nested vmap": (func.vmap(func.vmap(lambda x: sorted_scores(x))), (2, 3, ROWS, VOCAB)),
    "functionalize": (func.functionalize(masked_in_place), (ROWS, VOCAB)),
    "compile": (torch.compile(lambda x: sorted_scores(x), backend="eager"), (ROWS, VOCAB)),
    "checkpoint": (
        lambda x: torch.utils.checkpoint.checkpoint(sorted_scores, x * 2, use_reentrant=False),
        (ROWS, VOCAB),
    ),
}


@pytest.mark.parametrize("name", COMPILED_OVER)
def test_a_compiled_transform_is_chunked_and_ends_as_the_whole(name: str) -> None:
    fn, shape = COMPILED_OVER[name]
    assert_as_whole(lambda compiled: compiled(logits(*shape)), lambda *args: fn(*args))


def test_compiling_a_chunked_function_again_gives_the_same_values() -> None:
    chunked = compile_chunked(sorted_scores)
    x = logits(ROWS, VOCAB)
    assert torch.equal(compile_chunked(lambda x: chunked(x) * 1.0)(x), sorted_scores(x))
    assert torch.equal(compile_chunked(chunked)(x), sorted_scores(x))


def test_gradients_through_an_unrolled_region_are_those_of_the_whole() -> None:
    whole = outcome(lambda: backward(compile_whole(top_p)))
    chunked = outcome(lambda: backward(compile_chunked(top_p, form="unroll")))
    assert_same(whole, chunked)


def test_forward_mode_gets_its_tangents_from_a_function_compiled_before_it() -> None:
    # The loop would return values without tangents and say nothing; under a dual level it is unrolled instead.
    step = compile_chunked(sorted_scores)
    with sortpass.capture_reports() as reports:
        x = logits(ROWS, VOCAB)
        assert torch.equal(step(x), sorted_scores(x))
        assert_same(list(forward_ad(sorted_scores, x)), list(forward_ad(step, x)))
    assert [report.sites[0].form for report in reports] in (["loop", "unroll"], ["loop"])  # torch 2.14 skips the second


@pytest.mark.parametrize("form", ["loop", "unroll"])
def test_a_rewritten_forward_graph_of_make_fx_with_its_backward_inside_is_as_whole(form: str) -> None:
    def step(x: Any) -> Any:
        return func.grad(lambda x: sorted_scores(x).square().sum())(x)

    x = logits(ROWS, VOCAB)
    gm = make_fx(step)(x)
    assert sortpass.rewrite(gm, row_chunk=3, min_bytes=1, force=True, form=form).modified
    assert torch.equal(gm(x), step(x))
