"""A hand-written top-p sampler, compiled with and without the pass: same tokens, a fraction of the memory.

python examples/top_p_sampler.py [ROWS] [VOCAB]
"""

import sys

import torch

from sortpass.measure import own_code, peak_bytes


def sample_step(logits: torch.Tensor) -> torch.Tensor:
    ordered, index = logits.sort(dim=-1, descending=True)
    probs = ordered.softmax(-1)
    drop = probs.cumsum(-1) - probs > 0.9
    keep = drop.scatter(-1, index, drop)
    return logits.masked_fill(keep, -float("inf")).softmax(-1)


def main(rows: int = 256, vocab: int = 32_000) -> None:
    logits = torch.randn(rows, vocab) * 4
    whole = torch.compile(sample_step, backend="aot_eager")
    options = {"row_chunk": 16, "min_bytes": 1, "inner": "aot_eager"}
    # torch.compile caches by code object: without a code object of its own, the second would reuse the first.
    chunked = torch.compile(own_code(sample_step), backend="chunked_sort", options=options)
    assert torch.equal(whole(logits), chunked(logits))
    for name, step in (("whole", whole), ("chunked", chunked)):
        peak = peak_bytes(lambda step=step: step(logits))
        print(f"{name:8} {peak / 2**20:8.1f} MiB  {peak / logits.numel():5.2f} bytes per logit")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
