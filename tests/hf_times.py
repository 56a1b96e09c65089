"""Time of a ``generate`` step with the bridge relative to without, and tokens under Inductor; run by hand.

python tests/hf_times.py --json examples/results/cpu-2-threads/hf.json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import hf_models
import torch
import transformers as hf

import sortpass
from sortpass.measure import interleaved_times, median_ratio

TOP_P = {"temperature": 0.7, "top_k": 0, "top_p": 0.9}
EVERYTHING = {
    **TOP_P,
    "top_k": 50,
    "typical_p": 0.95,
    "min_p": 0.01,
    "repetition_penalty": 1.2,
    "no_repeat_ngram_size": 3,
}
# name -> family, rows, options of generate, options of the bridge. The last three are below min_bytes.
RUNS: dict[str, tuple[str, int, dict[str, Any], dict[str, Any]]] = {
    "large, top-p": ("llama", 128, TOP_P, {}),
    "large, top-p, 16 rows a chunk": ("llama", 128, TOP_P, {"row_chunk": 16}),
    "large, everything": ("llama", 128, EVERYTHING, {}),
    "medium, top-p": ("gpt2", 64, TOP_P, {}),
    "one chunk, top-p": ("llama", 16, TOP_P, {}),
    "small, top-p": ("gpt2", 16, TOP_P, {}),
    "small, everything": ("gpt2", 4, EVERYTHING, {}),
    "one sequence, top-p": ("llama", 1, TOP_P, {}),
}


def step_time(family: str, rows: int, options: dict[str, Any], bridge: dict[str, Any], rounds: int) -> dict[str, Any]:
    """Median over the rounds of the time of a generate call with the bridge relative to one without."""
    model, inputs = hf_models.make(family), hf_models.inputs_of(family, rows=rows)
    tokens = 2 if rows >= 64 else 16

    def whole() -> Any:
        torch.manual_seed(0)
        return model.generate(**inputs, do_sample=True, max_new_tokens=tokens, min_new_tokens=tokens, **options)

    reports = []

    def chunked() -> Any:
        with sortpass.hf.chunked_generation(model, **bridge) as report:
            out = whole()
        reports.append(report)
        return out

    assert torch.equal(whole(), chunked())
    more = 1 if rows >= 64 else 3  # short runs are noisy
    seconds = interleaved_times({"whole": whole, "chunked": chunked}, rounds=more * rounds)
    return {
        "rows": rows,
        "vocab": model.config.vocab_size,
        "seconds per step": round(min(seconds["whole"]) / tokens, 4),
        "time": round(median_ratio(seconds["chunked"], seconds["whole"]), 3),
        "compiles": sum(report.compiles for report in reports),
        "rewritten": sum(graph.num_rewritten for graph in reports[-1].graphs),
    }


def inductor_tokens(steps: int, rows: int = 128, vocab: int = 32_128) -> dict[str, int]:
    """Tokens drawn from the same scores by top-p under Inductor, whole and chunked, and how many differ."""
    from sortpass.hf.options import read_options
    from sortpass.hf.processors import Bridge, ChunkedProcessorList

    def processors(**options: Any) -> ChunkedProcessorList:
        config, options = read_options({"inner": "inductor", "min_bytes": 1, **options})
        warpers = [hf.TemperatureLogitsWarper(0.7), hf.TopPLogitsWarper(0.9), hf.TypicalLogitsWarper(0.95)]
        return ChunkedProcessorList(warpers, Bridge(config, options, sortpass.hf.GenerationReport()))

    whole, chunked = processors(row_chunk=rows), processors(row_chunk=16)
    ids, generator = torch.zeros(rows, 4, dtype=torch.long), torch.Generator().manual_seed(0)
    counts = {"tokens drawn": 0, "tokens that differ": 0, "scores kept by one only": 0, "scores": 0}
    for step in range(steps):
        scores = 3 * torch.randn(rows, vocab, generator=generator)
        a, b = whole(ids, scores), chunked(ids, scores)
        draws = []
        for kept in (a, b):
            torch.manual_seed(step)
            draws.append(torch.multinomial(kept.softmax(-1), 1))
        counts["tokens drawn"] += rows
        counts["tokens that differ"] += int((draws[0] != draws[1]).sum())
        counts["scores"] += a.numel()
        counts["scores kept by one only"] += int((a.isfinite() != b.isfinite()).sum())
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write the numbers there, too")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=20, help="batches to draw from under Inductor")
    args = parser.parse_args()

    result: dict[str, Any] = {"torch": torch.__version__, "transformers": hf.__version__}
    result["threads"] = torch.get_num_threads()
    result["generate"] = {}
    for name, run in RUNS.items():
        result["generate"][name] = step_time(*run, rounds=args.rounds)
        print(name, result["generate"][name], flush=True)
    result["inductor"] = inductor_tokens(args.steps)
    print(result["inductor"])
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
