"""A filter that writes into the caller's logits, as vLLM's does: it holds one window, and nothing of the logits' size.

Sizes may be given: ``512 128256``.
"""

from __future__ import annotations

import sys

import torch

import sortpass


def top_k_top_p_(logits: torch.Tensor, k: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
    """Write ``-inf`` into ``[N, V]`` logits where a token is not among the ``k`` best or the ``p`` most probable."""
    values, index = logits.sort(dim=-1)
    least = values.gather(1, (values.size(1) - k).unsqueeze(1))
    values.masked_fill_(values < least, -float("inf"))
    drop = values.softmax(-1).cumsum(-1) <= 1 - p.unsqueeze(1)
    drop[:, -1] = False
    values.masked_fill_(drop, -float("inf"))
    return logits.scatter_(1, index, values)


def main(rows: int = 256, vocab: int = 8_000) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = 4 * torch.randn(rows, vocab, generator=generator)
    k, p = torch.full((rows,), 50), torch.full((rows,), 0.9)
    for inner in ("aot_eager", "inductor"):
        seen = sortpass.compare(top_k_top_p_, logits, k, p, row_chunk=rows // 4, min_bytes=1, inner=inner)
        assert seen.equal or inner == "inductor"
        (site,) = seen.reports[0].sites
        whole, chunked = (peak / logits.numel() for peak in seen.peak_bytes)
        window = (site.window_bytes or 0) / logits.numel()
        print(
            f"{inner:10} {whole:.2f} -> {chunked:.2f} bytes per logit, one window {window:.2f}, over "
            f"{site.written_over[0]}; time {seen.time_ratio:.2f}x"
        )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
