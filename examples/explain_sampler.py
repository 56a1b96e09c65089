"""See what the pass would do to a batch that does not fit: nothing is allocated or run."""

from __future__ import annotations

import torch

import sortpass


def sample(logits: torch.Tensor, p: float = 0.9) -> torch.Tensor:
    values, indices = torch.sort(logits, descending=True)
    probs = values.softmax(-1)
    keep = probs.cumsum(-1) - probs < p
    draw = torch.multinomial(probs * keep, num_samples=1)
    return indices.gather(-1, draw)


def main() -> None:
    logits = torch.empty(8192, 128_256, dtype=torch.bfloat16, device="meta")
    for device in ("cpu", "cuda"):
        found = sortpass.estimate(sample, logits, device=device)
        print(f"{device}: {found.peak_bytes_whole / 2**30:.1f} -> {found.peak_bytes_chunked / 2**30:.1f} GiB")
    sortpass.explain(sample, logits, memory_budget="256MiB")


if __name__ == "__main__":
    main()
