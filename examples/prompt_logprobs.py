"""Prompt log-probs: each token's log-probability, its rank, and the most likely tokens, at every position."""

from __future__ import annotations

import torch

import sortpass

BATCH, LENGTH, VOCAB, TOP_N = 4, 64, 8_000, 5


def score(logits: torch.Tensor, tokens: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """``[B, T, V]`` logits and ``[B, T]`` tokens -> log-prob, rank, top tokens and their log-probs."""
    ordered, indices = logits.log_softmax(-1).sort(-1, descending=True)
    at_token = indices == tokens.unsqueeze(-1)
    rank = at_token.to(torch.uint8).argmax(-1)
    log_prob = ordered.gather(-1, rank.unsqueeze(-1)).squeeze(-1)
    return log_prob, rank, indices[..., :TOP_N].clone(), ordered[..., :TOP_N].clone()


def main() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = 4 * torch.randn(BATCH, LENGTH, VOCAB, generator=generator)
    tokens = torch.randint(VOCAB, (BATCH, LENGTH), generator=generator)
    options = {"memory_budget": "2MiB", "min_bytes": 1, "inner": "aot_eager"}
    seen = sortpass.compare(score, logits, tokens, rounds=1, **options)
    assert seen.equal
    whole, chunked = seen.peak_bytes
    print(f"{whole / logits.numel():.1f} -> {chunked / logits.numel():.1f} bytes per logit")


if __name__ == "__main__":
    main()
