"""Run a function whole and chunked under the same inner compiler, and see on it: equality, peak memory, time."""

from __future__ import annotations

import copy
import dataclasses
import statistics
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from sortpass.config import ChunkConfig, format_bytes
from sortpass.console import Table, plain, say, show
from sortpass.exactness import DISTRIBUTION
from sortpass.measure import interleaved_times, median_ratio, own_callable, peak_bytes, timed
from sortpass.report import PassReport, capture_reports


@dataclasses.dataclass(frozen=True)
class Comparison:
    """What two runs gave; ``str()`` of it is the table as plain text.

    Attributes:
        differences: what a caller could tell the runs apart by; empty where nothing.
        draws: values that differ because a region drew its own random numbers (``allow_rng=True``): those that another
            seed changes whole, too. Whole and chunked they have one distribution, which two runs cannot show.
        largest_difference: between floats of the results, draws left out; 0.0 where they have the same bits.
        errors: largest distance of the float results, whole and chunked, from those of the function as written on
            float64 arguments; None where they have the same bits, or it draws random numbers or takes no float64.
        peak_bytes: measured above the inputs, whole and chunked.
        predicted_bytes: what the pass predicted for both; None where it rewrote nothing.
        seconds: median time of a call, whole and chunked.
        time_ratio: median over the rounds of chunked relative to whole.
        compile_seconds: of the first call, whole and chunked, less a later one.
        reports: what the pass did, one per graph.
    """

    differences: tuple[str, ...]
    draws: tuple[str, ...]
    largest_difference: float
    errors: tuple[float, float] | None
    peak_bytes: tuple[int, int]
    predicted_bytes: tuple[int, int] | None
    seconds: tuple[float, float]
    time_ratio: float
    compile_seconds: tuple[float, float]
    reports: tuple[PassReport, ...]

    @property
    def equal(self) -> bool:
        """Whether results, writes into the arguments and the random state are bit-equal, strides included.

        Of :attr:`draws`, only dtypes, shapes and strides count.
        """
        return not self.differences

    @property
    def table(self) -> Table:
        """Whole and chunked side by side."""
        whole, chunked = self.peak_bytes
        rows = [
            ("peak above inputs", format_bytes(whole), format_bytes(chunked), f"{chunked / max(whole, 1):.2f}"),
            ("time", *(f"{value:.4f} s" for value in self.seconds), f"{self.time_ratio:.2f}"),
            ("compile time", *(f"{value:.1f} s" for value in self.compile_seconds), ""),
        ]
        if self.errors is not None:
            ratio = f"{self.errors[1] / self.errors[0]:.2f}" if self.errors[0] else ""
            rows.append(("error against float64", *(f"{error:.2g}" for error in self.errors), ratio))
        if self.predicted_bytes is not None:
            pairs = zip(self.predicted_bytes, self.peak_bytes, strict=True)
            texts = [f"{format_bytes(guess)} ({guess / max(real, 1) - 1:+.1%})" for guess, real in pairs]
            rows.insert(1, ("predicted peak", *texts, ""))
        return Table("Whole and chunked", ("", "whole", "chunked", "ratio"), rows)

    def notes(self) -> list[str]:
        """Equality, and what the pass did."""
        verdict = "equal: results, strides, writes into arguments, random state"
        if self.draws:
            verdict = "equal: whatever does not depend on a draw"
        return [*(self.differences or (verdict,)), *self.draws, *map(str, self.reports)]

    def __str__(self) -> str:
        return "\n".join([plain(self.table), *self.notes()])


def compare(fn: Callable[..., Any], *args: Any, rounds: int = 5, **options: Any) -> Comparison:
    """Compile ``fn`` with and without the pass, run both on copies of ``args``, show and return what differs.

    Args:
        fn: the function.
        args: its arguments, on the device to measure (CPU or CUDA).
        rounds: timed runs of each variant, in turn.
        options: see :class:`sortpass.ChunkConfig`.

    Returns:
        Equality, measured and predicted peaks, times, and the reports.

    Raises:
        ConfigError: an option is wrong.

    Example:
        >>> compare(top_p, torch.randn(512, 128256), memory_budget="64MiB").equal
        True
    """
    config = ChunkConfig.from_options(options)
    with torch.random.fork_rng():
        comparison = _compare(fn, args, rounds, config, options)
    show(comparison.table)
    for line in comparison.notes():
        say(line)
    return comparison


def _compare(
    fn: Callable[..., Any], args: tuple[Any, ...], rounds: int, config: ChunkConfig, options: dict[str, Any]
) -> Comparison:
    device = next((leaf.device.type for leaf in tree_leaves(args) if isinstance(leaf, torch.Tensor)), "cpu")

    variants = {
        "whole": torch.compile(own_callable(fn), backend=config.inner, dynamic=False),
        "chunked": torch.compile(own_callable(fn), backend="chunked_sort", options=options, dynamic=False),
    }
    first: dict[str, float] = {}
    seen: dict[str, list[Any]] = {}
    with capture_reports() as reports:
        for name, variant in variants.items():
            first[name] = timed(lambda: seen.update({name: _observe(variant, args)}), device)
    # Each run gets its own copy, made beforehand, since a sampler may write into its logits.
    spare = {name: copy.deepcopy(args) for name in variants}
    runs = {name: (lambda name=name: variants[name](*spare[name])) for name in variants}
    peaks = tuple(peak_bytes(runs[name], device) for name in variants)
    before = tree_leaves(args)
    written = _differences(before, seen["whole"][-1 - len(before) : -1]).keys()

    def restore() -> None:
        # Masked logits sort faster than fresh ones.
        for mine in spare.values():
            leaves = tree_leaves(mine)
            for position in written:
                leaves[position].detach().copy_(before[position])

    seconds = interleaved_times(runs, rounds=rounds, device=device, before=restore)
    whole, chunked = (statistics.median(seconds[name]) for name in variants)
    report = next((report for report in reports if report.modified), None)
    differ = _differences(seen["whole"], seen["chunked"])
    drew = any(site.exactness == DISTRIBUTION for report in reports for site in report.sites)
    drawn = _changed_by_seed(variants["whole"], args, seen["whole"]) & differ.keys() if drew else set()
    drawn -= {position for position in drawn if not _same_layout(seen["whole"][position], seen["chunked"][position])}
    differences = tuple(text for position, text in differ.items() if position not in drawn)
    rest = [(a, b) for i, (a, b) in enumerate(zip(seen["whole"], seen["chunked"], strict=False)) if i not in drawn]
    return Comparison(
        differences=differences,
        draws=tuple(f"a draw, not compared (same distribution, other numbers): {differ[i]}" for i in sorted(drawn)),
        largest_difference=max((_distance(a, b) for a, b in rest), default=0.0),
        errors=_errors(fn, args, seen["whole"], seen["chunked"]) if differences else None,
        peak_bytes=(peaks[0], peaks[1]),
        predicted_bytes=None if report is None else (report.peak_bytes_whole or 0, report.peak_bytes_chunked or 0),
        seconds=(whole, chunked),
        time_ratio=median_ratio(seconds["chunked"], seconds["whole"]),
        compile_seconds=(max(0.0, first["whole"] - whole), max(0.0, first["chunked"] - chunked)),
        reports=tuple(reports),
    )


def _observe(variant: Callable[..., Any], args: tuple[Any, ...], seed: int = 0) -> list[Any]:
    """Results, arguments afterwards and the state of the generator, from a fixed seed."""
    mine = copy.deepcopy(args)
    torch.manual_seed(seed)
    results = variant(*mine)
    return [*tree_leaves(results), *tree_leaves(mine), torch.get_rng_state()]


OTHER_SEEDS = range(1, 5)
"""Several, since a draw that is nearly certain seldom changes."""


def _changed_by_seed(variant: Callable[..., Any], args: tuple[Any, ...], seen: list[Any]) -> set[int]:
    """Positions of the values that depend on the seed."""
    others = [_observe(variant, args, seed) for seed in OTHER_SEEDS]
    return {position for other in others for position in _differences(seen, other)}


def _errors(
    fn: Callable[..., Any], args: tuple[Any, ...], whole: list[Any], chunked: list[Any]
) -> tuple[float, float] | None:
    def as_double(arg: Any) -> Any:
        return arg.double() if isinstance(arg, torch.Tensor) and arg.is_floating_point() else copy.deepcopy(arg)

    before = torch.get_rng_state()
    try:
        exact = tree_leaves(fn(*tree_map(as_double, args)))
    except (RuntimeError, TypeError):
        return None
    if not torch.equal(before, torch.get_rng_state()):
        return None
    # Only results: what a function wrote into a float64 argument is no result of the others.
    trios = [(e, a, b) for e, a, b in zip(exact, whole, chunked, strict=False) if _is_float(e) and _is_float(a)]
    errors = [max((_distance(trio[0], trio[run]) for trio in trios), default=0.0) for run in (1, 2)]
    return errors[0], errors[1]


def _is_float(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _differences(whole: list[Any], chunked: list[Any]) -> dict[int, str]:
    """What differs, by position; -1 where the numbers of values do."""
    if len(whole) != len(chunked):
        return {-1: f"{len(whole)} values whole, {len(chunked)} chunked"}
    found = {}
    for position, (a, b) in enumerate(zip(whole, chunked, strict=True)):
        if not isinstance(a, torch.Tensor):
            continue
        name = f"value {position}" if position < len(whole) - 1 else "random state"
        if not _same_layout(a, b):
            found[position] = f"{name}: {_layout(a)} whole, {_layout(b)} chunked"
        elif _distance(a, b) > 0:
            count = int((a != b).logical_and(~(a.isnan() & b.isnan())).sum())
            found[position] = f"{name}: {count} of {a.numel()} elements differ, by {_distance(a, b):.3g} at most"
    return found


def _same_layout(a: Any, b: Any) -> bool:
    return _layout(a) == _layout(b)


def _layout(tensor: Any) -> tuple[str, tuple[int, ...], tuple[int, ...]]:
    return str(tensor.dtype), tuple(tensor.shape), tensor.stride()


def _distance(a: Any, b: Any) -> float:
    """The largest difference of two tensors' elements; elements that are equal, infinite or both NaN have none."""
    if not isinstance(a, torch.Tensor) or a.shape != b.shape or not a.numel():
        return 0.0
    apart = torch.where((a == b) | (a.isnan() & b.isnan()), 0.0, (a.double() - b.double()).abs())
    return float(apart.nan_to_num(nan=float("inf")).max())
