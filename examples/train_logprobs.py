"""Train on log-probs and entropies: whole, by hand with a checkpoint per chunk, and chunked with ``recompute``.

Sizes, and a file for the numbers, may be given: ``512 128256 train_logprobs.json``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from torch.utils.checkpoint import checkpoint

from sortpass.measure import interleaved_times, median_ratio, own_code, peak_bytes

CHUNKS = 16


def score(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """``[N, V]`` logits and ``[N]`` tokens -> log-probs and entropies, ``[2, N]``."""
    lp = logits.float().log_softmax(-1)
    return torch.stack([lp.gather(-1, tokens.unsqueeze(-1)).squeeze(-1), -(lp.exp() * lp).sum(-1)])


def by_hand(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    pairs = zip(logits.chunk(CHUNKS), tokens.chunk(CHUNKS), strict=True)
    return torch.cat([checkpoint(score, *pair, use_reentrant=False) for pair in pairs], dim=1)


def kept_bytes(fn, logits: torch.Tensor, tokens: torch.Tensor) -> int:
    kept = {}
    save = lambda t: kept.update({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes()}) or t  # noqa: E731
    with torch.autograd.graph.saved_tensors_hooks(save, lambda t: t):
        fn(logits, tokens)
    return sum(size for pointer, size in kept.items() if pointer != logits.untyped_storage().data_ptr())


def main(rows: int = 256, vocab: int = 8_000, path: str = "") -> None:
    logits = (4 * torch.randn(rows, vocab)).bfloat16().requires_grad_()
    tokens = torch.randint(vocab, (rows,))
    options = {"anchors": "rowwise", "recompute": True, "row_chunk": rows // CHUNKS, "min_bytes": 1 << 18}
    results = {}
    for inner in ("aot_eager", "inductor"):
        ours = torch.compile(own_code(score), backend="chunked_sort", options={**options, "inner": inner})
        fns = {"whole": torch.compile(own_code(score), backend=inner), "by hand": by_hand, "chunked": ours}
        steps = {name: lambda f=f: torch.autograd.grad(f(logits, tokens).sum(), logits) for name, f in fns.items()}
        seconds = interleaved_times(steps, rounds=9)
        for name, step in steps.items():
            peak, kept = (n / logits.nbytes for n in (peak_bytes(step), kept_bytes(fns[name], logits, tokens)))
            time = median_ratio(seconds[name], seconds["whole"])
            results[f"{inner}, {name}"] = {"peak": peak, "kept": kept, "time": time}
            print(f"{inner:10}{name:8} peak {peak:6.3f}, kept {kept:.4f} times the bf16 logits; time {time:.2f}x")
    if path:
        Path(path).write_text(json.dumps({"torch": torch.__version__, "shape": [rows, vocab], **results}, indent=1))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]), *sys.argv[3:])
