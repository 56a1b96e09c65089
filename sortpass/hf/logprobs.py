"""Log-probs of a prompt's own tokens, in bounded memory."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch

from sortpass.backend import chunked_sort
from sortpass.hf.options import is_small, read_options
from sortpass.hf.report import BridgeError
from sortpass.measure import own_code


@dataclasses.dataclass(frozen=True)
class PromptLogprobs:
    """Of each token but the first, given those before it. ``T`` is the length of the prompt.

    Attributes:
        logprobs: float32 ``[batch, T - 1]``, natural logarithm.
        ranks: int64 ``[batch, T - 1]``; 1 for the most likely token. Equal log-probs share the worst rank among them.
        top_logprobs: float32 ``[batch, T - 1, top_n]``, descending.
        top_ids: int64 ``[batch, T - 1, top_n]``, the tokens they belong to.
    """

    logprobs: torch.Tensor
    ranks: torch.Tensor
    top_logprobs: torch.Tensor
    top_ids: torch.Tensor


def score(logits: torch.Tensor, tokens: torch.Tensor, top_n: int) -> tuple[torch.Tensor, ...]:
    """The straightforward computation, from ``[rows, vocab]`` logits and ``[rows]`` tokens."""
    logprobs = logits.float().log_softmax(-1)
    chosen = logprobs.gather(-1, tokens.unsqueeze(-1))
    ranks = (logprobs >= chosen).sum(-1)
    top_logprobs, top_ids = logprobs.topk(top_n, -1)
    return chosen.squeeze(-1), ranks, top_logprobs, top_ids


@torch.no_grad()
def prompt_logprobs(
    model: Any,
    input_ids: torch.Tensor,
    *,
    top_n: int = 1,
    chunk_options: Mapping[str, Any] | None = None,
    **model_kwargs: Any,
) -> PromptLogprobs:
    """Log-prob and rank of each token of a prompt, and the most likely tokens there.

    What is computed from the logits (their float32 copy, their log-softmax, comparisons) lives a chunk at a time. The
    logits ``[batch, T, vocab]`` themselves are the model's, and stay.

    Args:
        model: a causal language model of transformers.
        input_ids: int64 ``[batch, T]``.
        top_n: how many of the most likely tokens to return; 0 for none.
        chunk_options: the options of :func:`sortpass.hf.enable`.
        model_kwargs: for the model's forward, such as ``attention_mask``.

    Raises:
        ConfigError: an option is wrong.
        BridgeError: the model is an encoder-decoder, whose prompt is not what its logits are of.
        ValueError: ``top_n`` is negative, or larger than the vocabulary.

    Example:
        >>> seen = sortpass.hf.prompt_logprobs(model, input_ids, top_n=5)
        >>> (-seen.logprobs.mean()).exp()  # perplexity
    """
    if model.config.is_encoder_decoder:
        raise BridgeError(f"prompt_logprobs: {type(model).__name__} is an encoder-decoder; expected a causal LM")
    if "use_cache" in inspect.signature(model.forward).parameters:
        model_kwargs.setdefault("use_cache", False)  # keys and values of the prompt, needed by nobody
    logits = model(input_ids=input_ids, **model_kwargs).logits
    if not 0 <= top_n <= logits.shape[-1]:
        raise ValueError(f"prompt_logprobs: top_n is {top_n}; expected 0 to {logits.shape[-1]}, the vocabulary")
    config, options = read_options({"anchors": "rowwise", **(chunk_options or {})})
    # The last position predicts a token that is not there; scored with any other, it is dropped at the end. Cutting it
    # off first would copy the logits, or leave them in pieces of one row.
    rows, tokens = logits.flatten(0, 1), input_ids.to(logits.device).roll(-1, dims=1).flatten()
    key = (repr(sorted(options.items())), logits.shape[-1], logits.dtype)
    run = score if is_small(logits, config) else _compiled_score(key, options)
    scored = (part.unflatten(0, input_ids.shape)[:, :-1] for part in run(rows, tokens, top_n))
    return PromptLogprobs(*scored)


_scores: dict[Any, Callable[..., Any]] = {}


def _compiled_score(key: Any, options: dict[str, Any]) -> Callable[..., Any]:
    # One for each vocabulary and dtype: Dynamo compiles a function some eight times, then runs it whole.
    if key not in _scores:
        _scores[key] = torch.compile(own_code(score), backend=chunked_sort, options=options)
    return _scores[key]
