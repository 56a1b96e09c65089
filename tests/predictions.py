"""Predicted against measured peaks: every warper and sampler, shapes, chunk sizes and inners. Takes minutes.

    python tests/predictions.py [--inner inductor] [--json FILE]

Exit status 1 where a prediction is off by more than 5% (``aot_eager``) or 15% (Inductor), or where a chunked peak is
above the whole one.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import torch
from helpers import compile_chunked, compile_whole
from samplers import SAMPLERS, inputs_for

import sortpass
from sortpass.console import Table, progress, say, show
from sortpass.measure import peak_bytes

SHAPES = ((512, 4_000), (256, 32_064), (64, 128_256))
TOLERANCE = {"aot_eager": 0.05, "inductor": 0.15}
COUNTER_BYTES = 64


def compare(inner: str, rows: int, vocab: int, name: str) -> Iterator[dict[str, Any]]:
    """Whole, and chunks of a sixteenth and a quarter of the rows."""
    torch._dynamo.reset()
    args = inputs_for(name, rows, vocab)
    whole = compile_whole(SAMPLERS[name], inner)
    whole(*args)
    whole_bytes = peak_bytes(lambda: whole(*args))
    for row_chunk in (rows // 16, rows // 4):
        chunked = compile_chunked(SAMPLERS[name], inner, row_chunk=row_chunk, force=False)
        with sortpass.capture_reports() as reports:
            chunked(*args)
        estimate = sortpass.estimate(SAMPLERS[name], *args, row_chunk=row_chunk, min_bytes=1, inner=inner)
        yield {
            "inner": inner,
            "sampler": name,
            "shape": [rows, vocab],
            "row_chunk": row_chunk,
            "rewritten": reports[0].modified,
            "whole": [estimate.peak_bytes_whole, whole_bytes],
            "chunked": [estimate.peak_bytes_chunked, peak_bytes(lambda chunked=chunked: chunked(*args))],
        }


def error(pair: list[int]) -> float:
    return pair[0] / pair[1] - 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inner", nargs="+", choices=tuple(TOLERANCE), default=list(TOLERANCE))
    parser.add_argument("--json", type=Path, help="write the numbers there")
    options = parser.parse_args()
    cases = [(i, *shape, name) for i in options.inner for shape in SHAPES for name in SAMPLERS]
    rows: list[dict[str, Any]] = []
    with progress(len(cases)) as bar:
        for case in cases:
            rows += compare(*case)
            bar.tick()
    for row in rows:
        row["bytes per logit"] = row["shape"][0] * row["shape"][1]
    show(
        Table(
            "Peak above the inputs, bytes per logit: predicted / measured",
            ("inner", "sampler", "shape", "row_chunk", "whole", "error", "chunked", "error"),
            [
                (
                    row["inner"],
                    row["sampler"],
                    str(row["shape"]),
                    str(row["row_chunk"]),
                    *(
                        text
                        for pair in (row["whole"], row["chunked"])
                        for text in (
                            " / ".join(f"{count / row['bytes per logit']:.2f}" for count in pair),
                            f"{error(pair):+.1%}",
                        )
                    ),
                )
                for row in rows
            ],
        )
    )
    if options.json is not None:
        options.json.write_text(json.dumps({"torch": torch.__version__, "rows": rows}, indent=1) + "\n")
    wrong = [r for r in rows if max(abs(error(r["whole"])), abs(error(r["chunked"]))) > TOLERANCE[r["inner"]]]
    worse = [r for r in rows if r["chunked"][1] > r["whole"][1] + COUNTER_BYTES]
    for what, found in (("off by more than the tolerance", wrong), ("higher than whole", worse)):
        for row in found:
            say(f"{what}: {row}")
    return 1 if wrong or worse else 0


if __name__ == "__main__":
    sys.exit(main())
