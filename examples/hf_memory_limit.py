"""Several hundred sequences at a memory limit under which ``generate`` does not fit as it is, and does in chunks."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterator
from pathlib import Path

import torch
import transformers as hf

import sortpass

ROWS, VOCAB = 400, 32_000
EXTRA = 30  # bytes per logit that may be allocated on top of what the process has
SAMPLING = {"do_sample": True, "temperature": 0.7, "top_k": 0, "top_p": 0.9, "max_new_tokens": 3, "pad_token_id": 0}


@contextlib.contextmanager
def memory_limit(extra_bytes: int) -> Iterator[None]:
    """Let this process grow by no more than this (Linux: its address space)."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + extra_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def main() -> None:
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = hf.LlamaForCausalLM(hf.LlamaConfig(vocab_size=VOCAB, **sizes)).eval()
    ids = torch.randint(VOCAB, (ROWS, 4))
    few = ids[:8]
    options = {"row_chunk": 16, "min_bytes": 1}
    # Once with a few sequences: loading the compiler and starting threads takes address space, too.
    sortpass.hf.generate(model, few, chunk_options={**options, "row_chunk": 4}, **SAMPLING)

    limit = EXTRA * ROWS * VOCAB
    print(f"{ROWS} sequences, {VOCAB:,} tokens in the vocabulary, {limit / 2**20:.0f} MiB more than now")
    with memory_limit(limit):
        try:
            model.generate(ids, **SAMPLING)
            raise AssertionError("it fits as it is; lower the limit")
        except RuntimeError as error:
            print(f"as it is: {str(error).splitlines()[0][-90:]}")
        tokens = sortpass.hf.generate(model, ids, chunk_options=options, **SAMPLING)
    print(f"in chunks: {tuple(tokens.shape)} tokens")


if __name__ == "__main__":
    main()
