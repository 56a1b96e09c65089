"""The samplers the benchmark runs: plain functions from logits to filtered logits.

Each sorts the whole ``[rows, vocab]`` logits ascending, marks what to drop in sorted order, and scatters the result
back to vocabulary order, so each holds values, indices and several intermediates of the size of the logits at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

TOP_P = 0.9
TYPICAL_MASS = 0.9
MAX_TOP_K = 50

Sampler = Callable[..., Any]


def top_p(logits: torch.Tensor) -> torch.Tensor:
    """Keep the most likely tokens that add up to :data:`TOP_P`, as HF's ``TopPLogitsWarper`` does."""
    values, indices = torch.sort(logits, descending=False)
    cumulative = values.softmax(dim=-1).cumsum(dim=-1)
    sorted_remove = cumulative <= (1 - TOP_P)
    sorted_remove[..., -1:] = False
    remove = sorted_remove.scatter(1, indices, sorted_remove)
    return logits.masked_fill(remove, -torch.inf)


def plain_sort(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The sort alone, of which everything is kept: values and indices, 12 bytes per logit."""
    return torch.sort(logits)


def typical(logits: torch.Tensor) -> torch.Tensor:
    """Keep the tokens whose surprise is nearest to the entropy, up to :data:`TYPICAL_MASS`, as HF's
    ``TypicalLogitsWarper`` does."""
    log_probs = logits.log_softmax(dim=-1)
    entropy = -(log_probs * log_probs.exp()).nansum(-1, keepdim=True)
    distance, indices = torch.sort((-log_probs - entropy).abs(), descending=False)
    cumulative = logits.gather(-1, indices).softmax(dim=-1).cumsum(dim=-1)
    last = (cumulative < TYPICAL_MASS).sum(dim=1, keepdim=True).clamp(max=logits.shape[-1] - 1)
    remove = distance > distance.gather(1, last)
    remove[..., :1] = False
    remove = remove.scatter(1, indices, remove)
    return logits.masked_fill(remove, -torch.inf)


def top_k_top_p(logits: torch.Tensor, k: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
    """Keep each row's ``k`` largest logits, then of those its most likely that add up to ``p``, as vLLM's sampler does.

    Args:
        logits: ``[rows, vocab]``.
        k: tokens, int64 ``[rows]``.
        p: probability, ``[rows]``.
    """
    values, indices = logits.sort(dim=-1, descending=False)
    kth_largest = values.gather(1, (values.shape[-1] - k).unsqueeze(1))
    values = values.masked_fill(values < kth_largest, -torch.inf)
    remove = values.softmax(dim=-1).cumsum(dim=-1) <= 1 - p.unsqueeze(1)
    remove[:, -1] = False
    values = values.masked_fill(remove, -torch.inf)
    return values.scatter(-1, indices, values)


SAMPLERS: dict[str, Sampler] = {
    "top_p": top_p,
    "typical": typical,
    "top_k_top_p": top_k_top_p,
    "sort": plain_sort,
}


def example_args(sampler: str, rows: int, vocab: int, device: str) -> tuple[torch.Tensor, ...]:
    """Arguments for a sampler of :data:`SAMPLERS`: fixed-seed float32 logits, and ``k`` and ``p`` if taken."""
    generator = torch.Generator().manual_seed(0)
    # A spread of 4 makes top-p keep a small part of the vocabulary, as trained models do.
    logits = (4 * torch.randn(rows, vocab, generator=generator)).to(device)
    if sampler != "top_k_top_p":
        return (logits,)
    k = torch.randint(1, min(MAX_TOP_K, vocab) + 1, (rows,), generator=generator)
    p = 0.5 + 0.5 * torch.rand(rows, generator=generator)
    return logits, k.to(device), p.to(device)
