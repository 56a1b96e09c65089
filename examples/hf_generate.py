"""``model.generate`` with its warpers in row chunks: same tokens, and where the memory goes, stage by stage.

Random weights: what a step allocates depends on the batch and the vocabulary alone. Sizes may be given: ``256 128256``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch
import transformers as hf

import sortpass
from sortpass.measure import peak_bytes

OPTIONS = {"row_chunk": 16, "min_bytes": 1}
PLAIN = {"do_sample": True, "temperature": 0.7, "top_k": 0, "max_new_tokens": 4, "pad_token_id": 0}
TOP_P = {**PLAIN, "top_p": 0.9}


@torch.no_grad()
def main(rows: int = 64, vocab: int = 32_000) -> None:
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = hf.LlamaForCausalLM(hf.LlamaConfig(vocab_size=vocab, **sizes)).eval()
    ids = torch.randint(vocab, (rows, 4))

    def row(name: str, *calls: Callable[[], object]) -> None:
        print(f"{name:40}" + "".join(f"{peak_bytes(call) / (rows * vocab):12.1f}" for call in calls))

    def generate(chunked: bool, **options: object) -> torch.Tensor:
        torch.manual_seed(0)
        if chunked:
            return sortpass.hf.generate(model, ids, chunk_options=OPTIONS, **options)
        return model.generate(ids, **options)

    assert torch.equal(generate(False, **TOP_P), generate(True, **TOP_P))
    print(f"{'bytes per logit; a float32 copy is 4':40}{'whole':>12}{'chunked':>12}")
    row("generate, temperature only", lambda: generate(False, **PLAIN))
    row("generate, temperature and top-p", lambda: generate(False, **TOP_P), lambda: generate(True, **TOP_P))

    config = hf.GenerationConfig(**TOP_P)
    scores = torch.randn(rows, vocab)
    whole = model._get_logits_processor(config)
    with sortpass.hf.chunked_generation(model, **OPTIONS) as report:
        chunked = model._get_logits_processor(config)
    print("of one step, each above what it is given")
    row("  float32 copy of the logits", *[lambda: scores.clone()] * 2)
    row("  processors", lambda: whole(ids, scores), lambda: chunked(ids, scores))
    row("  softmax", *[lambda: scores.softmax(-1)] * 2)
    probs = scores.softmax(-1)
    row("  multinomial", *[lambda: torch.multinomial(probs, 1)] * 2)
    print(report)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
