"""``recompute=True``: gradients through row-wise functions without keeping anything of a row's length."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers import TINY, as_list, assert_same, compile_chunked, compile_whole, ops_of
from test_on_oom import LimitedMemory
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.backends.debugging import boxed_nop
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._inductor.custom_graph_pass import CustomPartitionerFn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import sortpass
from sortpass.config import ChunkConfig
from sortpass.measure import own_code, peak_bytes
from sortpass.recompute import RecomputePartitioner

OPTIONS: dict[str, Any] = {"anchors": "rowwise", "recompute": True}
aten = torch.ops.aten


def chosen(logits: Any, tokens: Any) -> Any:
    return logits.float().log_softmax(-1).gather(-1, tokens.unsqueeze(-1)).squeeze(-1)


def with_entropy(logits: Any, tokens: Any) -> Any:
    lp = logits.float().log_softmax(-1)
    return lp.gather(-1, tokens.unsqueeze(-1)).squeeze(-1), -(lp.exp() * lp).sum(-1)


def with_temperature(logits: Any, tokens: Any) -> Any:
    return chosen(logits.float() / (1 + tokens.unsqueeze(-1) % 3), tokens)


def of_top_k(logits: Any, tokens: Any) -> Any:
    """The mask reads a slice of the sorted values: a view, which kept would keep all of them."""
    logits = logits.float()
    values = logits.sort(-1, descending=True)[0]
    return chosen(logits.masked_fill(logits < values[..., 9:10], -1e4), tokens)


def of_top_p(logits: Any, tokens: Any) -> Any:
    logits = logits.float()
    values, order = logits.sort(-1, descending=True)
    probs = values.softmax(-1)
    is_out = probs.cumsum(-1) - probs > 0.9
    return chosen(logits.masked_fill(torch.zeros_like(is_out).scatter(-1, order, is_out), -1e4), tokens)


def loss(logits: Any, tokens: Any) -> Any:
    tokens = tokens.where(tokens % 5 != 0, -100)
    return F.cross_entropy(logits.float().flatten(0, -2), tokens.flatten(), ignore_index=-100)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    fn.__name__: fn for fn in (chosen, with_entropy, with_temperature, of_top_k, of_top_p, loss)
}


def example(*shape: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits that want a gradient, and a token per row."""
    logits = (4 * torch.randn(shape)).to(dtype).requires_grad_()
    return logits, torch.randint(shape[-1], shape[:-1])


def gradient(fn: Callable[..., Any], logits: torch.Tensor, *args: Any) -> torch.Tensor:
    """The gradient of the outputs' sum, each element weighted differently."""
    outputs = as_list(fn(logits, *args))
    total = sum((out * torch.linspace(-1, 2, out.numel()).view(out.shape)).sum() for out in outputs)
    return torch.autograd.grad(total, logits)[0]


def kept_bytes(fn: Callable[..., Any], *args: torch.Tensor) -> int:
    """What the forward keeps for the backward, besides its arguments."""
    kept: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        outputs = as_list(fn(*args))
    for tensor in (*args, *outputs):
        kept.pop(tensor.untyped_storage().data_ptr(), None)
    return sum(kept.values())


def record_graphs(graphs: list[list[str]]) -> Callable[..., Any]:
    """An inner compiler that notes each graph's ops."""

    def inner(gm: torch.fx.GraphModule, example_inputs: Any) -> Any:
        graphs.append(ops_of(gm))
        return gm.forward

    return inner


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize(
    "dtype, shape", [(torch.float32, (11, 60)), (torch.bfloat16, (2, 7, 60)), (torch.float32, (7, 2, 60))]
)
def test_gradients_are_the_same_bits(name: str, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    args = example(*shape, dtype=dtype)
    whole = compile_whole(FUNCTIONS[name])
    with sortpass.capture_reports() as reports:
        chunked = compile_chunked(FUNCTIONS[name], **OPTIONS)
        torch.testing.assert_close(whole(*args), chunked(*args))
        assert_same([gradient(whole, *args)], [gradient(chunked, *args)])
    assert len(reports) == 2 and all(report.num_rewritten for report in reports)
    assert "aten._log_softmax_backward_data.default" in reports[1].sites[0].region_ops
    assert kept_bytes(chunked, *args) < 60 * 4 < kept_bytes(whole, *args)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_any_number_of_rows(name: str) -> None:
    whole = compile_whole(FUNCTIONS[name], dynamic=True)
    with sortpass.capture_reports() as reports:
        chunked = compile_chunked(FUNCTIONS[name], dynamic=True, **OPTIONS)
        for rows in (12, 4, 2, 40, 3):
            args = example(rows, 50)
            assert torch.equal(gradient(whole, *args), gradient(chunked, *args))
    assert len(reports) <= 2 * 2


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_nothing_of_a_rows_length_is_kept_or_made_but_the_gradient(name: str, dtype: torch.dtype) -> None:
    options = {**OPTIONS, "row_chunk": 16, "min_bytes": 1 << 18, "force": False}
    kept = []
    for vocab in (2_000, 6_000):
        args = example(256, vocab, dtype=dtype)
        chunked = compile_chunked(FUNCTIONS[name], **options)
        with sortpass.capture_reports() as reports:
            gradient(chunked, *args)
        kept.append(kept_bytes(chunked, *args))
        window = max(site.window_bytes or 0 for report in reports for site in report.sites)
        per_row = 256 * 100  # tokens, log-probs, sums, their gradients
        assert peak_bytes(lambda: gradient(chunked, *args)) <= args[0].nbytes + window + per_row
        assert kept_bytes(compile_whole(FUNCTIONS[name]), *args) >= 256 * vocab * 4
    assert kept[0] == kept[1] <= per_row


def test_without_the_option_the_forward_keeps_what_it_did() -> None:
    args = example(12, 60)
    kept = [kept_bytes(fn, *args) for fn in (compile_whole(chosen), compile_chunked(chosen, anchors="rowwise"))]
    assert kept[0] == kept[1] == 12 * 60 * 4


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("grad", ["off", "not wanted"])
def test_without_gradients_nothing_changes(name: str, grad: str) -> None:
    logits, tokens = example(12, 60)
    seen = []
    for recompute in (False, True):
        graphs: list[list[str]] = []
        fn = compile_chunked(FUNCTIONS[name], record_graphs(graphs), anchors="rowwise", recompute=recompute)
        with torch.set_grad_enabled(grad != "off"):
            fn(logits if grad == "off" else logits.detach(), tokens)
        seen.append(graphs)
    assert seen[0] == seen[1] and len(seen[0]) == 1


def test_below_min_bytes_values_are_kept() -> None:
    args = example(12, 60)
    assert kept_bytes(compile_chunked(chosen, min_bytes=12 * 60 * 4, **OPTIONS), *args) == 0
    assert kept_bytes(compile_chunked(chosen, min_bytes=12 * 60 * 4 + 1, **OPTIONS), *args) == 12 * 60 * 4


def test_a_matmul_is_kept_and_not_its_log_softmax() -> None:
    hidden, weight = torch.randn(12, 8).bfloat16().requires_grad_(), torch.randn(8, 60).bfloat16()
    tokens = torch.randint(60, (12,))
    graphs: list[list[str]] = []
    fns = compile_whole(of_head), compile_chunked(of_head, record_graphs(graphs), **OPTIONS)
    assert_same(*([gradient(fn, hidden, weight, tokens)] for fn in fns))
    assert "aten.mm.default" in graphs[0] and graphs[1].count("aten.mm.default") == 1  # the gradient's own
    assert [kept_bytes(fn, hidden, weight, tokens) // (12 * 60) for fn in fns] == [4, 2]


def of_head(hidden: Any, weight: Any, tokens: Any) -> Any:
    return chosen(hidden @ weight, tokens)


def test_random_draws_are_kept() -> None:
    def with_dropout(logits: Any, tokens: Any) -> Any:
        return chosen(F.dropout(logits * 2, 0.3), tokens)

    args, grads = example(12, 60, dtype=torch.bfloat16), []
    graphs: list[list[str]] = []
    whole, chunked = compile_whole(with_dropout), compile_chunked(with_dropout, record_graphs(graphs), **OPTIONS)
    for fn in (whole, chunked):
        torch.manual_seed(1)
        grads.append([gradient(fn, *args)])
    assert_same(*grads)
    assert not any("dropout" in op or "bernoulli" in op for op in graphs[1])
    assert kept_bytes(chunked, *args) < kept_bytes(whole, *args)


@pytest.mark.parametrize(
    "fn, made",
    [
        (lambda logits, tokens: (logits * 2).log_softmax(-1), "aten._log_softmax.default"),
        (lambda logits, tokens: (probs := logits.sigmoid(), chosen(probs, tokens)), "aten.sigmoid.default"),
    ],
)
def test_what_the_caller_gets_is_not_made_twice(fn: Callable[..., Any], made: str) -> None:
    args = example(12, 60)
    graphs: list[list[str]] = []
    whole, chunked = compile_whole(fn), compile_chunked(fn, record_graphs(graphs), **OPTIONS)
    assert torch.equal(gradient(whole, *args), gradient(chunked, *args))
    assert made not in graphs[1]


def test_what_no_region_would_start_from_is_kept() -> None:
    def permuted(logits: Any, order: Any) -> Any:
        return logits.gather(-1, order).exp().sum()

    args = example(12, 60)[0], torch.rand(12, 60).argsort(-1)
    graphs: list[list[str]] = []
    gradient(compile_chunked(permuted, record_graphs(graphs), **OPTIONS), *args)
    assert "aten.gather.default" not in graphs[1]


def test_what_would_raise_the_peak_more_than_it_frees_is_kept() -> None:
    args = example(64, 600)
    graphs: list[list[str]] = []
    options = {**OPTIONS, "exactness": "bitwise", "force": False}  # so that the backward is not chunked
    gradient(compile_chunked(of_top_p, record_graphs(graphs), **options), *args)
    assert "aten.sort.default" not in graphs[1] and "while_loop" not in graphs[1]


def test_one_output_of_a_call_is_not_repeated_without_the_others() -> None:
    def sorted_probs(logits: Any, tokens: Any) -> Any:
        values, order = logits.sort(-1)  # the values are the caller's, the order is kept
        return values, chosen(logits.gather(-1, order), tokens)

    args = example(12, 60)
    assert_same(
        *(
            [gradient(compiled, *args)]
            for compiled in (compile_whole(sorted_probs), compile_chunked(sorted_probs, **OPTIONS))
        )
    )


def write_later(x: Any, bias: Any, tokens: Any) -> Any:
    lp = chosen(x + bias, tokens)
    bias.add_(1)
    return lp


def write_before(x: Any, bias: Any, tokens: Any) -> Any:
    bias.view(-1)[3:].mul_(2)
    return chosen(x * bias.softmax(-1), tokens)


def write_through_a_small_value(x: Any, bias: Any, tokens: Any) -> Any:
    first = bias[:, :1].exp()
    bias.zero_()
    return chosen(x.sigmoid() * first, tokens)


def write_into_the_logits(x: Any, bias: Any, tokens: Any) -> Any:
    lp = chosen(x, tokens)
    x.mul_(2)
    return lp


def divide_the_logits(x: Any, bias: Any, tokens: Any) -> Any:
    x.div_(0.7)
    return chosen(x, tokens)


@pytest.mark.parametrize(
    "fn", [write_later, write_before, write_through_a_small_value, write_into_the_logits, divide_the_logits]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_inputs_that_the_function_writes_into_are_not_read_again(fn: Callable[..., Any], dtype: torch.dtype) -> None:
    leaf, tokens = example(12, 60, dtype=dtype)
    bias = torch.randn(12, 60, dtype=dtype)
    results = []
    for compiled in (compile_whole(fn), compile_chunked(fn, **OPTIONS)):
        own = bias.clone()
        results.append([gradient(lambda leaf: compiled(leaf * 1.5, own, tokens), leaf), own])
    assert_same(*results)


def test_the_users_checkpoints_are_kept_to() -> None:
    def checkpointed(logits: Any, tokens: Any) -> Any:
        return checkpoint(chosen, logits, tokens, use_reentrant=False) + with_entropy(logits, tokens)[1]

    args = example(12, 60)
    chunked = compile_chunked(checkpointed, **OPTIONS)
    assert torch.equal(gradient(compile_whole(checkpointed), *args), gradient(chunked, *args))
    assert kept_bytes(chunked, *args) < 60 * 4


def test_what_the_user_says_is_to_be_saved_is() -> None:
    def policy(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        is_saved = op is aten._log_softmax.default
        return CheckpointPolicy.MUST_SAVE if is_saved else CheckpointPolicy.PREFER_RECOMPUTE

    def selective(logits: Any, tokens: Any) -> Any:
        contexts = functools.partial(create_selective_checkpoint_contexts, policy)
        return checkpoint(chosen, logits, tokens, use_reentrant=False, context_fn=contexts)

    args = example(12, 60)
    chunked = compile_chunked(selective, **OPTIONS)
    assert torch.equal(gradient(compile_whole(selective), *args), gradient(chunked, *args))
    assert kept_bytes(chunked, *args) >= 12 * 60 * 4


def test_an_input_written_to_after_the_forward_is_an_error_and_no_wrong_gradient() -> None:
    leaf, tokens = example(12, 60)
    chunked = compile_chunked(chosen, **OPTIONS)
    logits = leaf * 1
    out = chunked(logits, tokens)
    with torch.no_grad():
        logits.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_a_backward_may_run_twice_and_after_another_forward() -> None:
    args = [example(12, 60) for _ in range(2)]
    whole, chunked = compile_whole(chosen), compile_chunked(chosen, **OPTIONS)
    expected = [torch.autograd.grad(whole(*pair).sum(), pair[0])[0] for pair in args]
    outs = [chunked(*pair).sum() for pair in args]
    for out, (logits, _), grad in zip(outs, args, expected, strict=True):
        for retain in (True, False):
            assert torch.equal(torch.autograd.grad(out, logits, retain_graph=retain)[0], grad)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(outs[0], args[0][0])


def test_a_forward_that_runs_out_of_memory_shrinks_and_a_backward_does_not() -> None:
    args, memory = example(40, 60), LimitedMemory(4)
    chunked = compile_chunked(of_top_k, memory, on_oom="shrink", **{**OPTIONS, "row_chunk": 16})
    with sortpass.capture_reports() as reports:
        assert torch.equal(gradient(chunked, *args), gradient(compile_whole(of_top_k), *args))
    assert [report.sites[0].row_chunk for report in reports] == [16, 8, 4, 4]  # the last is the backward
    out, compiles = chunked(*args), memory.compiles
    memory.rows = 2
    with pytest.raises(torch.OutOfMemoryError):
        out.sum().backward()
    assert memory.compiles == compiles


def test_explain_shows_the_backward_and_a_forward_that_keeps_less() -> None:
    args = example(256, 2_000)
    options = {"inner": "aot_eager", "row_chunk": 16, "min_bytes": 1 << 18, "anchors": "rowwise"}
    kept, peaks = [], []
    for recompute in (False, True):
        forward, backward = sortpass.explain(with_entropy, *args, recompute=recompute, **options).graphs
        kept.append(len(forward.before.graph.output_node().args[0]))
        peaks.append(backward.peak_bytes_chunked / args[0].nbytes)
    assert "[256, 2000]" in backward.report.sites[0].shape and backward.report.num_rewritten == 1
    assert peaks[1] < 1.5 < peaks[0]
    assert args[0].grad is None


@pytest.mark.parametrize("name", ["of_top_k", "with_entropy"])
def test_inductor(name: str) -> None:
    fn, options = FUNCTIONS[name], {**OPTIONS, "row_chunk": 16, "min_bytes": 1 << 18, "force": False}
    args = example(256, 2_000, dtype=torch.bfloat16)
    whole, chunked = compile_whole(fn, "inductor"), compile_chunked(fn, "inductor", **options)
    with sortpass.capture_reports() as reports:
        grads = [gradient(compiled, *args) for compiled in (whole, chunked)]
    exact = gradient(
        lambda logits, tokens: fn(_Double(logits), tokens), args[0].detach().double().requires_grad_(), args[1]
    )
    errors = [(grad.double() - exact).abs().max() for grad in grads]
    assert errors[1] <= 1.01 * errors[0]
    window = max(site.window_bytes or 0 for report in reports for site in report.sites)
    assert peak_bytes(lambda: gradient(chunked, *args)) <= args[0].nbytes + window + 256 * 100
    assert kept_bytes(chunked, *args) <= 256 * 100


class _Double:
    """Logits whose ``float()`` keeps float64."""

    def __init__(self, logits: torch.Tensor) -> None:
        self.logits = logits

    def float(self) -> torch.Tensor:
        return self.logits


class _Theirs(CustomPartitionerFn):
    """A user's own partitioner."""

    calls = 0

    def __call__(self, gm: Any, joint_inputs: Any, **kwargs: Any) -> Any:
        _Theirs.calls += 1  # Inductor copies its options
        return min_cut_rematerialization_partition(gm, joint_inputs, **kwargs)

    def uuid(self) -> str:
        return "theirs"


def test_inductor_still_calls_the_users_partitioner() -> None:
    args = example(90, 60, dtype=torch.bfloat16)
    chunked = compile_chunked(of_top_k, "inductor", custom_partitioner_fn=_Theirs(), **OPTIONS)
    with sortpass.capture_reports():  # past the cache, which would call nobody
        gradient(chunked, *args)
    assert _Theirs.calls == 2 and kept_bytes(chunked, *args) < 90 * 60


def test_a_graph_that_cannot_be_cut_is_cut_as_without(caplog: pytest.LogCaptureFixture) -> None:
    def only_unmarked(gm: Any, joint_inputs: Any, **kwargs: Any) -> Any:
        if any("recompute" in node.meta for node in gm.graph.nodes):
            raise RuntimeError("no cut")
        return min_cut_rematerialization_partition(gm, joint_inputs, **kwargs)

    config = ChunkConfig(**{**TINY, **OPTIONS, "inner": "aot_eager"})
    args = example(90, 60)
    compiled = torch.compile(
        own_code(chosen),
        backend=aot_autograd(fw_compiler=boxed_nop, partition_fn=RecomputePartitioner(config, only_unmarked)),
    )
    with caplog.at_level("WARNING", "sortpass"):
        assert torch.equal(gradient(compiled, *args), gradient(chosen, *args))
    assert "no cut repeats" in caplog.text


def test_a_draw_that_the_user_checkpoints_is_the_same_in_the_backward() -> None:
    def checkpointed(logits: Any, tokens: Any) -> Any:
        return checkpoint(lambda x: chosen(F.dropout(x * 2, 0.3), tokens), logits, use_reentrant=False)

    args = example(90, 60)
    grads = []
    for compiled in (compile_whole(checkpointed), compile_chunked(checkpointed, **OPTIONS)):
        torch.manual_seed(3)
        grads.append(gradient(compiled, *args))
    assert torch.equal(*grads) and grads[0].eq(0).any()
