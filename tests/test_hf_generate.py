"""``generate`` with the bridge: tokens, scores and random state as without, for every mode and family."""

from __future__ import annotations

import importlib.util
from typing import Any

import hf_models
import pytest
import torch
import transformers as hf

import sortpass

SAMPLE = {"do_sample": True, "top_k": 0}
WARPERS = {
    "top_p": {"top_p": 0.8},
    "top_k": {"top_k": 20},
    "min_p": {"min_p": 0.05},
    "typical": {"typical_p": 0.8},
    "eta": {"eta_cutoff": 1e-3},
    "epsilon": {"epsilon_cutoff": 1e-3},
    "top_h": {"top_h": 0.5},
}
PENALTIES = {
    "repetition_penalty": 1.3,
    "no_repeat_ngram_size": 2,
    "bad_words_ids": [[7], [8, 9]],
    "sequence_bias": [[[11], 2.0]],
    "min_new_tokens": 2,
    "suppress_tokens": [12],
    "renormalize_logits": True,
    "remove_invalid_values": True,
    "exponential_decay_length_penalty": (1, 1.1),
}
# Modes in which something is chunked.
MODES: dict[str, dict[str, Any]] = {
    **{name: {**SAMPLE, **options} for name, options in WARPERS.items()},
    "every warper": {
        **SAMPLE,
        "temperature": 0.7,
        **{k: v for options in WARPERS.values() for k, v in options.items()},
    },
    "penalties": {**SAMPLE, "temperature": 0.7, "top_p": 0.8, **PENALTIES},
    "guidance": {**SAMPLE, "top_p": 0.8, "guidance_scale": 1.5},
    "watermark": {**SAMPLE, "top_p": 0.8, "watermarking_config": hf.WatermarkingConfig(bias=2.5)},
    "synthid": {
        **SAMPLE,
        "top_p": 0.8,
        "watermarking_config": hf.SynthIDTextWatermarkingConfig(keys=[3, 5, 7], ngram_len=3, context_history_size=8),
    },
    "several sequences": {**SAMPLE, "top_p": 0.8, "num_return_sequences": 2},
    "beam sampling": {**SAMPLE, "top_p": 0.8, "num_beams": 2},
    "static cache": {**SAMPLE, "top_p": 0.8, "cache_implementation": "static"},
}
EVERYWHERE = ["top_p", "every warper", "penalties", "several sequences", "beam sampling"]
TABLE = [(family, mode) for family in hf_models.FAMILIES for mode in (MODES if family == "gpt2" else EVERYWHERE)]
MODES["encoder penalties"] = {
    **SAMPLE,
    "top_p": 0.8,
    "encoder_repetition_penalty": 1.5,
    "encoder_no_repeat_ngram_size": 2,
    "forced_bos_token_id": 9,
    "begin_suppress_tokens": [10],
}
TABLE.append(("t5", "encoder penalties"))
TINY = {"row_chunk": 2, "min_bytes": 1, "force": True}


@pytest.fixture(scope="module")
def models() -> dict[str, Any]:
    return {}


def model_of(models: dict[str, Any], family: str) -> Any:
    if family not in models:
        models[family] = hf_models.make(family)
    return models[family]


def run(model: Any, inputs: dict[str, Any], **options: Any) -> tuple[Any, torch.Tensor]:
    torch.manual_seed(3)
    out = model.generate(**inputs, return_dict_in_generate=True, output_scores=True, output_logits=True, **options)
    return out, torch.get_rng_state()


def assert_same(whole: tuple[Any, torch.Tensor], chunked: tuple[Any, torch.Tensor]) -> None:
    assert torch.equal(whole[0].sequences, chunked[0].sequences)
    for kind in ("scores", "logits"):
        pairs = zip(whole[0][kind], chunked[0][kind], strict=True)
        assert all(torch.equal(a, b) and a.stride() == b.stride() for a, b in pairs), kind
    assert torch.equal(whole[1], chunked[1])


@pytest.mark.parametrize(("family", "mode"), TABLE, ids=lambda value: value)
def test_tokens_and_scores_are_identical(models: dict[str, Any], family: str, mode: str) -> None:
    model, inputs = model_of(models, family), hf_models.inputs_of(family)
    options = {"max_new_tokens": 4, **MODES[mode]}
    whole = run(model, inputs, **options)
    with sortpass.hf.chunked_generation(model, **TINY) as report:
        chunked = run(model, inputs, **options)
    assert_same(whole, chunked)
    assert report.graphs and all(graph.num_rewritten for graph in report.graphs), report
    assert report.compiles <= 3


NOTHING_SORTED: dict[str, dict[str, Any]] = {
    "greedy": {},
    "beam search": {"num_beams": 2, "repetition_penalty": 1.3},
    "prompt lookup": {**SAMPLE, "top_p": 0.8, "prompt_lookup_num_tokens": 2},
}


@pytest.mark.parametrize("mode", NOTHING_SORTED)
def test_a_mode_without_a_large_sort_is_left_as_it_is(models: dict[str, Any], mode: str) -> None:
    rows = 1 if mode == "prompt lookup" else 4
    model, inputs = model_of(models, "gpt2"), hf_models.inputs_of("gpt2", rows=rows)
    whole = run(model, inputs, max_new_tokens=4, **NOTHING_SORTED[mode])
    with sortpass.hf.chunked_generation(model, **TINY) as report:
        chunked = run(model, inputs, max_new_tokens=4, **NOTHING_SORTED[mode])
    assert_same(whole, chunked)
    assert not any(graph.num_rewritten for graph in report.graphs)


def test_assisted_decoding(models: dict[str, Any]) -> None:
    model, assistant = model_of(models, "llama"), hf_models.make("llama")
    inputs = hf_models.inputs_of("llama", rows=1)
    options = {**SAMPLE, "top_p": 0.8, "assistant_model": assistant, "max_new_tokens": 8}
    whole = run(model, inputs, **options)
    with sortpass.hf.chunked_generation(model, **TINY), sortpass.hf.chunked_generation(assistant, **TINY):
        assert_same(whole, run(model, inputs, **options))


def test_a_compiled_forward_with_a_static_cache(models: dict[str, Any]) -> None:
    model, inputs = model_of(models, "llama"), hf_models.inputs_of("llama")
    compile_config = hf.CompileConfig(backend="aot_eager", mode=None, fullgraph=False)
    compile_config._compile_all_devices = True  # transformers compiles on accelerators only, unless told
    options = {**SAMPLE, "top_p": 0.8, "cache_implementation": "static", "compile_config": compile_config}
    whole = run(model, inputs, max_new_tokens=4, **options)
    with sortpass.hf.chunked_generation(model, **TINY) as report:
        assert_same(whole, run(model, inputs, max_new_tokens=4, **options))
    assert report.graphs[0].num_rewritten == 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_logits(dtype: torch.dtype) -> None:
    model, inputs = hf_models.make("gpt2").to(dtype), hf_models.inputs_of("gpt2")
    whole = run(model, inputs, max_new_tokens=4, **MODES["every warper"])
    with sortpass.hf.chunked_generation(model, **TINY) as report:
        assert_same(whole, run(model, inputs, max_new_tokens=4, **MODES["every warper"]))
    assert report.graphs[0].num_rewritten


def test_a_long_generation_compiles_once_and_the_next_call_not_at_all(models: dict[str, Any]) -> None:
    model, inputs = model_of(models, "gpt2"), hf_models.inputs_of("gpt2")
    options = {**SAMPLE, "top_p": 0.77, "repetition_penalty": 1.1, "min_length": 8, "forced_eos_token_id": 3}
    with sortpass.hf.chunked_generation(model, **TINY) as report:
        run(model, inputs, max_new_tokens=40, **options)
        assert report.compiles == 1
        run(model, hf_models.inputs_of("gpt2", length=9), max_new_tokens=40, **options)
    assert report.compiles == 1
    assert report.in_graph == ["TopPLogitsWarper"]
    assert report.as_is["MinLengthLogitsProcessor"] == "it does something else at another length"
    assert report.as_is["ForcedEOSTokenLogitsProcessor"] == "it does something else at another length"
    assert report.steps == 80


def test_other_batch_sizes_cost_at_most_two_compiles_more(models: dict[str, Any]) -> None:
    model = model_of(models, "gpt2")
    with sortpass.hf.chunked_generation(model, **TINY) as report:
        for rows in (5, 4, 6, 7):
            inputs = hf_models.inputs_of("gpt2", rows=rows)
            run(model, inputs, max_new_tokens=3, **SAMPLE, top_p=0.78)
    assert report.compiles <= 3


def test_below_the_threshold_nothing_is_compiled(models: dict[str, Any]) -> None:
    model, inputs = model_of(models, "gpt2"), hf_models.inputs_of("gpt2")
    with sortpass.hf.chunked_generation(model) as report:
        run(model, inputs, max_new_tokens=3, **SAMPLE, top_p=0.8)
    assert (report.compiles, report.steps, report.steps_below_threshold) == (0, 3, 3)


def test_where_nothing_is_chunked_the_graph_is_left_after_one_step(models: dict[str, Any]) -> None:
    model, inputs = model_of(models, "gpt2"), hf_models.inputs_of("gpt2")
    calls: list[bool] = []

    class Watching(hf.TopPLogitsWarper):
        def __call__(self, input_ids: Any, scores: Any) -> Any:
            if not torch.compiler.is_compiling():
                calls.append(True)
            return super().__call__(input_ids, scores)

    processors = hf.LogitsProcessorList([Watching(0.8)])
    with sortpass.hf.chunked_generation(model, min_bytes=1) as report:  # one chunk holds all
        run(model, inputs, max_new_tokens=5, logits_processor=processors)
    assert report.compiles == 1 and not report.graphs[0].modified
    assert len(calls) == 4


class Counting(hf.LogitsProcessor):
    """Keeps state, and reads a value: it cannot be traced."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        self.calls += 1
        return scores - 1 if input_ids[0, -1].item() % 2 else scores


class Remembering(hf.LogitsProcessor):
    """Traceable, with state that makes each step's graph another one."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        self.seen.append("x" * len(self.seen))
        return scores - len(self.seen)


@pytest.mark.parametrize("kind", [Counting, Remembering])
def test_a_processor_with_state_runs_once_a_step(models: dict[str, Any], kind: type) -> None:
    model, inputs = model_of(models, "gpt2"), hf_models.inputs_of("gpt2")
    ours, theirs = kind(), kind()
    options = {**SAMPLE, "top_p": 0.8, "max_new_tokens": 7}
    whole = run(model, inputs, logits_processor=hf.LogitsProcessorList([theirs]), **options)
    with sortpass.hf.chunked_generation(model, **TINY) as report:
        chunked = run(model, inputs, logits_processor=hf.LogitsProcessorList([ours]), **options)
    assert_same(whole, chunked)
    assert vars(ours) == vars(theirs)
    assert report.compiles <= 3
    assert kind.__name__ in report.as_is
    assert report.in_graph == ["TopPLogitsWarper"]  # the others do not suffer
    assert "TopPLogitsWarper" not in report.as_is


def test_where_torch_compile_is_off_processors_run_as_they_are(models: dict[str, Any]) -> None:
    model, inputs = model_of(models, "gpt2"), hf_models.inputs_of("gpt2")
    for off in (torch.compiler.set_stance("force_eager"), torch._dynamo.config.patch(disable=True)):
        processor = Remembering()
        with off, sortpass.hf.chunked_generation(model, **TINY) as report:
            run(model, inputs, max_new_tokens=3, logits_processor=hf.LogitsProcessorList([processor]))
        assert len(processor.seen) == 3 and not report.compiles


def test_a_loop_over_the_rows_is_not_unrolled_into_a_graph(models: dict[str, Any]) -> None:
    model, inputs = model_of(models, "gpt2"), hf_models.inputs_of("gpt2", rows=120)
    options = {**SAMPLE, "top_p": 0.8, "max_new_tokens": 2, "prefix_allowed_tokens_fn": lambda batch_id, ids: [5, 6, 7]}
    whole = run(model, inputs, **options)
    with sortpass.hf.chunked_generation(model, **{**TINY, "row_chunk": 30}) as report:
        assert_same(whole, run(model, inputs, **options))
    assert "nodes" in report.as_is["PrefixConstrainedLogitsProcessor"]
    assert report.in_graph == ["TopPLogitsWarper"]


def test_an_error_of_a_processor_is_the_same(models: dict[str, Any]) -> None:
    model, inputs = model_of(models, "gpt2"), hf_models.inputs_of("gpt2")
    options = {**SAMPLE, "top_p": 0.8, "prefix_allowed_tokens_fn": lambda batch_id, ids: []}
    with pytest.raises(ValueError, match="returned an empty list") as whole:
        run(model, inputs, **options)
    with (
        sortpass.hf.chunked_generation(model, **TINY),
        pytest.raises(ValueError, match="returned an empty list") as chunked,
    ):
        run(model, inputs, **options)
    assert str(whole.value) == str(chunked.value)


def test_continuous_batching() -> None:
    model = hf_models.make("llama")
    config = hf.GenerationConfig(max_new_tokens=4, temperature=0.7, top_p=0.8, eos_token_id=-1, **SAMPLE)
    prompts = [list(range(5, 9 + i)) for i in range(5)]

    def tokens() -> list[list[int]]:
        torch.manual_seed(3)
        return [out.generated_tokens for out in model.generate_batch(prompts, generation_config=config).values()]

    whole = tokens()
    with sortpass.hf.chunked_generation(model, **TINY) as report:
        assert tokens() == whole
    if importlib.util.find_spec("transformers.generation.continuous_batching.cb_logits_processors") is None:
        return  # 5.0 has no list of its own for it, and runs it as it is
    assert report.graphs[0].num_rewritten == 1
    assert report.compiles <= 3
    assert report.in_graph == ["TemperatureLogitsWarper", "TopPLogitsWarper"]


def test_under_inductor_tokens_are_those_of_the_unchunked_processors_under_inductor(models: dict[str, Any]) -> None:
    model, inputs = model_of(models, "t5"), hf_models.inputs_of("t5", rows=8)
    options = {**SAMPLE, "temperature": 0.7, "top_p": 0.8, "max_new_tokens": 4}
    # One window for all rows: compiled, and declined.
    with sortpass.hf.chunked_generation(model, inner="inductor", min_bytes=1, row_chunk=8) as report:
        whole = run(model, inputs, **options)
    assert not report.graphs[0].modified
    with sortpass.hf.chunked_generation(model, inner="inductor", **{**TINY, "row_chunk": 4}) as report:
        chunked = run(model, inputs, **options)
    assert report.graphs[0].num_rewritten == 1
    assert torch.equal(whole[0].sequences, chunked[0].sequences)
