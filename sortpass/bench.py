"""The benchmark: peak memory and time of one sampler, as written, compiled whole, and in row chunks.

eager           as written, without torch.compile
whole           the inner compiler alone, which the ratios refer to
region c=64     backend "chunked_sort", row_chunk=64
sort-only c=64  the same with scope="sort"
"""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable
from typing import Any

import torch
from torch._inductor.utils import fresh_cache
from torch.utils._pytree import tree_leaves

from sortpass.bench_data import SCALING_STEPS, BenchResult, BenchRow, BenchSettings, ScalingRow, Variant
from sortpass.console import Progress
from sortpass.measure import SORT_BYTES_PER_LOGIT, interleaved_times, median_ratio, own_code, peak_bytes, timed
from sortpass.report import PassReport, capture_reports
from sortpass.samplers import SAMPLERS, example_args

BOUND_SLACK = 0.3  # bytes per logit
OUTPUT_BYTES = 4  # per logit: the filtered logits leave the region


def run_bench(settings: BenchSettings, progress: Progress) -> BenchResult:
    """Measure every variant under every inner."""
    rows: list[BenchRow] = []
    scaling: list[ScalingRow] = []
    # Compile times are from empty caches, or a second benchmark would report the loading of the first one's kernels.
    with fresh_cache():
        for inner in settings.inners:
            _warm_up(settings, inner)
            rows += _measure_inner(settings, inner, progress)
            if settings.scaling:
                scaling += _measure_scaling(settings, inner, progress)
    return BenchResult(settings, tuple(rows), tuple(scaling))


def _warm_up(settings: BenchSettings, inner: str) -> None:
    """Compile something tiny, so that imports and precompiled headers are not charged to the first variant."""
    call = _compile(Variant("warm-up", inner, "region", 2), settings.sampler)
    call(*example_args(settings.sampler, 4, 64, settings.device))


def _variants(settings: BenchSettings, inner: str) -> list[Variant]:
    row_chunks = settings.row_chunks
    chunked = [Variant(f"region c={row_chunk}", inner, "region", row_chunk) for row_chunk in row_chunks]
    chunked += [Variant(f"sort-only c={row_chunk}", inner, "sort", row_chunk) for row_chunk in row_chunks]
    return [Variant("eager", None), Variant("whole", inner), *chunked]


def _compile(variant: Variant, sampler: str) -> Callable[..., Any]:
    fn = own_code(SAMPLERS[sampler])
    if variant.inner is None:
        return fn
    if variant.scope is None:
        return torch.compile(fn, backend=variant.inner)
    # min_bytes=1 and force, so that small trial sizes are rewritten too, and the sort alone, which does not pay.
    options: dict[str, Any] = {
        "row_chunk": variant.row_chunk,
        "scope": variant.scope,
        "inner": variant.inner,
        "min_bytes": 1,
        "force": True,
    }
    return torch.compile(fn, backend="chunked_sort", options=options)


def _measure_inner(settings: BenchSettings, inner: str, progress: Progress) -> list[BenchRow]:
    args = example_args(settings.sampler, settings.num_tokens, settings.vocab_size, settings.device)
    variants = {variant.label: variant for variant in _variants(settings, inner)}
    runs = {label: functools.partial(_compile(variant, settings.sampler), *args) for label, variant in variants.items()}
    first, reports, peaks = {}, {}, {}
    for label, run in runs.items():
        progress.stage(f"{inner}: compile {label}")
        with capture_reports() as reports[label]:
            first[label] = timed(run, settings.device)
        progress.tick()
    for label, run in runs.items():
        progress.stage(f"{inner}: peak of {label}")
        peaks[label] = peak_bytes(run, settings.device)
        progress.tick()
    progress.stage(f"{inner}: times, in turn")
    seconds = interleaved_times(runs, rounds=settings.rounds, device=settings.device, tick=progress.tick)
    expected = runs["whole"]()
    rows = []
    for label, variant in variants.items():
        per_logit = peaks[label] / args[0].numel()
        bound = bound_bytes(variant, settings)
        is_compared = settings.check_accuracy and variant.scope is not None
        rows.append(
            BenchRow(
                inner=inner,
                variant=label,
                scope=variant.scope,
                row_chunk=variant.row_chunk,
                peak_bytes=peaks[label],
                bytes_per_logit=per_logit,
                seconds=statistics.median(seconds[label]),
                compile_seconds=None if variant.inner is None else max(0.0, first[label] - min(seconds[label])),
                peak_ratio=peaks[label] / peaks["whole"],
                time_ratio=median_ratio(seconds[label], seconds["whole"]),
                bound=bound,
                within_bound=None if bound is None else per_logit <= bound,
                equal_to_whole=_equal(runs[label](), expected) if is_compared else None,
                rewritten="; ".join(map(_rewritten, reports[label])),
            )
        )
    return rows


def _equal(result: Any, expected: Any) -> bool:
    return all(torch.equal(a, b) for a, b in zip(tree_leaves(result), tree_leaves(expected), strict=True))


def _rewritten(report: PassReport) -> str:
    codes = {site.code.value for site in report.sites if site.code is not None}
    return ", ".join((f"{report.num_rewritten} of {len(report.sites)}", *sorted(codes)))


def bound_bytes(variant: Variant, settings: BenchSettings) -> float | None:
    """The most bytes per logit a chunked variant may take: its outputs, and one chunk of what sorting takes.

    Stated for top-p regions: 22 bytes per logit of a chunk on CPU; the sort's scratch on CUDA makes it 44, or 32 from
    128 rows. With 64 of 512 rows a chunk on CPU: 4 + 22/8 + 0.3 = 7.05. And for the sort alone on CPU, all of whose
    outputs are kept: 12 + 12/8 + 0.3 = 13.8.
    """
    if variant.row_chunk is None:
        return None
    on_cpu = settings.device == "cpu"
    fraction = min(1.0, variant.row_chunk / settings.num_tokens)
    if settings.sampler == "sort" and on_cpu:
        return SORT_BYTES_PER_LOGIT * (1 + fraction) + BOUND_SLACK
    if settings.sampler != "top_p" or variant.scope != "region":
        return None
    per_chunk = 22 if on_cpu else 44 if variant.row_chunk < 128 else 32
    return OUTPUT_BYTES + per_chunk * fraction + BOUND_SLACK


def _measure_scaling(settings: BenchSettings, inner: str, progress: Progress) -> list[ScalingRow]:
    rows = []
    for step in reversed(range(SCALING_STEPS)):
        num_rows = max(1, settings.num_tokens >> step)
        args = example_args(settings.sampler, num_rows, settings.vocab_size, settings.device)
        for variant in _variants(settings, inner):
            if variant.scope == "region" or variant.label == "whole":
                progress.stage(f"{inner}: peak of {variant.label} at {num_rows} rows")
                run = functools.partial(_compile(variant, settings.sampler), *args)
                output = run()
                extra = peak_bytes(run, settings.device) - sum(tensor.nbytes for tensor in tree_leaves(output))
                rows.append(ScalingRow(inner, variant.label, num_rows, extra))
                progress.tick()
    return rows
