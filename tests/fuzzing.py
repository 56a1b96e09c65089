"""Check one random program: whole against chunked, as a graph that ``make_fx`` traced and through ``torch.compile``,
without gradients and, with ``recompute``, with them.

Where every region of a program is reported to be ``bitwise``, results must agree to the bit, else up to rounding.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import operator
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import sympy
import torch
import torch.fx as fx
from fuzz_compare import LayoutDifference, compare, observe, require, strides_of
from fuzz_draws import drawn_outputs
from fuzz_programs import Functions
from helpers import compile_chunked, compile_whole
from hypothesis import strategies as st
from torch._inductor.decomposition import select_decomp_table
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.proxy_tensor import make_fx

import sortpass
from sortpass import PassReport, SiteReport
from sortpass.torch_compat import fake_mode_of


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
    anchors: str = "sort"
    through_matmul: bool = False
    recompute: bool = False
    allow_rng: bool = False

    def for_pass(self) -> dict[str, Any]:
        # The inner of a traced graph decides how exact it is.
        rest = {"min_bytes": 1, "force": True, "inner": "aot_eager"}
        ours = ("row_chunk", "form", "scope", "anchors", "through_matmul", "recompute", "allow_rng")
        return {**{name: getattr(self, name) for name in ours}, **rest}


def options() -> st.SearchStrategy[Options]:
    return st.builds(
        Options,
        trace=st.sampled_from(["real", "fake", "fake", "real", "fake", "symbolic"]),
        functional=st.booleans(),
        decompose=st.sampled_from([False, False, True]),
        row_chunk=st.sampled_from([2, 1, 2, 1, 3, 4]),
        form=st.sampled_from(["loop", "unroll", "loop", "auto"]),
        scope=st.sampled_from(["region", "auto", "sort"]),
        dynamic=st.sampled_from([None, True]),
        anchors=st.sampled_from(["sort", "rowwise"]),
        through_matmul=st.booleans(),
        allow_rng=st.booleans(),
    )


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What became of a program.

    Attributes:
        skipped: why there was nothing to compare, if so.
        region_ops: ops in each region that was rewritten; none where the program was left alone.
        second_row_count: whether it also ran with the other row count.
        bitwise: whether every region was reported to be.
    """

    skipped: str | None = None
    region_ops: tuple[int, ...] = ()
    second_row_count: bool = False
    bitwise: bool = False


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
            require(str(whole.graph) == str(chunked.graph), "a graph that was not modified has changed")
        try:
            _compare_at(case.rows, case, whole, chunked, [report])
        except LayoutDifference:
            if (liar := _wrong_fake_strides(whole, inputs(case.rows))) is None:
                raise
            return Outcome(skipped=_LIE.format(liar))
        second = options.trace == "symbolic" and _holds_for(chunked, case)
        if second:
            _compare_at(case.other_rows, case, whole, chunked, [report])
    return _outcome([report], second)


def check_compiled(case: Functions, options: Options) -> Outcome:
    """``torch.compile``: ``aot_eager`` against ``chunked_sort`` with that inner, at two row counts."""
    return _check_compiled(case, options, lambda fn: fn)


def check_gradients(case: Functions, options: Options) -> Outcome:
    """The same with ``recompute``: also the gradients of what is returned, for every input that can have one."""
    return _check_compiled(case, dataclasses.replace(options, anchors="rowwise", recompute=True), _with_gradients)


def _with_gradients(fn: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    """What ``fn`` returns and makes of its inputs, and the gradients of both."""

    def run(*args: Any) -> list[Any]:
        leaves = [arg.detach().requires_grad_() for arg in args if arg.is_floating_point()]
        copies = iter([leaf * 1 for leaf in leaves])  # which may be written into
        given = [next(copies) if arg.is_floating_point() else arg for arg in args]
        results = [*fn(*given), *given]
        wanted = [result for result in results if result.requires_grad]
        weights = [torch.arange(out.numel()).remainder(5).to(out.dtype).view(out.shape) for out in wanted]
        grads = torch.autograd.grad(wanted, leaves, weights, materialize_grads=True) if wanted else ()
        return [result.detach() for result in results] + list(grads)

    return run


def _check_compiled(case: Functions, options: Options, around: Callable[..., Any]) -> Outcome:
    torch._dynamo.reset()
    with warnings.catch_warnings(), sortpass.capture_reports() as reports:
        warnings.simplefilter("ignore")
        whole = around(compile_whole(case.program, dynamic=options.dynamic))
        chunked = around(compile_chunked(case.program, dynamic=options.dynamic, **options.for_pass()))
        second = case.exact_for(case.inputs(case.other_rows))
        for rows in (case.rows, case.other_rows) if second else (case.rows,):
            try:
                _compare_at(rows, case, whole, chunked, reports)
            except LayoutDifference:
                args = case.inputs(rows)
                traced = _trace_maybe(case.program, args, Options())
                if traced is None or (liar := _wrong_fake_strides(traced, args)) is None:
                    raise
                return Outcome(skipped=_LIE.format(liar))
    return _outcome(reports, second)


_LIE = "torch's fake kernel of {} has other strides than the real one"


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
    facts = [fact for value, arg in zip(values, args, strict=True) for fact in _sizes_and_strides(value, arg)]
    bindings = {traced: actual for traced, actual in facts if isinstance(traced, sympy.Symbol)}
    # A symbol stands for 2 and more; make_fx leaves it to its caller to see to that.
    if any(actual < 2 for actual in bindings.values()):
        return False
    # Not ShapeEnv.evaluate_guards_for_args: torch 2.13 and 2.14 join guards by `and` without parentheses, so that one
    # `a or b` among them lets anything pass.
    held = [traced.subs(bindings) == actual for traced, actual in facts]
    if not all(held) or any(guard.expr.subs(bindings) == False for guard in shape_env.guards):  # noqa: E712 sympy's
        return False
    return case.exact_for(case.inputs(case.other_rows))


def _sizes_and_strides(traced: torch.Tensor, actual: torch.Tensor) -> Iterator[tuple[sympy.Expr, int]]:
    """Each size and stride: as traced, and of the tensor given."""
    pairs = zip([*traced.shape, *traced.stride()], [*actual.shape, *actual.stride()], strict=True)
    for size, number in pairs:
        yield (size.node.expr if isinstance(size, torch.SymInt) else sympy.Integer(size)), number


def _compare_at(
    rows: int, case: Functions, whole: Callable[..., Any], chunked: Callable[..., Any], reports: list[PassReport]
) -> None:
    runs = observe(whole, case.inputs, rows), observe(chunked, case.inputs, rows)
    # The reports of torch.compile are there once it ran.
    draws = any(site.exactness == "distribution" for site in _rewritten(reports))
    drawn = drawn_outputs(case.program, lambda: case.inputs(rows)) if draws else set()
    compare(*runs, bitwise=_are_bitwise(reports), draws=draws, drawn=drawn)


def _rewritten(reports: list[PassReport]) -> list[SiteReport]:
    return [site for report in reports for site in report.sites if site.status == "rewritten"]


def _are_bitwise(reports: list[PassReport]) -> bool:
    return all(site.exactness == "bitwise" for site in _rewritten(reports))


def _outcome(reports: list[PassReport], second: bool) -> Outcome:
    sizes = tuple(len(site.region_ops) for site in _rewritten(reports))
    return Outcome(None, sizes, second, _are_bitwise(reports))


def _wrong_fake_strides(gm: fx.GraphModule, args: list[Any]) -> str | None:
    """The first op whose real kernel gives other strides than its fake one promised; the pass knows only the latter."""
    wrong: list[str] = []
    fake_mode_of(gm := copy.deepcopy(gm))  # gives a graph that was traced with real tensors fake strides

    class Strides(fx.Interpreter):
        def run_node(self, n: fx.Node) -> Any:
            result = super().run_node(n)
            promised = n.meta.get("val")
            if isinstance(result, torch.Tensor) and isinstance(promised, torch.Tensor):
                pairs = zip(strides_of(promised), strides_of(result), strict=True)
                if result.numel() and any(a is not None and int(a) != b for a, b in pairs):
                    wrong.append(str(n.target if n.target is not operator.getitem else n.args[0].target))
            return result

    torch.default_generator.manual_seed(1)
    with contextlib.suppress(Exception):
        Strides(gm).run(*args)
    return wrong[0] if wrong else None
