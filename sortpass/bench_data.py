"""What the benchmark is asked and what it answers, as data."""

from __future__ import annotations

import dataclasses

SCALING_STEPS = 3  # row counts: num_tokens / 4, / 2 and num_tokens


@dataclasses.dataclass(frozen=True, kw_only=True)
class BenchSettings:
    """What is measured.

    Attributes:
        num_tokens: rows of the logits.
        vocab_size: columns of the logits.
        row_chunks: rows, the values of the option to try.
        inners: compilers to try.
        sampler: name in :data:`sortpass.samplers.SAMPLERS`.
        rounds: timed runs of each variant.
        device: where everything runs.
        check_accuracy: compare each chunked result with the whole one.
        scaling: also measure how the peak grows with the rows.
    """

    num_tokens: int = 512
    vocab_size: int = 128_256
    row_chunks: tuple[int, ...] = (64, 8)
    inners: tuple[str, ...] = ("aot_eager", "inductor")
    sampler: str = "top_p"
    rounds: int = 5
    device: str = "cpu"
    check_accuracy: bool = False
    scaling: bool = False

    @property
    def num_units(self) -> int:
        """Ticks of progress: one per compile, peak, warm-up and timed run."""
        variants = 2 + 2 * len(self.row_chunks)
        scaling = SCALING_STEPS * (1 + len(self.row_chunks)) if self.scaling else 0
        return len(self.inners) * (variants * (3 + self.rounds) + scaling)


@dataclasses.dataclass(frozen=True)
class Variant:
    """One way to run the sampler; ``scope`` and ``row_chunk`` (rows) are None where the pass does not run."""

    label: str
    inner: str | None
    scope: str | None = None
    row_chunk: int | None = None


@dataclasses.dataclass(frozen=True)
class BenchRow:
    """The numbers of one variant.

    Attributes:
        inner: the inner compiler it was compared under.
        variant: its label.
        scope: ``"region"``, ``"sort"``, or None where the pass did not run.
        row_chunk: rows, or None.
        peak_bytes: the most bytes at once above the input.
        bytes_per_logit: the same per element of the logits.
        seconds: median time.
        compile_seconds: the first call minus the fastest, from empty Inductor caches; None for eager.
        peak_ratio: peak relative to whole.
        time_ratio: median over the rounds of the time relative to whole's in the same round.
        bound: the stated bound in bytes per logit; None where none is stated.
        within_bound: whether the peak keeps it.
        equal_to_whole: whether the result is bit-equal to whole's; None where not compared.
        rewritten: ``"1 of 1"`` sorts, or why not; empty where the pass did not run.
    """

    inner: str
    variant: str
    scope: str | None
    row_chunk: int | None
    peak_bytes: int
    bytes_per_logit: float
    seconds: float
    compile_seconds: float | None
    peak_ratio: float
    time_ratio: float
    bound: float | None
    within_bound: bool | None
    equal_to_whole: bool | None
    rewritten: str


@dataclasses.dataclass(frozen=True)
class ScalingRow:
    """One variant at one row count; ``extra_bytes`` is its peak above the input without the bytes of its outputs."""

    inner: str
    variant: str
    rows: int
    extra_bytes: int


@dataclasses.dataclass(frozen=True)
class BenchResult:
    """Everything that was measured."""

    settings: BenchSettings
    rows: tuple[BenchRow, ...]
    scaling: tuple[ScalingRow, ...]

    @property
    def passed(self) -> bool:
        """No bound was broken and no result differed."""
        return all(row.within_bound is not False and row.equal_to_whole is not False for row in self.rows)
