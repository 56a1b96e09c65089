"""From hidden states to log-probs, or to top-p tokens, through an ``lm_head`` whose logits never exist as a whole.

Sizes may be given: ``8192 512 32064`` (positions, width, vocabulary). A product's last bits depend on its number of
rows; where results differ, the error of both against float64 is printed.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch.nn.functional as F

import sortpass


def log_probs(hidden: Any, weight: Any, tokens: Any) -> Any:
    """``[N, H]`` hidden states and ``[N]`` tokens -> each token's log-prob and rank."""
    lp = F.linear(hidden, weight).float().log_softmax(-1)
    chosen = lp.gather(-1, tokens.unsqueeze(-1))
    return chosen.squeeze(-1), (lp > chosen).sum(-1)


def top_p(hidden: Any, weight: Any, tokens: Any) -> Any:
    """``[N, H]`` hidden states -> the probability of the least likely token kept, and of the most likely one."""
    values = F.linear(hidden, weight).float().sort(-1).values
    probs = values.softmax(-1)
    kept = probs.masked_fill(probs.cumsum(-1) <= 0.1, torch.inf)
    return kept.amin(-1), probs.amax(-1)


def main(positions: int = 512, width: int = 64, vocab: int = 8000) -> None:
    torch.manual_seed(0)
    hidden, weight = torch.randn(positions, width), torch.randn(vocab, width) / width**0.5
    tokens = torch.randint(vocab, (positions,))
    logits_bytes = positions * vocab * 4
    for fn in (log_probs, top_p):
        for inner in ("aot_eager", "inductor"):
            options = {"anchors": "rowwise", "through_matmul": True, "row_chunk": positions // 64, "min_bytes": 1}
            seen = sortpass.compare(fn, hidden, weight, tokens, rounds=3, inner=inner, **options)
            whole, chunked = (peak / logits_bytes for peak in seen.peak_bytes)
            errors = "" if seen.errors is None else ", error against float64 {:.2g} -> {:.2g}".format(*seen.errors)
            site = next(site for report in seen.reports for site in report.sites)
            print(
                f"{fn.__name__} under {inner}: {whole:.2f} -> {chunked:.3f} times the logits "
                f"(a window: {site.window_bytes / logits_bytes:.3f}); time {seen.time_ratio:.2f}x{errors}\n"
            )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
