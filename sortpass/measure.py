"""Measure peak memory and time of a call, the way every number in the README was made.

CPU: run under ``torch.profiler`` and replay its allocation events in time order; this sees every allocation PyTorch's
allocator makes, Inductor's C++ kernels' included. CUDA: ``max_memory_allocated`` minus what was allocated before.
"""

from __future__ import annotations

import gc
import itertools
import statistics
import time
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

SELF_CHECK_TOLERANCE = 0.03
SORT_BYTES_PER_LOGIT = 12  # fp32 values + int64 indices; torch.sort on CPU needs no scratch

_serial = itertools.count()


class MeasurementError(RuntimeError):
    """The peak meter does not read what a plain ``torch.sort`` is known to allocate."""


def own_code(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A copy of a function that ``torch.compile`` compiles apart from every other copy.

    Dynamo keeps compiled code per code object, so two variants compiled from one function share what the first made,
    backend included; and it remembers sizes seen per file, line and name, so equal names would turn a second size
    dynamic. A new code object with a new name has neither, and unlike ``torch._dynamo.reset()`` it leaves the variants
    compiled before as they are.
    """
    name = f"{fn.__name__}_{next(_serial)}"
    copy = types.FunctionType(fn.__code__.replace(co_name=name), fn.__globals__, name, fn.__defaults__, fn.__closure__)
    copy.__kwdefaults__ = fn.__kwdefaults__
    return copy


def own_callable(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The same for any callable of positional arguments: a module, a bound method, a builtin."""
    if isinstance(fn, types.FunctionType):
        return own_code(fn)

    def call(*args: Any) -> Any:
        return fn(*args)

    return own_code(call)


def peak_bytes(run: Callable[[], Any], device: str = "cpu") -> int:
    """The most bytes allocated at once during ``run()``, above what was allocated before it.

    The result of ``run`` counts, since it is alive when the peak is. Call ``run`` once before, so that compilation and
    caches do not count.
    """
    gc.collect()
    return _cuda_peak(run) if device.startswith("cuda") else _cpu_peak(run)


def _cpu_peak(run: Callable[[], Any]) -> int:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        result = run()
    del result
    # Raw events: profile.events() drops allocations that fall outside any op, such as Inductor's empty_strided.
    events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    alive = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        alive += event.nbytes()
        peak = max(peak, alive)
    return peak


def _cuda_peak(run: Callable[[], Any]) -> int:
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    result = run()
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated() - before
    del result
    return peak


def check_meter(rows: int = 64, vocab: int = 32_000) -> float:
    """Measure a plain CPU ``torch.sort``; returns bytes per fp32 logit.

    Raises:
        MeasurementError: it is off the known 12 B by more than 3%, so no other reading can be trusted.
    """
    logits = torch.randn(rows, vocab)
    measured = peak_bytes(lambda: torch.sort(logits)) / logits.numel()
    if abs(measured / SORT_BYTES_PER_LOGIT - 1) > SELF_CHECK_TOLERANCE:
        raise MeasurementError(
            f"torch.sort measured {measured:.2f} bytes per fp32 logit, expected {SORT_BYTES_PER_LOGIT}; "
            "the profiler of this torch reports memory differently"
        )
    return measured


def interleaved_times(
    variants: Mapping[str, Callable[[], Any]],
    *,
    rounds: int = 5,
    device: str = "cpu",
    before: Callable[[], None] = lambda: None,
    tick: Callable[[], None] = lambda: None,
) -> dict[str, list[float]]:
    """Seconds of each run of each variant, in turn in one process, so that noise from outside hits all alike.

    Args:
        variants: name -> call. Each is run once beforehand.
        rounds: runs of each.
        device: synchronised around each call where it is CUDA.
        before: called before each run, outside of its time.
        tick: called after each run, for progress.
    """
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for run in variants.values():
        before()
        run()
        tick()
    for _ in range(rounds):
        for name, run in variants.items():
            before()
            seconds[name].append(timed(run, device))
            tick()
    return seconds


def median_ratio(seconds: Sequence[float], reference: Sequence[float]) -> float:
    """Median over the rounds of one variant's time relative to another's in the same round."""
    return statistics.median(a / b for a, b in zip(seconds, reference, strict=True))


def timed(run: Callable[[], Any], device: str = "cpu") -> float:
    """Seconds of one call."""
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    start = time.perf_counter()
    result = run()
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    del result
    return time.perf_counter() - start
