"""Check one random program: whole against chunked, everything a caller could notice.

The same exception type; or the same bits, dtypes, shapes and strides, the same storage shared by the same outputs and
inputs, the same writes into the inputs and the same state of the random generator.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import itertools
import operator
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.fx as fx
from fuzz_programs import Functions
from helpers import compile_chunked, compile_whole
from hypothesis import strategies as st
from torch._inductor.decomposition import select_decomp_table
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.proxy_tensor import make_fx

import sortpass
from sortpass import PassReport
from sortpass.torch_compat import fake_mode_of


class Difference(AssertionError):
    """Something a caller could notice."""


class LayoutDifference(Difference):
    """Other strides, or an error that other strides may have led to."""


@dataclasses.dataclass(frozen=True)
class Options:
    """How a program is traced (the first three; ``dynamic`` where it is compiled) and how it is rewritten."""

    trace: str = "real"
    functional: bool = False
    decompose: bool = False
    row_chunk: int = 2
    form: str = "loop"
    scope: str = "region"
    dynamic: bool | None = None

    def for_pass(self) -> dict[str, Any]:
        return {"row_chunk": self.row_chunk, "form": self.form, "scope": self.scope, "min_bytes": 1}


def options() -> st.SearchStrategy[Options]:
    return st.builds(
        Options,
        trace=st.sampled_from(["real", "fake", "fake", "real", "fake", "symbolic"]),
        functional=st.booleans(),
        decompose=st.sampled_from([False, False, True]),
        row_chunk=st.sampled_from([2, 1, 2, 1, 3, 4]),
        form=st.sampled_from(["loop", "unroll", "loop", "auto"]),
        scope=st.sampled_from(["region", "region", "sort"]),
        dynamic=st.sampled_from([None, True]),
    )


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What became of a program.

    Attributes:
        skipped: why there was nothing to compare, if so.
        region_ops: ops in each region that was rewritten; none where the program was left alone.
        second_row_count: whether it also ran with the other row count.
    """

    skipped: str | None = None
    region_ops: tuple[int, ...] = ()
    second_row_count: bool = False


@dataclasses.dataclass(frozen=True)
class Observation:
    """All that a caller can see of one run."""

    error: Exception | None
    outputs: list[torch.Tensor]
    inputs: list[torch.Tensor]
    random_state: torch.Tensor


def check_traced(case: Functions, options: Options) -> Outcome:
    """Trace with ``make_fx``, rewrite a copy of the graph, run both.

    Raises:
        Difference: they are not the same; or whatever the pass raised.
    """
    inputs = case.inputs
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        whole = _trace_maybe(case.program, inputs(case.rows), options)
        if whole is None:
            return Outcome(skipped="not traceable")
        chunked = copy.deepcopy(whole)
        report = sortpass.rewrite(chunked, **options.for_pass())
        if not report.modified:
            _require(str(whole.graph) == str(chunked.graph), "a graph that was not modified has changed")
        try:
            _compare(observe(whole, inputs, case.rows), observe(chunked, inputs, case.rows))
        except LayoutDifference:
            if (liar := _wrong_fake_strides(whole, inputs(case.rows))) is None:
                raise
            return Outcome(skipped=f"torch's fake kernel of {liar} has other strides than the real one")
        second = options.trace == "symbolic" and _holds_for(chunked, case)
        if second:
            _compare(observe(whole, inputs, case.other_rows), observe(chunked, inputs, case.other_rows))
    return Outcome(None, _region_ops(report), second)


def check_compiled(case: Functions, options: Options) -> Outcome:
    """``torch.compile``: ``aot_eager`` against ``chunked_sort`` with that inner, at two row counts."""
    inputs, fn = case.inputs, case.program
    torch._dynamo.reset()
    with warnings.catch_warnings(), sortpass.capture_reports() as reports:
        warnings.simplefilter("ignore")
        whole = compile_whole(fn, dynamic=options.dynamic)
        chunked = compile_chunked(fn, dynamic=options.dynamic, **options.for_pass())
        _compare(observe(whole, inputs, case.rows), observe(chunked, inputs, case.rows))
        second = case.exact_for(case.inputs(case.other_rows))
        if second:
            _compare(observe(whole, inputs, case.other_rows), observe(chunked, inputs, case.other_rows))
    return Outcome(None, tuple(size for report in reports for size in _region_ops(report)), second)


def observe(fn: Callable[..., Any], inputs: Callable[[int], list[Any]], rows: int) -> Observation:
    """Run on fresh inputs from a fixed seed."""
    args = inputs(rows)
    torch.default_generator.manual_seed(1)
    try:
        outputs, error = list(fn(*args)), None
    except Exception as raised:
        outputs, error = [], raised
    return Observation(error, outputs, args, torch.get_rng_state())


def _trace_maybe(fn: Callable[..., Any], args: list[Any], options: Options) -> fx.GraphModule | None:
    """The ATen graph; None where torch cannot trace the program this way."""
    traced = torch.func.functionalize(fn) if options.functional else fn
    table = select_decomp_table() if options.decompose else None
    torch.default_generator.manual_seed(1)
    try:
        return make_fx(traced, decomposition_table=table, tracing_mode=options.trace)(*args)
    except Exception:
        return None


def _holds_for(gm: fx.GraphModule, case: Functions) -> bool:
    """Whether the graph may be called with the other row count: its guards hold, and sums stay exact."""
    args = case.inputs(case.other_rows)
    values = [node.meta["val"] for node in gm.graph.find_nodes(op="placeholder")]
    shape_env = next((v.fake_mode.shape_env for v in values if isinstance(v, FakeTensor)), None)
    if shape_env is None:
        return False
    # A symbol stands for 2 and more; make_fx leaves it to its caller to see to that.
    for value, arg in zip(values, args, strict=True):
        if any(isinstance(size, torch.SymInt) and n < 2 for size, n in zip(value.shape, arg.shape, strict=True)):
            return False
    if not shape_env.evaluate_guards_for_args(values, args, ignore_static=False):
        return False
    return case.exact_for(case.inputs(case.other_rows))


def _compare(whole: Observation, chunked: Observation) -> None:
    if whole.error or chunked.error:
        same = type(whole.error) is type(chunked.error)
        _require(same, f"whole: {_brief(whole.error)}\nchunked: {_brief(chunked.error)}", LayoutDifference)
        return
    _require(len(whole.outputs) == len(chunked.outputs), "another number of outputs")
    for kind, left, right in (("output", whole.outputs, chunked.outputs), ("input", whole.inputs, chunked.inputs)):
        for position, (a, b) in enumerate(zip(left, right, strict=True)):
            facts = [(t.dtype, tuple(t.shape)) for t in (a, b)]
            _require(facts[0] == facts[1], f"{kind} {position}: {facts[0]} became {facts[1]}")
            _require(same_bits(a, b), f"{kind} {position}: values differ\nwhole {a}\nchunked {b}")
            strides = f"{kind} {position}: strides {a.stride()} became {b.stride()}"
            _require(_strides(a) == _strides(b), strides, LayoutDifference)
    sharing = [_sharing([*seen.inputs, *seen.outputs]) for seen in (whole, chunked)]
    _require(sharing[0] == sharing[1], f"storage is shared otherwise: {sharing[0]} became {sharing[1]}")
    _require(torch.equal(whole.random_state, chunked.random_state), "the generator's state differs")


def _strides(tensor: torch.Tensor) -> list[int | None]:
    """The strides that lead anywhere; along a dim of size 1 even torch's real and fake kernels disagree."""
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return [stride if size > 1 and tensor.numel() else None for size, stride in pairs]


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal to the sign of zero; NaN equals NaN."""
    if torch.equal(a, b) and not a.dtype.is_floating_point:
        return True
    both_nan = a.isnan() & b.isnan()
    return bool((((a == b) & (a.signbit() == b.signbit())) | both_nan).all())


def _sharing(tensors: list[torch.Tensor]) -> list[tuple[int, int, int]]:
    """Pairs of tensors in one storage, with the distance between their starts."""
    return [
        (i, j, tensors[j].storage_offset() - tensors[i].storage_offset())
        for i, j in itertools.combinations(range(len(tensors)), 2)
        if tensors[i].numel() and tensors[i].untyped_storage()._cdata == tensors[j].untyped_storage()._cdata
    ]


def _region_ops(report: PassReport) -> tuple[int, ...]:
    return tuple(len(site.region_ops) for site in report.sites if site.status == "rewritten")


def _wrong_fake_strides(gm: fx.GraphModule, args: list[Any]) -> str | None:
    """The first op whose real kernel gives other strides than its fake one promised; the pass knows only the latter."""
    wrong: list[str] = []
    fake_mode_of(gm := copy.deepcopy(gm))  # gives a graph that was traced with real tensors fake strides

    class Strides(fx.Interpreter):
        def run_node(self, n: fx.Node) -> Any:
            result = super().run_node(n)
            promised = n.meta.get("val")
            if isinstance(result, torch.Tensor) and isinstance(promised, torch.Tensor):
                pairs = zip(_strides(promised), _strides(result), strict=True)
                if result.numel() and any(a is not None and int(a) != b for a, b in pairs):
                    wrong.append(str(n.target if n.target is not operator.getitem else n.args[0].target))
            return result

    torch.default_generator.manual_seed(1)
    with contextlib.suppress(Exception):
        Strides(gm).run(*args)
    return wrong[0] if wrong else None


def _require(holds: bool, what: str, kind: type[Difference] = Difference) -> None:
    if not holds:
        raise kind(what)


def _brief(error: Exception | None) -> str:
    return "no error" if error is None else f"{type(error).__name__}: {str(error)[:800]}"
