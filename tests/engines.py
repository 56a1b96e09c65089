"""Sampling and log-prob functions of the shapes that serving engines and RL trainers run, written for these tests.

Logits are ``[rows, vocab]`` float32 or bfloat16 unless said otherwise; what holds one value a row is ``[rows]``. Each
function does the steps that the engine's public description names, in that order, in plain torch.

python tests/engines.py 256 32064    # the tables of docs/engines.md: rows, vocabulary
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from helpers import as_list, compile_chunked, compile_whole
from torch import Tensor
from torch._inductor.exc import InductorError

from sortpass.measure import peak_bytes

NEVER = -float("inf")


def vllm_top_k_top_p(logits: Tensor, k: Tensor, p: Tensor) -> Tensor:
    """Ascending sort, a k and a p for each row, the masked values scattered back into the caller's logits."""
    ordered, index = logits.sort(dim=-1)
    smallest_kept = ordered.gather(1, ordered.size(1) - k.long()[:, None])
    ordered.masked_fill_(ordered < smallest_kept, NEVER)
    mass = ordered.softmax(-1)
    torch.cumsum(mass, dim=-1, out=mass)
    drop = mass <= 1 - p[:, None]
    drop[:, -1] = False
    ordered.masked_fill_(drop, NEVER)
    return logits.scatter_(-1, index, ordered)


def vllm_penalties(logits: Tensor, prompt: Tensor, output: Tensor, penalties: Tensor) -> Tensor:
    """Repetition, frequency and presence penalties, in place, from token counts ``[rows, vocab]``.

    ``prompt`` and ``output`` are token ids padded with the vocabulary's size; ``penalties`` is ``[3, rows]``.
    """
    repetition, frequency, presence = penalties[:, :, None]
    counts = _counts(output, *logits.shape)
    seen = (_counts(prompt, *logits.shape) > 0) | (counts > 0)
    factor = torch.where(seen, repetition, 1.0)
    logits *= torch.where(logits > 0, 1 / factor, factor)
    logits -= frequency * counts
    logits -= presence * (counts > 0)
    return logits


def _counts(tokens: Tensor, rows: int, vocab: int) -> Tensor:
    counts = torch.zeros((rows, vocab + 1), dtype=torch.long, device=tokens.device)
    return counts.scatter_add_(1, tokens, torch.ones_like(tokens))[:, :vocab]


def vllm_sample(
    logits: Tensor, prompt: Tensor, output: Tensor, penalties: Tensor, temperature: Tensor, k: Tensor, p: Tensor
) -> Tensor:
    """A sampler's whole step: penalties, temperature, top-k and top-p, and the exponential race that stands for a draw.

    The race's noise is made from a shape, not from the probabilities, so no path leads from these to it. Token ids.
    """
    scores = vllm_penalties(logits.float(), prompt, output, penalties).div_(temperature[:, None])
    probs = vllm_top_k_top_p(scores, k, p).softmax(-1, dtype=torch.float32)
    race = torch.empty(probs.shape, device=probs.device).exponential_()
    return probs.div_(race).argmax(-1)


def vllm_prompt_logprobs(logits: Tensor, num: int, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Ids and log-probs ``[rows, 1 + num]`` of the prompt's token and of the likeliest, and that token's rank."""
    logprobs = logits.log_softmax(dim=-1, dtype=torch.float32)
    top, top_ids = logprobs.topk(num, dim=-1)
    tokens = tokens[:, None]
    chosen = logprobs.gather(-1, tokens)
    rank = (logprobs >= chosen).sum(-1)
    return torch.cat((tokens, top_ids), 1).int(), torch.cat((chosen, top), 1), rank


def sglang_keep(probs: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> tuple[Tensor, Tensor]:
    """Descending sort of probabilities with what top-k, top-p and min-p drop set to 0, and the token ids."""
    ordered, ids = probs.sort(dim=-1, descending=True)
    mass = ordered.cumsum(-1)
    ordered[torch.arange(probs.shape[-1], device=probs.device)[None] >= top_k[:, None]] = 0.0
    ordered[mass - ordered > top_p[:, None]] = 0.0
    least = ordered[:, 0] * min_p
    ordered[ordered < least[:, None]] = 0.0
    return ordered, ids


def sglang_sample(probs: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    """The same and a multinomial draw: token ids."""
    kept, ids = sglang_keep(probs, top_k, top_p, min_p)
    return ids.int().gather(1, torch.multinomial(kept, 1)).view(-1)


def sglang_seeded_sample(probs: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, seeds: Tensor) -> Tensor:
    """The same with Gumbel noise in float64 from a hash of each row's seed and the position: no generator involved."""
    kept, ids = sglang_keep(probs, top_k, top_p, min_p)
    mixed = (seeds[:, None] * 2_654_435_761 + torch.arange(probs.shape[-1], device=probs.device)) * 2_246_822_519
    mixed = (mixed ^ (mixed >> 13)) & 0xFFFF_FFFF
    uniform = (mixed.double() + 0.5) / 2**32
    drawn = (kept.double().log() - (-uniform.log()).log()).argmax(-1, keepdim=True)
    return ids.int().gather(1, drawn).view(-1)


def trl_logps_and_entropy(logits: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Log-prob of each token and entropy at each position, of logits ``[batch, length, vocab]``."""
    logps = logits.log_softmax(-1)
    return logps.gather(-1, tokens[..., None]).squeeze(-1), -(logps.exp() * logps).sum(-1)


def trl_selective_log_softmax(logits: Tensor, tokens: Tensor) -> Tensor:
    """Log-probs only, with a Python loop over the batch that keeps one sequence's scores at a time."""
    chosen = logits.gather(-1, tokens[..., None]).squeeze(-1)
    return chosen - torch.stack([sequence.logsumexp(-1) for sequence in logits])


def verl_logprobs_and_entropy(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Of packed logits ``[tokens, vocab]``: log-probs of the labels, and entropy as logsumexp minus mean logit."""
    logprobs = logits.log_softmax(-1).gather(-1, labels[:, None]).squeeze(-1)
    probs = logits.softmax(-1)
    return logprobs, logits.logsumexp(-1) - (probs * logits).sum(-1)


def verl_entropy(logits: Tensor) -> Tensor:
    """The entropy alone, as it is compiled there; logits in half precision, as a trainer has them."""
    return logits.logsumexp(-1) - (logits.softmax(-1) * logits).sum(-1)


ENGINES: dict[str, Callable[..., Any]] = {
    fn.__name__: fn
    for fn in (
        *(vllm_top_k_top_p, vllm_sample, vllm_prompt_logprobs),
        *(sglang_sample, sglang_seeded_sample),
        *(trl_logps_and_entropy, trl_selective_log_softmax, verl_logprobs_and_entropy, verl_entropy),
    )
}


def inputs_for(name: str, rows: int, vocab: int) -> tuple[Any, ...]:
    """Arguments of one of the functions above, from the global random state."""
    logits = torch.randn(rows, vocab) * 3
    k, p = torch.randint(1, vocab, (rows,)), torch.rand(rows)
    tokens = torch.randint(vocab, (rows,))
    prompt, output = torch.randint(vocab + 1, (rows, 20)), torch.randint(vocab + 1, (rows, 9))
    probs = (logits.softmax(-1), k.int(), p, torch.rand(rows) / 10)
    return {
        "vllm_top_k_top_p": (logits, k, p),
        "vllm_sample": (
            logits.bfloat16(),
            *(prompt, output, torch.rand(3, rows) + 0.5, torch.rand(rows) + 0.5, k, p),
        ),
        "vllm_prompt_logprobs": (logits.bfloat16(), 5, tokens),
        "sglang_sample": probs,
        "sglang_seeded_sample": (*probs, torch.randint(2**31, (rows,))),
        "trl_logps_and_entropy": (logits.view(4, -1, vocab), tokens.view(4, -1)),
        "trl_selective_log_softmax": (logits.view(4, -1, vocab), tokens.view(4, -1)),
        "verl_logprobs_and_entropy": (logits, tokens),
        "verl_entropy": (logits.bfloat16(),),
    }[name]


DRAWING = ("vllm_sample", "sglang_sample")
TRAINED = ("trl_logps_and_entropy", "verl_logprobs_and_entropy", "verl_entropy")


def gradient(fn: Callable[..., Any], logits: Tensor, *args: Tensor) -> Tensor:
    """Of a loss that weighs every position of every output, with respect to the logits."""
    logits.requires_grad_()
    loss: Any = 0
    for out in as_list(fn(logits, *args)):
        loss = loss + (out * (torch.arange(out.numel()).view_as(out) % 7 - 3)).sum()
    return torch.autograd.grad(loss, logits)[0]


def main(rows: int = 256, vocab: int = 4_000) -> None:
    print("| | `aot_eager` | Inductor |\n| --- | --- | --- |")
    for name, fn in ENGINES.items():
        print("|", " | ".join([f"`{name}`", *(_peaks(fn, name, inner, rows, vocab) for inner in INNERS)]), "|")
    print("\nallow_rng=True:\n\n| | `aot_eager` | Inductor |\n| --- | --- | --- |")
    for name in DRAWING:
        cells = (_peaks(ENGINES[name], name, inner, rows, vocab, allow_rng=True) for inner in INNERS)
        print("|", " | ".join([f"`{name}`", *cells]), "|")
    for name in TRAINED:
        args = inputs_for(name, rows, vocab)
        for inner in INNERS:
            whole, chunked = (
                _per_logit(lambda step=step: gradient(step, *args), rows * vocab)
                for step in _both(ENGINES[name], inner, rows)
            )
            print(f"{name}, forward and backward, {inner}: {whole} -> {chunked}")


INNERS = ("aot_eager", "inductor")


def _both(
    fn: Callable[..., Any], inner: str, rows: int, **options: Any
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    options = {"anchors": "rowwise", "recompute": True, "row_chunk": rows // 16, "force": False, **options}
    return compile_whole(fn, inner), compile_chunked(fn, inner, **options)


def _peaks(fn: Callable[..., Any], name: str, inner: str, rows: int, vocab: int, **options: Any) -> str:
    args = inputs_for(name, rows, vocab)
    steps = _both(fn, inner, rows, **options)
    return " -> ".join(_per_logit(lambda step=step: step(*args), rows * vocab) for step in steps)


def _per_logit(run: Callable[[], Any], num_logits: int) -> str:
    try:
        run()
    except InductorError:
        return "fails"
    return f"{peak_bytes(run) / num_logits:.1f}"


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
