"""Which stretches of a processor list run as one graph; verdicts and compiled functions are kept for lists to come."""

from __future__ import annotations

import dataclasses
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import torch
from transformers.generation.logits_process import LogitsProcessor

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
        keys: of each processor; equal where an earlier graph may serve.
        sorts: whether each processor sorts.
        options: of the backend.
    """

    stretches: tuple[Stretch, ...]
    why_not: dict[int, str]
    keys: tuple[Any, ...]
    sorts: tuple[bool, ...]
    options: dict[str, Any]

    def without(self, given_up: Stretch) -> Plan:
        """The plan where a stretch has no graph: one of its processors spoils it, and what sorts may do without."""
        assert given_up.compiled is not None
        why_not, parts = dict(self.why_not), []
        for i in range(given_up.start, given_up.stop):
            single = None
            if self.sorts[i] and given_up.stop - given_up.start > 1:
                single = _compiled_for(self.keys[i : i + 1], self.options)
            if single is None or single.why_not is not None:
                single = None
                why_not[i] = str(given_up.compiled.why_not)
            parts.append(Stretch(i, i + 1, single))
        at = self.stretches.index(given_up)
        stretches = (*self.stretches[:at], *parts, *self.stretches[at + 1 :])
        return dataclasses.replace(self, stretches=stretches, why_not=why_not)


def plan_for(
    processors: Sequence[Callable[..., Any]], input_ids: torch.Tensor, scores: torch.Tensor, options: dict[str, Any]
) -> Plan:
    """Judge each processor, and make one graph of each run of neighbours that can be traced and have a sort."""
    rows, vocab = scores.shape
    # What loops over the rows makes a graph of the batch's size: judged again for another magnitude. A graph shared by
    # two vocabularies would be one for any vocabulary.
    setting = (rows.bit_length(), vocab, scores.dtype, scores.device)
    keys = tuple((*setting, *_signature(processor)) for processor in processors)
    verdicts = [_verdict(*item, input_ids, scores) for item in zip(keys, processors, strict=True)]
    sorts = tuple(verdict.sorts for verdict in verdicts)
    why_not = {i: verdict.why_not for i, verdict in enumerate(verdicts) if verdict.why_not is not None}
    stretches: list[Stretch] = []
    for start, stop in _runs_of_same(verdicts):
        compiled = _compiled_for(keys[start:stop], options) if any(sorts[start:stop]) else None
        stretches.append(Stretch(start, stop, compiled))
        if compiled is None:
            reason = "there is no sort beside it, so nothing to chunk"
            why_not = {**dict.fromkeys(range(start, stop), reason), **why_not}
    plan = Plan(tuple(stretches), why_not, keys, sorts, options)
    for stretch in stretches:
        if stretch.compiled is not None and stretch.compiled.why_not is not None:
            plan = plan.without(stretch)
    return plan


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
    if not isinstance(processor, LogitsProcessor):
        return (id(processor),)
    facts = {name: id(value) if callable(value) else value for name, value in vars(processor).items()}
    plain = {name: value for name, value in facts.items() if isinstance(value, (int, float, str, type(None)))}
    return type(processor), *sorted(plain.items(), key=lambda item: item[0])


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
