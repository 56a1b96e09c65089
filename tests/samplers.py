"""Samplers that users run: HF's warpers as they come, and a vLLM-style one with per-row k and p."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.generation import logits_process as hf


def top_p(ids: Tensor, scores: Tensor) -> Tensor:
    return hf.TopPLogitsWarper(0.9)(ids, scores)


def top_k_top_p(ids: Tensor, scores: Tensor) -> Tensor:
    return hf.TopPLogitsWarper(0.9)(ids, hf.TopKLogitsWarper(50)(ids, scores))


def typical(ids: Tensor, scores: Tensor) -> Tensor:
    return hf.TypicalLogitsWarper(0.9)(ids, scores)


def min_p(ids: Tensor, scores: Tensor) -> Tensor:
    return hf.MinPLogitsWarper(0.1)(ids, scores)


def eta(ids: Tensor, scores: Tensor) -> Tensor:
    return hf.EtaLogitsWarper(0.0003, device="cpu")(ids, scores)


def epsilon(ids: Tensor, scores: Tensor) -> Tensor:
    return hf.EpsilonLogitsWarper(0.0003)(ids, scores)


def chain(ids: Tensor, scores: Tensor) -> Tensor:
    """Repetition penalty, temperature, then every warper."""
    scores = hf.RepetitionPenaltyLogitsProcessor(1.2)(ids, scores)
    scores = hf.TemperatureLogitsWarper(0.7)(ids, scores)
    for warp in (top_k_top_p, min_p, typical, epsilon, eta):
        scores = warp(ids, scores)
    return scores


def per_row(logits: Tensor, k: Tensor, p: Tensor) -> Tensor:
    """Top-k and top-p with a k and a p for each row, masks scattered back."""
    ordered, index = logits.sort(dim=-1)
    kth = ordered.gather(1, (ordered.size(1) - k).unsqueeze(1))
    ordered = ordered.masked_fill(ordered < kth, -float("inf"))
    drop = ordered.softmax(-1).cumsum(-1) <= 1 - p.unsqueeze(1)
    drop[:, -1] = False
    return ordered.masked_fill(drop, -float("inf")).scatter(-1, index, ordered.masked_fill(drop, -float("inf")))


def per_row_in_place(logits: Tensor, k: Tensor, p: Tensor) -> Tensor:
    """The same, written back into the caller's logits."""
    ordered, index = logits.sort(dim=-1)
    kth = ordered.gather(1, (ordered.size(1) - k).unsqueeze(1))
    ordered.masked_fill_(ordered < kth, -float("inf"))
    drop = ordered.softmax(-1).cumsum(-1) <= 1 - p.unsqueeze(1)
    drop[:, -1] = False
    ordered.masked_fill_(drop, -float("inf"))
    return logits.scatter_(-1, index, ordered)


WARPERS = {fn.__name__: fn for fn in (top_p, top_k_top_p, typical, min_p, eta, epsilon, chain)}
PER_ROW = {fn.__name__: fn for fn in (per_row, per_row_in_place)}
SAMPLERS = {**WARPERS, **PER_ROW}


def inputs_for(name: str, rows: int, vocab: int) -> tuple[Any, ...]:
    logits = torch.randn(rows, vocab) * 3
    if name in PER_ROW:
        return logits, torch.randint(1, vocab, (rows,)), torch.rand(rows)
    return torch.randint(0, vocab, (rows, 5)), logits
