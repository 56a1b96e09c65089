"""Prompt log-probs: each token's log-probability, its rank, and the most likely tokens, at every position.

Sizes may be given: ``512 128256``.
"""

from __future__ import annotations

import sys

import torch

import sortpass

TOP_N = 5


def score(logits: torch.Tensor, tokens: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """``[N, V]`` logits and ``[N]`` tokens -> log-prob, rank, top log-probs and their tokens."""
    lp = logits.float().log_softmax(-1)
    chosen = lp.gather(-1, tokens.unsqueeze(-1))
    rank = (lp > chosen).sum(-1)
    return chosen.squeeze(-1), rank, *lp.topk(TOP_N, -1)


def main(positions: int = 256, vocab: int = 8_000) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = (4 * torch.randn(positions, vocab, generator=generator)).bfloat16()
    tokens = torch.randint(vocab, (positions,), generator=generator)
    for inner in ("aot_eager", "inductor"):
        # No sort here: "rowwise" lets a region start from the log-softmax.
        options = {"anchors": "rowwise", "row_chunk": positions // 16, "min_bytes": 1, "inner": inner}
        seen = sortpass.compare(score, logits, tokens, rounds=3, **options)
        assert seen.equal or inner == "inductor"
        whole, chunked = (peak / logits.nbytes for peak in seen.peak_bytes)
        print(f"{inner:10} {whole:.2f} -> {chunked:.2f} times the bf16 logits; time {seen.time_ratio:.2f}x")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
