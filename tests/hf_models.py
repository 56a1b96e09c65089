"""Models of transformers with random weights: real vocabularies, everything else as small as it goes."""

from __future__ import annotations

from typing import Any

import torch
import transformers as hf

SMALL = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 3,
}


def gpt2(vocab: int = 50_257) -> Any:
    sizes = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 128}
    return hf.GPT2LMHeadModel(hf.GPT2Config(vocab_size=vocab, bos_token_id=1, eos_token_id=3, pad_token_id=0, **sizes))


def llama(vocab: int = 128_256) -> Any:
    return hf.LlamaForCausalLM(hf.LlamaConfig(vocab_size=vocab, **SMALL))


def qwen() -> Any:
    return hf.Qwen2ForCausalLM(hf.Qwen2Config(vocab_size=151_936, **SMALL))


def gemma() -> Any:
    return hf.Gemma2ForCausalLM(hf.Gemma2Config(vocab_size=262_144, head_dim=8, **SMALL))


def t5() -> Any:
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2}
    config = hf.T5Config(vocab_size=32_128, decoder_start_token_id=0, pad_token_id=0, eos_token_id=1, **sizes)
    return hf.T5ForConditionalGeneration(config)


def llava() -> Any:
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    text = {**SMALL, "vocab_size": 32_064, "model_type": "llama"}
    config = hf.LlavaConfig(
        vision_config={**vision, "image_size": 8, "patch_size": 4, "model_type": "clip_vision_model"},
        text_config=text,
        image_token_index=32_000,
        vision_feature_layer=-1,
        pad_token_id=0,
    )
    return hf.LlavaForConditionalGeneration(config)


FAMILIES = {"gpt2": gpt2, "llama": llama, "qwen": qwen, "gemma": gemma, "t5": t5, "llava": llava}


def make(family: str) -> Any:
    """The model, the same weights each time, with logits spread enough for warpers to drop tokens."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = FAMILIES[family]().eval()
        head = model.get_output_embeddings()
        head.weight = torch.nn.Parameter(torch.randn_like(head.weight))
    return model


def inputs_of(family: str, rows: int = 4, length: int = 6) -> dict[str, Any]:
    """What ``generate`` takes; for the multimodal model an image of four patches beside each prompt."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(5, 1000, (rows, length), generator=generator)
    inputs: dict[str, Any] = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if family == "llava":
        inputs["input_ids"][:, 1:5] = 32_000
        inputs["pixel_values"] = torch.randn(rows, 3, 8, 8, generator=generator)
    return inputs
