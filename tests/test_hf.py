"""transformers' own processors through the backend: tokens identical to whole."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers import compile_chunked, compile_whole
from samplers import WARPERS, inputs_for
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.generation import logits_process as hf

import sortpass

PROCESSORS: dict[str, Any] = {
    **WARPERS,
    "top_p, two kept": lambda ids, scores: hf.TopPLogitsWarper(0.3, min_tokens_to_keep=2)(ids, scores),
    "top_k": lambda ids, scores: hf.TopKLogitsWarper(7)(ids, scores).sort(-1)[0],
    "typical, two kept": lambda ids, scores: hf.TypicalLogitsWarper(0.3, min_tokens_to_keep=2)(ids, scores),
    "log of top_p": lambda ids, scores: hf.LogitNormalization()(ids, hf.TopPLogitsWarper(0.9)(ids, scores)),
    "no repeated token": lambda ids, scores: hf.TopPLogitsWarper(0.9)(
        ids, hf.RepetitionPenaltyLogitsProcessor(1.5)(ids, scores)
    ),
}


def draw_tokens(process: Any, ids: Any, scores: Any) -> Any:
    torch.manual_seed(7)
    return torch.multinomial(process(ids, scores).softmax(-1), num_samples=1)


@pytest.mark.parametrize("name", PROCESSORS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_scores_and_tokens_are_identical_to_whole(name: str, dtype: torch.dtype) -> None:
    ids, scores = inputs_for("top_p", 60, 400)
    scores = scores.to(dtype)
    with sortpass.capture_reports() as reports:
        chunked = compile_chunked(PROCESSORS[name])
        tokens = draw_tokens(chunked, ids, scores)
    assert reports[0].modified
    assert torch.equal(PROCESSORS[name](ids, scores), chunked(ids, scores))
    assert torch.equal(tokens, draw_tokens(PROCESSORS[name], ids, scores))


def test_a_models_sampling_step_gives_the_same_tokens_under_inductor() -> None:
    config = LlamaConfig(
        vocab_size=5_000,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=32,
    )
    model = LlamaForCausalLM(config).eval()
    ids = torch.randint(0, config.vocab_size, (48, 4))
    warper = hf.TopPLogitsWarper(0.8)

    def step(logits: Any) -> Any:
        probs = warper(None, logits / 0.7).softmax(-1)
        return torch.multinomial(probs, num_samples=1)

    with torch.no_grad():
        logits = model(ids).logits[:, -1, :]
        torch.manual_seed(1)
        whole = compile_whole(step, "inductor")(logits)
        with sortpass.capture_reports() as reports:
            torch.manual_seed(1)
            chunked = compile_chunked(step, "inductor", row_chunk=16)(logits)
    assert reports[0].num_rewritten == 1
    assert torch.equal(whole, chunked)
