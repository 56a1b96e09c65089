"""Functions of the shapes that engines and trainers run, through the backend and through hooks as engines set them."""

from __future__ import annotations

import pickle
import re
import sys
import types
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from engines import DRAWING, ENGINES, NEVER, TRAINED, gradient, inputs_for, vllm_prompt_logprobs
from helpers import as_list, assert_same, compile_chunked, compile_whole
from torch._inductor.custom_graph_pass import CustomGraphPass

import sortpass
from sortpass.measure import own_code, peak_bytes

ROWS, VOCAB, CHUNK = 128, 4_000, 8
OPTIONS: dict[str, Any] = {"row_chunk": CHUNK, "min_bytes": 1, "anchors": "rowwise"}
SLACK = 0.3  # bytes per logit: small tensors, masks, the counter

# Bytes per logit of what somebody outside of the region reads, or of the draw itself.
KEPT = {
    "vllm_sample": 8,  # the noise, before and after it is drawn
    "sglang_sample": 12,  # kept probabilities, int32 ids, what multinomial allocates
}
NUM_REGIONS = {"verl_logprobs_and_entropy": 2}  # log-probs and entropy share nothing but the logits


def copies(args: tuple[Any, ...]) -> list[Any]:
    return [arg.clone() if isinstance(arg, torch.Tensor) else arg for arg in args]


def run(step: Any, args: list[Any]) -> list[Any]:
    """Results of one call with fixed draws, and the arguments, which it may have written into."""
    torch.manual_seed(1)
    return [*as_list(step(*args)), *(arg for arg in args if isinstance(arg, torch.Tensor))]


def per_logit(step: Any, args: Any) -> float:
    return peak_bytes(lambda: step(*args)) / (ROWS * VOCAB)


@pytest.mark.parametrize("name", ENGINES)
def test_a_function_is_chunked_to_what_is_read_outside_and_gives_the_same_bits(name: str) -> None:
    args = inputs_for(name, ROWS, VOCAB)
    whole = compile_whole(ENGINES[name])
    with sortpass.capture_reports() as reports:
        chunked = compile_chunked(ENGINES[name], **OPTIONS, force=False)
        results = run(whole, copies(args)), run(chunked, copies(args))
    (report,) = reports  # one graph, so no graph break
    assert report.num_rewritten == len(report.sites) == NUM_REGIONS.get(name, 1)
    outside = {decline.detail.split()[0] for site in report.sites for decline in site.boundary}
    assert outside <= {"aten.exponential.default", "aten.multinomial.default", "aten.copy_.default"}
    assert_same(*results)
    measured = per_logit(chunked, args)
    assert measured <= KEPT.get(name, 0) + per_logit(whole, args) * CHUNK / ROWS + SLACK
    assert measured <= 1.05 * report.peak_bytes_chunked / (ROWS * VOCAB)


@pytest.mark.parametrize("name", DRAWING)
def test_with_allow_rng_only_tokens_are_left(name: str) -> None:
    args = inputs_for(name, ROWS, VOCAB)
    whole = compile_whole(ENGINES[name])
    with sortpass.capture_reports() as reports:
        chunked = compile_chunked(ENGINES[name], allow_rng=True, **OPTIONS, force=False)
        expected, tokens = run(whole, copies(args)), run(chunked, copies(args))
    assert [site.exactness for site in reports[0].sites] == ["distribution"]
    assert [(a.dtype, a.shape) for a in expected] == [(b.dtype, b.shape) for b in tokens]
    assert per_logit(chunked, args) <= per_logit(whole, args) * CHUNK / ROWS + SLACK


def test_a_whole_sampling_step_under_inductor() -> None:
    args = inputs_for("vllm_sample", ROWS, VOCAB)
    whole = compile_whole(ENGINES["vllm_sample"], "inductor")
    with sortpass.capture_reports() as reports:
        chunked = compile_chunked(ENGINES["vllm_sample"], "inductor", **OPTIONS, force=False)
        assert_same(run(whole, copies(args)), run(chunked, copies(args)))
    assert reports[0].num_rewritten == 1 and reports[0].sites[0].exactness == "indices-exact"
    # The noise is 4 bytes; whole has counts of the penalties, the sort and its indices besides.
    assert per_logit(chunked, args) <= 4 + per_logit(whole, args) * CHUNK / ROWS + SLACK


class EnginePasses(CustomGraphPass):
    """An engine's pass manager: passes of its own, in the slot it has claimed, one of which rewrites."""

    def __init__(self) -> None:
        self.seen: list[list[str]] = []
        self._id = uuid.uuid4().hex  # a constant would hit what an earlier test run left in Inductor's cache

    def __call__(self, graph: torch.fx.Graph) -> None:
        self.seen.append([str(node.target) for node in graph.nodes])
        graph.eliminate_dead_code()

    def uuid(self) -> str:
        return self._id


def assert_close_or_equal(results: list[Any], expected: list[Any]) -> None:
    """Ids and ranks are equal, log-probs as near as Inductor's reductions are."""
    for a, b in zip(results, expected, strict=True):
        torch.testing.assert_close(a, b) if a.is_floating_point() else torch.testing.assert_close(a, b, rtol=0, atol=0)


def test_in_an_inductor_config_beside_an_engines_passes() -> None:
    before, after = EnginePasses(), EnginePasses()
    config = {
        "post_grad_custom_pre_pass": (before, sortpass.ChunkedSortPass(**OPTIONS)),
        "post_grad_custom_post_pass": after,
    }
    args = inputs_for("sglang_seeded_sample", ROWS, VOCAB)
    with torch._inductor.config.patch(config), sortpass.capture_reports() as reports:
        step = torch.compile(own_code(ENGINES["sglang_seeded_sample"]))
        assert_close_or_equal(run(step, copies(args)), run(ENGINES["sglang_seeded_sample"], copies(args)))
    assert reports[0].num_rewritten == 1
    assert "aten.sort.default" in before.seen[0] and "while_loop" not in before.seen[0]
    assert "aten.sort.default" not in after.seen[-1] and "while_loop" in after.seen[-1]
    assert per_logit(step, args) <= 20 * CHUNK / ROWS + 8 * CHUNK / ROWS + SLACK  # float64 noise for one chunk


def test_a_dict_of_inductor_options_reaches_a_standalone_artifact_that_loads_chunked(tmp_path: Path) -> None:
    passes, saved = EnginePasses(), tmp_path / "artifact"
    inductor_compile_config = {
        "post_grad_custom_pre_pass": sortpass.ChunkedSortPass(**OPTIONS),
        "post_grad_custom_post_pass": passes,
        "epilogue_fusion": True,
    }

    def engine_backend(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Any:
        options = {"config_patches": inductor_compile_config}
        artifact = torch._inductor.standalone_compile(gm, example_inputs, dynamic_shapes="from_graph", options=options)
        artifact.save(path=str(saved), format="unpacked")
        return torch._inductor.CompiledArtifact.load(path=str(saved), format="unpacked")

    args = inputs_for("vllm_prompt_logprobs", ROWS, VOCAB)
    step = torch.compile(own_code(vllm_prompt_logprobs), backend=engine_backend)
    assert_close_or_equal(run(step, copies(args)), run(vllm_prompt_logprobs, copies(args)))
    assert "while_loop" in passes.seen[0]
    assert per_logit(step, args) < 9 * CHUNK / ROWS + SLACK < 4  # whole holds a float32 log-softmax


def test_the_pass_travels_to_workers_and_keeps_its_cache_id() -> None:
    hook = sortpass.ChunkedSortPass(**OPTIONS)
    there = pickle.loads(pickle.dumps(hook))
    assert there.config == hook.config and there.uuid() == hook.uuid()
    assert sortpass.ChunkedSortPass(row_chunk=CHUNK + 1).uuid() != hook.uuid()


@pytest.mark.parametrize("name", TRAINED)
def test_gradients_are_the_same_bits(name: str) -> None:
    args = inputs_for(name, ROWS, VOCAB)
    with sortpass.capture_reports() as reports:
        grads = [
            gradient(step, *args) for step in (compile_whole(ENGINES[name]), compile_chunked(ENGINES[name], **OPTIONS))
        ]
    assert torch.equal(*grads)
    assert reports[0].num_rewritten >= 1


@pytest.mark.parametrize("name", TRAINED)
def test_with_recompute_a_backward_holds_the_gradient_and_one_chunk(name: str) -> None:
    args, fn = inputs_for(name, ROWS, VOCAB), ENGINES[name]
    whole, chunked = compile_whole(fn), compile_chunked(fn, **OPTIONS, force=False, recompute=True)
    assert torch.equal(gradient(whole, *args), gradient(chunked, *args))
    measured, before = (peak_bytes(lambda fn=fn: gradient(fn, *args)) / (ROWS * VOCAB) for fn in (chunked, whole))
    assert measured <= args[0].element_size() + before * CHUNK / ROWS + SLACK


def test_under_inductor_the_backward_is_chunked_too() -> None:
    args, fn = inputs_for("verl_logprobs_and_entropy", ROWS, VOCAB), ENGINES["verl_logprobs_and_entropy"]
    with (
        torch._inductor.config.patch(post_grad_custom_pre_pass=sortpass.ChunkedSortPass(**OPTIONS)),
        sortpass.capture_reports() as reports,
    ):
        step = torch.compile(own_code(fn), dynamic=False)
        torch.testing.assert_close(gradient(step, *args), gradient(fn, *args))
    assert [report.num_rewritten for report in reports] == [1, 1]
    measured = peak_bytes(lambda: gradient(step, *args)) / (ROWS * VOCAB)
    assert measured <= 4 + 8 * CHUNK / ROWS + SLACK  # the gradient, and one chunk


def test_a_filter_is_compiled_and_the_draw_with_a_generator_a_request_is_not() -> None:
    def draw(scores: Any, generators: dict[int, torch.Generator]) -> Any:
        race = torch.empty(scores.shape).exponential_()
        for row, generator in generators.items():
            race[row].exponential_(generator=generator)
        return scores.softmax(-1).div_(race).argmax(-1)

    def tokens(step: Any) -> Any:
        generators = {row: torch.Generator().manual_seed(row) for row in (0, 5)}
        return run(lambda *args: draw(step(*args), generators), copies(args))[0]

    args, fn = inputs_for("vllm_top_k_top_p", ROWS, VOCAB), ENGINES["vllm_top_k_top_p"]
    assert torch.equal(tokens(fn), tokens(compile_chunked(fn, **OPTIONS, dynamic=True)))
    with pytest.raises(sortpass.EstimateError, match="generator"):
        sortpass.explain(draw, args[0], {0: torch.Generator()}, **OPTIONS)


# The code of docs/engines.md, run against stand-ins with the names and signatures that it uses of the engines.

DOC = (Path(__file__).parent.parent / "docs" / "engines.md").read_text()
SNIPPETS = re.findall(r"^```python\n(.*?)^```", DOC, re.MULTILINE | re.DOTALL)
SMALL = {
    '"memory_budget": "256MiB"': '"memory_budget": "256KiB", "min_bytes": 1, "inner": "aot_eager"',
    'memory_budget="256MiB"': 'memory_budget="256KiB", min_bytes=1',
    ', "inner": "aot_eager", "inner"': ', "inner"',
}


def run_snippet(containing: str) -> dict[str, Any]:
    """Run the one snippet that contains a text, with options under which the small tensors of a test are chunked."""
    (code,) = (snippet for snippet in SNIPPETS if containing in snippet)
    for large, small in SMALL.items():
        code = code.replace(large, small)
    names: dict[str, Any] = {"sortpass": sortpass, "__name__": containing}
    exec(code, names)
    return names


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Any:
    def add(path: str, **members: Any) -> types.ModuleType:
        for end in (i for i, char in enumerate(path + ".") if char == "."):
            parent = sys.modules.get(path[:end]) or types.ModuleType(path[:end])
            monkeypatch.setitem(sys.modules, path[:end], parent)
            if "." in path[:end]:
                setattr(sys.modules[path[:end].rpartition(".")[0]], path[:end].rpartition(".")[2], parent)
        vars(sys.modules[path]).update(members)
        return sys.modules[path]

    return add


@pytest.fixture(autouse=True)
def _own_inductor_config() -> Iterator[None]:
    with torch._inductor.config.patch(post_grad_custom_pre_pass=None):
        yield


class LogprobsTensors(NamedTuple):
    logprob_token_ids: Any
    logprobs: Any
    selected_token_ranks: Any


class Sampler:
    @staticmethod
    def compute_logprobs(logits: Any) -> Any:
        return logits.log_softmax(dim=-1, dtype=torch.float32)

    @staticmethod
    def gather_logprobs(logprobs: Any, num_logprobs: int, token_ids: Any) -> LogprobsTensors:
        top, ids = logprobs.topk(num_logprobs, dim=-1)
        chosen = logprobs.gather(-1, token_ids[:, None])
        ranks = (logprobs >= chosen).sum(-1)
        return LogprobsTensors(torch.cat((token_ids[:, None], ids), 1).int(), torch.cat((chosen, top), 1), ranks)


class GPUModelRunner:
    """Prompts of several lengths, one after the other, as a runner has them in a step."""

    def __init__(self) -> None:
        self.sampler: Any = Sampler()

    def _get_prompt_logprobs_dict(self, logits: Any, tokens: Any) -> list[LogprobsTensors]:
        out = []
        for start, end, num in ((0, 100, 5), (100, ROWS, 3)):
            logprobs = self.sampler.compute_logprobs(logits[start:end])
            out.append(self.sampler.gather_logprobs(logprobs, num, tokens[start:end]))
        return out


def test_the_vllm_plugin(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def apply_top_k_top_p_pytorch(logits: Any, k: Any, p: Any, allow_cpu_sync: bool = False) -> Any:
        return logits if k is None and p is None else ENGINES["vllm_top_k_top_p"](logits, k, p)

    ops = module("vllm.v1.sample.ops.topk_topp_sampler", apply_top_k_top_p_pytorch=apply_top_k_top_p_pytorch)
    module("vllm.v1.outputs", LogprobsTensors=LogprobsTensors)
    module("vllm.v1.worker.gpu_model_runner", GPUModelRunner=GPUModelRunner)
    monkeypatch.setattr(
        GPUModelRunner, "_get_prompt_logprobs_dict", whole_runner := GPUModelRunner._get_prompt_logprobs_dict
    )
    names = run_snippet("vllm.general_plugins")
    for _ in range(2):  # as an engine may
        names["register"]()

    args = inputs_for("vllm_top_k_top_p", ROWS, VOCAB)
    logits, _, tokens = inputs_for("vllm_prompt_logprobs", ROWS, VOCAB)
    runner = GPUModelRunner()
    sampler = runner.sampler
    with sortpass.capture_reports() as reports:
        assert_same(run(apply_top_k_top_p_pytorch, copies(args)), run(ops.apply_top_k_top_p_pytorch, copies(args)))
        for a, b in zip(
            runner._get_prompt_logprobs_dict(logits, tokens), whole_runner(runner, logits, tokens), strict=True
        ):
            assert_same(a, b)
    assert [report.num_rewritten for report in reports] == [1] * len(reports)
    assert runner.sampler is sampler
    assert peak_bytes(lambda: runner._get_prompt_logprobs_dict(logits, tokens)) < logits.nbytes  # bfloat16


def test_the_sglang_line(module: Any) -> None:
    sampler = module("sglang.srt.layers.sampler", top_k_top_p_min_p_sampling_from_probs_torch=ENGINES["sglang_sample"])
    run_snippet("from sglang.srt.layers")
    args = inputs_for("sglang_sample", ROWS, VOCAB)
    with sortpass.capture_reports() as reports:
        chunked = run(sampler.top_k_top_p_min_p_sampling_from_probs_torch, copies(args))
    assert_same(run(ENGINES["sglang_sample"], copies(args)), chunked)
    assert reports[0].num_rewritten == 1


def test_the_trl_lines(module: Any) -> None:
    trainer = module("trl.trainer.grpo_trainer", selective_log_softmax=(loop := ENGINES["trl_selective_log_softmax"]))
    run_snippet("grpo_trainer")
    args = inputs_for("trl_selective_log_softmax", ROWS, VOCAB)
    with sortpass.capture_reports() as reports:
        chunked = trainer.selective_log_softmax(*args)
    torch.testing.assert_close(chunked, loop(*args))
    assert reports[0].num_rewritten == 1
    assert per_logit(trainer.selective_log_softmax, args) < 2  # whole, the log-softmax alone is 4
    grads = [gradient(fn, *args) for fn in (trainer.selective_log_softmax, loop)]
    torch.testing.assert_close(*grads)
    assert peak_bytes(lambda: gradient(trainer.selective_log_softmax, *args)) / (ROWS * VOCAB) < 6  # the gradient is 4


def test_the_verl_module_reaches_a_plain_torch_compile() -> None:
    run_snippet("sortpass_verl.py")
    (logits,) = inputs_for("verl_entropy", ROWS, VOCAB)
    with sortpass.capture_reports() as reports:
        step = torch.compile(own_code(ENGINES["verl_entropy"]), dynamic=True)
        # bfloat16 steps are 1/16 where a logsumexp is, between 8 and 16.
        torch.testing.assert_close(step(logits).float(), ENGINES["verl_entropy"](logits.float()), atol=1 / 16, rtol=0)
    assert [report.num_rewritten for report in reports] == [1]
    assert per_logit(step, (logits,)) < 1  # whole, a float32 softmax: 4


def test_the_vllm_hook_is_a_pass_of_inductor_whatever_is_wrapped_around_it() -> None:
    hook = run_snippet("inductor_compile_config")["hook"]
    assert isinstance(hook, CustomGraphPass) and hook.uuid()


def test_every_snippet_has_a_test() -> None:
    assert len(SNIPPETS) == 5


def test_the_filter_keeps_at_most_k_tokens_and_at_least_one() -> None:
    logits, k, p = inputs_for("vllm_top_k_top_p", ROWS, VOCAB)
    num_kept = (ENGINES["vllm_top_k_top_p"](logits, k, p) > NEVER).sum(-1)
    assert (num_kept <= k).all() and (num_kept >= 1).all()
