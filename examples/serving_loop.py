"""A serving loop: the batch changes every step; one graph serves all small batches and one all large ones."""

from __future__ import annotations

import random

import torch
from torch._dynamo.utils import counters

import sortpass
from sortpass.samplers import top_p

VOCAB = 8_000
STEPS = 30


def main() -> None:
    options = {"row_chunk": 32, "min_bytes": 1, "inner": "aot_eager"}
    warp = torch.compile(top_p, backend="chunked_sort", options=options)
    sizes = random.Random(0).choices(range(2, 200), k=STEPS)
    counters.clear()
    with sortpass.capture_reports() as reports:
        for rows in sizes:
            logits = torch.randn(rows, VOCAB)
            assert torch.equal(warp(logits), top_p(logits))
    print(f"{STEPS} steps, {len(set(sizes))} batch sizes, {counters['stats']['unique_graphs']} graphs compiled")
    for report in reports:
        print(f"  {report.sites[0].rows} rows: {report.sites[0].reason}")


if __name__ == "__main__":
    main()
