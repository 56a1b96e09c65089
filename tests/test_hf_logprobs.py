"""Prompt log-probs: equal to the straightforward computation, in bounded memory."""

from __future__ import annotations

import hf_models
import pytest
import torch

import sortpass
from sortpass.hf.logprobs import score
from sortpass.measure import peak_bytes

TINY = {"row_chunk": 4, "min_bytes": 1}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("top_n", [0, 1, 5])
def test_equal_to_the_straightforward_computation(dtype: torch.dtype, top_n: int) -> None:
    model, inputs = hf_models.make("gpt2").to(dtype), hf_models.inputs_of("gpt2", rows=3, length=7)
    ids = inputs["input_ids"]
    with sortpass.capture_reports() as reports:
        seen = sortpass.hf.prompt_logprobs(model, **inputs, top_n=top_n, chunk_options=TINY)
    assert reports[0].num_rewritten == 1

    with torch.no_grad():
        logprobs = model(**inputs).logits[:, :-1].float().log_softmax(-1)
    of_tokens = logprobs.gather(-1, ids[:, 1:, None])
    assert torch.equal(seen.logprobs, of_tokens.squeeze(-1))
    assert torch.equal(seen.ranks, (logprobs >= of_tokens).sum(-1))
    top = logprobs.topk(max(top_n, 1), -1)
    assert torch.equal(seen.top_logprobs, top.values[..., :top_n])
    assert torch.equal(seen.top_ids, top.indices[..., :top_n])


def test_padding_is_the_models_affair_and_small_logits_are_not_compiled() -> None:
    model, inputs = hf_models.make("gpt2"), hf_models.inputs_of("gpt2", rows=2)
    inputs["attention_mask"][0, :2] = 0
    with sortpass.capture_reports() as reports:
        small = sortpass.hf.prompt_logprobs(model, **inputs, top_n=2)
    assert not reports
    large = sortpass.hf.prompt_logprobs(model, **inputs, top_n=2, chunk_options=TINY)
    unmasked = sortpass.hf.prompt_logprobs(model, inputs["input_ids"], top_n=2)
    assert torch.equal(small.logprobs, large.logprobs)
    assert not torch.equal(small.logprobs[0], unmasked.logprobs[0])


def test_what_scoring_holds_is_bounded() -> None:
    logits, tokens = torch.randn(64, 4000, dtype=torch.bfloat16), torch.randint(4000, (64,))
    options = {"inner": "aot_eager", "exactness": "bitwise", "row_chunk": 4, "min_bytes": 1}
    compiled = torch.compile(lambda a, b: score(a, b, 3), backend="chunked_sort", options=options)
    compiled(logits, tokens)
    assert peak_bytes(lambda: score(logits, tokens, 3)) > 8 * logits.numel()
    assert peak_bytes(lambda: compiled(logits, tokens)) < 1 * logits.numel()


def test_the_most_likely_token_has_rank_one() -> None:
    logits = torch.tensor([[0.0, 3.0, 1.0, 2.0]])
    for token, rank in ((1, 1), (3, 2), (2, 3), (0, 4)):
        assert score(logits, torch.tensor([token]), 1)[1].item() == rank


def test_bad_input_is_named() -> None:
    ids = hf_models.inputs_of("gpt2")["input_ids"]
    with pytest.raises(ValueError, match="top_n is -1; expected 0 to 50257"):
        sortpass.hf.prompt_logprobs(hf_models.make("gpt2"), ids, top_n=-1)
    with pytest.raises(sortpass.hf.BridgeError, match="encoder-decoder"):
        sortpass.hf.prompt_logprobs(hf_models.make("t5"), ids)
    with pytest.raises(sortpass.ConfigError, match="unknown option"):
        sortpass.hf.prompt_logprobs(hf_models.make("gpt2"), ids, chunk_options={"rows": 3})
