"""Putting the bridge on and taking it off: nothing is left behind, whoever else uses the model."""

from __future__ import annotations

import copy
import importlib
import sys
import threading
from typing import Any

import hf_models
import pytest
import torch
import transformers as hf

import sortpass
from sortpass.hf import BridgeError
from sortpass.hf.generation import HOOK

TINY = {"row_chunk": 2, "min_bytes": 1, "force": True}
TOP_P = {"do_sample": True, "top_k": 0, "top_p": 0.8, "max_new_tokens": 3}


@pytest.fixture
def model() -> Any:
    return hf_models.make("gpt2")


def tokens(model: Any, seed: int = 3, **options: Any) -> torch.Tensor:
    torch.manual_seed(seed)
    return model.generate(**hf_models.inputs_of("gpt2"), **{**TOP_P, **options})


def test_everything_is_as_before_after_an_error(model: Any) -> None:
    before = dict(model.__dict__)
    with pytest.raises(RuntimeError, match="of ours"), sortpass.hf.chunked_generation(model, **TINY):
        assert HOOK in model.__dict__
        raise RuntimeError("of ours")
    assert model.__dict__ == before


def test_enable_and_disable(model: Any) -> None:
    whole = tokens(model)
    report = sortpass.hf.enable(model, **TINY)
    assert torch.equal(tokens(model), whole)
    sortpass.hf.disable(model)
    assert report.steps == 3
    assert HOOK not in model.__dict__
    tokens(model)
    assert report.steps == 3
    with pytest.raises(BridgeError, match="not enabled"):
        sortpass.hf.disable(model)


def test_one_call(model: Any) -> None:
    whole = tokens(model)
    torch.manual_seed(3)
    inputs = hf_models.inputs_of("gpt2")
    assert torch.equal(sortpass.hf.generate(model, **inputs, **TOP_P, chunk_options=TINY), whole)
    assert HOOK not in model.__dict__


def test_the_innermost_block_serves_and_the_outer_one_comes_back(model: Any) -> None:
    with sortpass.hf.chunked_generation(model, **TINY) as outer:
        with sortpass.hf.chunked_generation(model, **TINY) as inner:
            tokens(model)
        assert (outer.steps, inner.steps) == (0, 3)
        tokens(model)
    assert (outer.steps, inner.steps) == (3, 3)


def test_a_hook_of_the_users_own_is_used_and_put_back(model: Any) -> None:
    calls = []
    original = model._get_logits_processor

    def mine(*args: Any, **kwargs: Any) -> Any:
        calls.append(kwargs)
        return original(*args, **kwargs)

    model._get_logits_processor = mine
    with sortpass.hf.chunked_generation(model, **TINY) as report:
        tokens(model)
    assert len(calls) == 1 and report.steps == 3
    assert model._get_logits_processor is mine


def test_a_copy_made_meanwhile_is_not_bridged(model: Any) -> None:
    with sortpass.hf.chunked_generation(model, **TINY) as report:
        twin = copy.deepcopy(model)
        whole = tokens(twin)
        assert report.steps == 0
        assert torch.equal(tokens(model), whole)
    assert torch.equal(tokens(twin), whole)


def test_a_model_inside_of_another_is_found(model: Any) -> None:
    whole = tokens(model)

    class Wrapper(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

    wrapper = Wrapper()
    with sortpass.hf.chunked_generation(wrapper, **TINY) as report:
        assert torch.equal(tokens(wrapper.inner), whole)
    assert report.graphs[0].num_rewritten == 1
    with sortpass.hf.chunked_generation(torch.compile(model, backend="eager"), **TINY) as report:
        assert torch.equal(tokens(model), whole)
    assert report.steps == 3


def test_a_pipeline(model: Any) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    vocab = {f"w{i}": i for i in range(50_257)}
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocab, unk_token="w5"))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    words = hf.PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="w0", eos_token="w3", padding_side="left")
    pipe = hf.pipeline("text-generation", model=model, tokenizer=words)
    prompts = ["w7 w8 w9", "w10 w11 w12", "w13 w14 w15"]

    def texts() -> Any:
        torch.manual_seed(3)
        return pipe(prompts, batch_size=3, **TOP_P)

    whole = texts()
    with sortpass.hf.chunked_generation(pipe, **TINY) as report:
        assert texts() == whole
    assert report.graphs[0].num_rewritten == 1


def test_threads_with_a_model_each_and_with_one_model_for_all() -> None:
    models = [hf_models.make("gpt2"), hf_models.make("gpt2")]
    options = {**TOP_P, "do_sample": False, "logits_processor": [hf.TopPLogitsWarper(0.8)]}
    whole = tokens(models[0], **options)
    wrong: list[torch.Tensor] = []
    reports: list[sortpass.hf.GenerationReport] = []

    def work(model: Any) -> None:
        for _ in range(4):
            with sortpass.hf.chunked_generation(model, **TINY) as report:
                inputs = hf_models.inputs_of("gpt2")
                ours = model.generate(**inputs, **options)
            reports.append(report)
            if not torch.equal(ours, whole):
                wrong.append(ours)

    threads = [threading.Thread(target=work, args=(model,)) for model in (*models, models[0])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert sum(report.steps for report in reports) == 3 * 4 * TOP_P["max_new_tokens"]
    assert not any(HOOK in model.__dict__ for model in models)


def test_what_the_user_got_wrong_is_named(model: Any) -> None:
    with pytest.raises(sortpass.ConfigError, match="did you mean 'row_chunk'"):
        sortpass.hf.enable(model, row_chunks=2)
    with pytest.raises(BridgeError, match="no module with `generate`"):
        sortpass.hf.enable(torch.nn.Linear(2, 2))
    with pytest.raises(BridgeError, match="expected a model or a pipeline, got int"):
        sortpass.hf.enable(3)
    assert HOOK not in model.__dict__


def test_an_error_that_was_asked_for_is_raised(model: Any) -> None:
    with (
        sortpass.hf.chunked_generation(model, min_bytes=1, row_chunk=100, on_miss="raise"),
        pytest.raises(sortpass.NothingRewritten),
    ):
        tokens(model)


def test_an_old_version_is_told_which_are_supported(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hf, "__version__", "4.57.6")
    with pytest.raises(BridgeError, match=r"4\.57\.6 is too old; expected 5\.0 or newer"):
        sortpass.hf.enable(model)


def test_without_transformers_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("sortpass.hf")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ImportError, match=r"pip install 'sortpass\[hf\]'"):
        importlib.import_module("sortpass.hf")


def test_a_version_without_the_hook_is_told_which_are_supported(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sortpass.hf.generation.HOOK", "_get_something_else")
    with pytest.raises(BridgeError, match="tried with 5.0.0 and"):
        sortpass.hf.enable(model)
