"""Which stretches of a processor list run as one graph; verdicts and compiled functions are kept for lists to come."""

from __future__ import annotations

import dataclasses
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import torch

from sortpass.hf.compiled import MAX_COMPILES, MAX_COMPILES_TOGETHER, CompiledProcessors
from sortpass.hf.tracing import Verdict, judge, run_all

Value = TypeVar("Value")


@dataclasses.dataclass(frozen=True)
class Stretch:
    """Neighbouring processors; ``compiled`` is None where they run as they are."""

    start: int
    stop: int
    compiled: CompiledProcessors | None


@dataclasses.dataclass(frozen=True)
class Plan:
    """How to run the processors of a list.

    Attributes:
        stretches: in order, covering all.
        why_not: position -> why that processor runs as it is.
    """

    stretches: tuple[Stretch, ...]
    why_not: dict[int, str]


def plan_for(
    processors: Sequence[Callable[..., Any]], input_ids: torch.Tensor, scores: torch.Tensor, options: dict[str, Any]
) -> Plan:
    """Judge each processor, and make one graph of each run of neighbours that can be traced and have a sort."""
    # What loops over the rows makes a graph of the batch's size: judged again for another magnitude.
    keys = [(scores.shape[0].bit_length(), *_signature(processor)) for processor in processors]
    verdicts = [_verdict(*item, input_ids, scores) for item in zip(keys, processors, strict=True)]
    why_not = {i: verdict.why_not for i, verdict in enumerate(verdicts) if verdict.why_not is not None}
    stretches: list[Stretch] = []
    for start, stop in _runs_of_same(verdicts):
        if any(verdict.sorts for verdict in verdicts[start:stop]):
            compiled = _compiled_for(keys[start:stop], options)
            if compiled.why_not is None:
                stretches.append(Stretch(start, stop, compiled))
                continue
            # Given up together: one of them spoils it, and what sorts may do without the others.
            alone = [i for i in range(start, stop) if verdicts[i].sorts and stop - start > 1]
            singles = {i: _compiled_for(keys[i : i + 1], options) for i in alone}
            graphs = {i: single for i, single in singles.items() if single.why_not is None}
            reason = compiled.why_not
        else:
            graphs, reason = {}, "there is no sort beside it, so nothing to chunk"
        for i in range(start, stop):
            stretches.append(Stretch(i, i + 1, graphs.get(i)))
            if i not in graphs:
                why_not.setdefault(i, reason)
    return Plan(tuple(stretches), why_not)


def _compiled_for(keys: Sequence[Any], options: dict[str, Any]) -> CompiledProcessors:
    most = MAX_COMPILES if len(keys) == 1 else MAX_COMPILES_TOGETHER
    key = (repr(sorted(options.items())), *keys)
    return _compiled.get_or_make(key, lambda: CompiledProcessors(run_all, options, most_compiles=most))


def _verdict(key: Any, processor: Callable[..., Any], input_ids: torch.Tensor, scores: torch.Tensor) -> Verdict:
    length = input_ids.shape[1]
    judged_at, verdict = _verdicts.get_or_make(key, lambda: (length, judge(processor, input_ids, scores)))
    if judged_at > length:  # what held from there on may not hold here
        verdict = judge(processor, input_ids, scores)
        _verdicts.put(key, (length, verdict))
    return verdict


def _signature(processor: Callable[..., Any]) -> tuple[Any, ...]:
    """Equal for processors that Dynamo is likely to find one graph for; a wrong guess costs a compile, no more."""
    if not hasattr(processor, "__dict__") or hasattr(processor, "__code__"):
        return (id(processor),)
    numbers = {k: v for k, v in vars(processor).items() if isinstance(v, (int, float, str, type(None)))}
    return type(processor), *sorted(numbers.items(), key=lambda item: item[0])


def _runs_of_same(verdicts: Sequence[Verdict]) -> list[tuple[int, int]]:
    """Start and stop of each run of processors that all join a graph, or all do not."""
    edges = [i for i in range(1, len(verdicts)) if (verdicts[i].why_not is None) != (verdicts[i - 1].why_not is None)]
    bounds = [0, *edges, len(verdicts)]
    return [(a, b) for a, b in zip(bounds, bounds[1:], strict=False) if a < b]


class _Recent(Generic[Value]):
    """The values used last, by key; for any number of threads."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._values: OrderedDict[Any, Value] = OrderedDict()
        self._lock = threading.Lock()

    def get_or_make(self, key: Any, make: Callable[[], Value]) -> Value:
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key]
        value = make()  # not under the lock: it may take a second
        with self._lock:
            return self._put(key, self._values.get(key, value))

    def put(self, key: Any, value: Value) -> None:
        with self._lock:
            self._put(key, value)

    def _put(self, key: Any, value: Value) -> Value:
        self._values[key] = value
        self._values.move_to_end(key)
        while len(self._values) > self._most:
            self._values.popitem(last=False)
        return value


_verdicts: _Recent[tuple[int, Verdict]] = _Recent(256)
_compiled: _Recent[CompiledProcessors] = _Recent(32)
