"""Train on log-probs and entropies: whole, in a loop, in a loop of checkpoints, and with ``recompute``.

Memory and time of a forward and a backward, and what is kept in between. Sizes may be given: ``512 128256``.
"""

from __future__ import annotations

import sys

import torch
from torch.utils.checkpoint import checkpoint

from sortpass.measure import interleaved_times, median_ratio, own_code, peak_bytes

CHUNKS = 16


def score(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """``[N, V]`` logits and ``[N]`` tokens -> log-probs and entropies, ``[2, N]``."""
    lp = logits.float().log_softmax(-1)
    return torch.stack([lp.gather(-1, tokens.unsqueeze(-1)).squeeze(-1), -(lp.exp() * lp).sum(-1)])


def in_a_loop(logits: torch.Tensor, tokens: torch.Tensor, score=score) -> torch.Tensor:
    return torch.cat([score(*pair) for pair in zip(logits.chunk(CHUNKS), tokens.chunk(CHUNKS), strict=True)], dim=1)


def checkpointed(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    return in_a_loop(logits, tokens, lambda *pair: checkpoint(score, *pair, use_reentrant=False))


def kept_bytes(fn, logits: torch.Tensor, tokens: torch.Tensor) -> int:
    kept = {}  # for the backward
    save = lambda t: kept.update({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes()})  # noqa: E731
    with torch.autograd.graph.saved_tensors_hooks(save, lambda _: None):
        fn(logits, tokens)
    return sum(size for pointer, size in kept.items() if pointer != logits.untyped_storage().data_ptr())


def main(rows: int = 256, vocab: int = 8_000) -> None:
    logits = (4 * torch.randn(rows, vocab)).bfloat16().requires_grad_()
    tokens = torch.randint(vocab, (rows,))
    options = {"anchors": "rowwise", "recompute": True, "row_chunk": rows // CHUNKS, "min_bytes": 1 << 18}
    fns = {"loop, eager": in_a_loop, "checkpoints, eager": checkpointed}
    for inner in ("aot_eager", "inductor"):
        fns[f"whole, {inner}"] = torch.compile(own_code(score), backend=inner)
        ours = {**options, "inner": inner}
        fns[f"recompute, {inner}"] = torch.compile(own_code(score), backend="chunked_sort", options=ours)
    steps = {name: lambda fn=fn: torch.autograd.grad(fn(logits, tokens).sum(), logits)[0] for name, fn in fns.items()}
    seconds = interleaved_times(steps, rounds=9)
    for name, step in steps.items():
        torch.testing.assert_close(step(), steps["loop, eager"]())
        peak, kept = peak_bytes(step) / logits.nbytes, kept_bytes(fns[name], logits, tokens) / logits.nbytes
        time = median_ratio(seconds[name], seconds["whole, aot_eager"])
        print(f"{name:20} peak {peak:6.3f}, kept {kept:.4f} times the bf16 logits; time {time:.2f}x")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
