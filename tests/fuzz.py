"""Random programs, whole against chunked, for as long as asked.

    make fuzz PROGRAMS=20000
    make fuzz SECONDS=600 SEED=7

Batch ``k`` is drawn from seed ``SEED + k``, so a run can be repeated, and a failing batch by itself. The first program
that differs is shrunk, printed as code that runs, and ends the run with status 1.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import logging
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import hypothesis
from fuzz_programs import Functions, Program, programs
from fuzzing import Options, Outcome, check_compiled, check_gradients, check_traced, options
from hypothesis import HealthCheck, Phase

from sortpass.console import Progress, Table, progress, say, show

BATCH = 250
COMPILED_EVERY = 50  # programs; torch.compile takes twenty times as long as a trace

Check = Callable[[Functions, Options], Outcome]


@dataclasses.dataclass
class Tally:
    """What was checked so far."""

    outcomes: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    patterns: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    kinds: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    region_sizes: list[int] = dataclasses.field(default_factory=list)

    @property
    def programs(self) -> int:
        return self.outcomes["programs"]

    def add(self, program: Program, outcome: Outcome, way: str) -> None:
        self.outcomes.update(["programs", way])
        if outcome.skipped is not None:
            self.outcomes[outcome.skipped] += 1
        self.outcomes["at two row counts"] += outcome.second_row_count
        if outcome.region_ops:
            self.outcomes["rewritten"] += 1
            self.outcomes["rewritten, promised to be bitwise"] += outcome.bitwise
            self.region_sizes += outcome.region_ops
            self.patterns.update({line.pattern for line in program.lines})
            self.kinds.update({line.kind for line in program.lines})


@dataclasses.dataclass(frozen=True)
class Failure:
    """The smallest program of a batch that failed."""

    program: Program
    options: Options
    check: str
    error: Exception

    def as_code(self) -> str:
        """A file that fails when run in ``tests/``."""
        program = self.program
        return (
            "import torch\nimport torch.nn.functional as F\n"
            f"from fuzz_programs import Functions\nfrom fuzzing import Options, {self.check}\n\n\n"
            f"{program.source()}\n\n"
            f"case = Functions(inputs, program, rows={program.rows}, other_rows={program.other_rows})\n"
            f"{self.check}(case, {self.options})\n"
        )


def fuzz(check: Check, seed: int | None, count: int, tally: Tally, progress: Progress | None = None) -> Failure | None:
    """Check ``count`` programs; without a seed always the same ones.

    Returns:
        The smallest failing program found, or None.
    """
    way = check.__name__
    last: list[Failure] = []

    def run(program: Program, options: Options) -> None:
        try:
            outcome = check(program.functions(), options)
        except Exception as error:
            last[:] = [Failure(program, options, way, error)]
            raise
        tally.add(program, outcome, way)
        if progress is not None:
            progress.tick()

    test = hypothesis.given(programs(), options())(run)
    test = hypothesis.settings(
        max_examples=count,
        database=None,
        deadline=None,
        derandomize=seed is None,
        phases=(Phase.generate, Phase.shrink),
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )(test)
    try:
        (test if seed is None else hypothesis.seed(seed)(test))()
    except Exception:
        if not last:
            raise
        return last[0]  # Hypothesis runs the smallest one last
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, default=2000, help="how many to check (default: 2000)")
    parser.add_argument("--seconds", type=float, help="how long to go on instead")
    parser.add_argument("--seed", type=int, default=0, help="of the first batch (default: 0)")
    args = parser.parse_args()
    logging.getLogger("torch").setLevel(logging.CRITICAL)  # it logs what whole and chunked raise alike
    started = time.monotonic()
    tally, seed, failure = Tally(), args.seed, None
    with progress(0 if args.seconds else args.programs) as bar:
        while failure is None and _goes_on(args, tally, started):
            left = BATCH if args.seconds else min(BATCH, args.programs - tally.programs)
            num_compiled = left // COMPILED_EVERY
            counts = {
                check_traced: left - 2 * num_compiled,
                check_compiled: num_compiled,
                check_gradients: num_compiled,
            }
            for check, count in counts.items():
                if failure is None and count:
                    failure = fuzz(check, seed, count, tally, bar)
            bar.stage(f"seed {seed}: {tally.programs:,} programs, {tally.outcomes['rewritten']:,} rewritten")
            seed += 1
    _show_tally(tally, args.seed, seed - 1, time.monotonic() - started)
    if failure is not None:
        say(f"\nA difference, found with seed {seed - 1}: {failure.error}\n\n{failure.as_code()}")
    return failure is not None


def _goes_on(args: argparse.Namespace, tally: Tally, started: float) -> bool:
    if args.seconds:
        return time.monotonic() - started < args.seconds
    return tally.programs < args.programs


def _show_tally(tally: Tally, first_seed: int, last_seed: int, seconds: float) -> None:
    sizes = tally.region_sizes
    facts: dict[str, Any] = {
        **tally.outcomes,
        "regions": len(sizes),
        "ops in a region, mean": f"{sum(sizes) / max(len(sizes), 1):.1f}",
        "ops in a region, most": max(sizes, default=0),
        "different lines in rewritten programs": len(tally.patterns),
        "seeds": f"{first_seed} to {last_seed}",
        "seconds": f"{seconds:.0f}",
    }
    rows = [(name, f"{value:,}" if isinstance(value, int) else value) for name, value in facts.items()]
    show(Table("Random programs, whole against chunked", ("what", "how many"), rows))
    kinds = [(kind, f"{count:,}") for kind, count in tally.kinds.most_common()]
    show(Table("Rewritten programs with lines of a kind", ("kind", "programs"), kinds))


if __name__ == "__main__":
    raise SystemExit(main())
