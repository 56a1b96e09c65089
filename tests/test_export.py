"""Exported programs: right for every size of their dynamic dims, valid, saved, run where sortpass is not installed."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import assert_same
from torch.export import Dim, ExportedProgram, export

import sortpass
from sortpass import DeclineCode

MAX, CHUNK = 23, 4
SIZES = [0, 1, 2, CHUNK - 1, CHUNK, CHUNK + 1, 13, MAX]
EVERY_SORT = {"row_chunk": CHUNK, "min_bytes": 1, "force": True}


def top_p(x: Any) -> Any:
    ordered, index = x.sort(-1)
    drop = ordered.softmax(-1).cumsum(-1) <= 0.1
    return x.masked_fill(drop.scatter(-1, index, drop), -float("inf"))


def log_prob_and_rank(x: Any) -> Any:
    logprobs = x.double().log_softmax(-1)
    wanted = logprobs[:, 3:4]
    return wanted.squeeze(-1), (logprobs.sort(descending=True)[0] > wanted).sum(-1)


def reshapes(x: Any) -> Any:
    values = (x + torch.linspace(0, 1, 8).expand(x.shape[0], -1)).sort(-1)[0].view(x.shape[0], 2, 4)
    return values.softmax(-1).amax(-1) + torch.zeros(x.shape[0], 2), values.argmax(1)


def many_ops(x: Any) -> Any:
    values, index = x.sort(dim=-1, stable=True)
    best = x.topk(3)[0]
    spread = values.cumsum(-1).norm(dim=-1, keepdim=True)
    filled = torch.cat([values - spread, best], -1).log_softmax(-1).amax(-1)
    return filled, torch.where(index > 3, values, 0.0).clamp(-1, 1).prod(-1), (values > 0).any(-1), best.mean(-1)


def leaves_outside(x: Any) -> Any:
    values = x.sort(-1)[0]
    return values - values.sum(), values[:, -1], x.t().sort(0)[0]


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    fn.__name__: fn for fn in (top_p, log_prob_and_rank, reshapes, many_ops, leaves_outside)
}


class Step(torch.nn.Module):
    def __init__(self, fn: Callable[[Any], Any]) -> None:
        super().__init__()
        self.fn = fn

    def forward(self, x: Any) -> Any:
        return self.fn(x)


def exported(fn: Callable[[Any], Any], traced: int = 5, rows: Any = None, *, decompose: bool = True) -> ExportedProgram:
    shapes = None if rows is None else ({0: rows},)
    program = export(Step(fn), (torch.randn(traced, 8),), dynamic_shapes=shapes)
    return program.run_decompositions() if decompose else program


def runs_as(fn: Callable[[Any], Any], program: ExportedProgram, sizes: list[int]) -> None:
    module = program.module()
    for rows in sizes:
        x = torch.randn(rows, 8)
        want, got = fn(x), module(x)
        if isinstance(want, tuple):
            assert_close_as_whole(list(want), list(got))
        else:
            assert_close_as_whole([want], [got])


def assert_close_as_whole(want: list[Any], got: list[Any]) -> None:
    """The same metadata; the same bits but where a reduction of a piece of one row rounds differently."""
    for a, b in zip(want, got, strict=True):
        assert (a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride())
        torch.testing.assert_close(b, a, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("decompose", [True, False], ids=["decomposed", "as exported"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_row_comes_back_for_every_number_of_rows(name: str, decompose: bool) -> None:
    program = exported(FUNCTIONS[name], rows=Dim("rows", max=MAX), decompose=decompose)
    report = sortpass.rewrite(program, **EVERY_SORT)
    assert {site.form for site in report.sites} == {"unroll"}
    assert report.sites[0].num_windows == 6
    runs_as(FUNCTIONS[name], program, SIZES)


@pytest.mark.parametrize("traced", [2, CHUNK, CHUNK + 1, MAX])
def test_the_traced_size_decides_nothing(traced: int) -> None:
    program = exported(top_p, traced, Dim("rows", max=MAX))
    assert sortpass.rewrite(program, **EVERY_SORT).num_rewritten == 1
    runs_as(top_p, program, SIZES)


def test_the_rewrite_adds_no_guard_and_no_specialisation() -> None:
    program = exported(many_ops, rows=Dim("rows", max=MAX))
    before = dict(program.range_constraints)
    sortpass.rewrite(program, **EVERY_SORT)
    again = program.run_decompositions()
    shape_env = next(iter(again.graph.nodes)).meta["val"].fake_mode.shape_env
    assert shape_env.guards == []
    assert not before.keys() & shape_env.replacements.keys()
    assert before.items() <= again.range_constraints.items()
    runs_as(many_ops, again, SIZES)


def test_the_signature_still_names_the_outputs_and_the_mutated_buffer() -> None:
    class Counts(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("last", torch.zeros(9))

        def forward(self, x: Any) -> Any:
            self.last.copy_(x.sort(-1)[0].softmax(-1).amax(-1))
            return top_p(x)

    x = torch.randn(9, 8)
    program = export(Counts(), (x,)).run_decompositions()
    named = program.graph_signature
    report = sortpass.rewrite(program, **EVERY_SORT)
    assert report.num_rewritten == len(report.sites)
    program.validate()
    assert program.graph_signature == named
    module = program.module()
    assert_same([top_p(x), x.sort(-1)[0].softmax(-1).amax(-1)], [module(x), module.last])


@pytest.mark.parametrize("rows", [None, Dim("rows", max=MAX)], ids=["static", "dynamic"])
def test_a_saved_program_runs_where_sortpass_is_not_installed(tmp_path: Path, rows: Any) -> None:
    program = exported(top_p, traced=13, rows=rows)
    assert sortpass.rewrite(program, **EVERY_SORT).num_rewritten == 1
    torch.export.save(program, tmp_path / "step.pt2")
    xs = [torch.randn(n, 8) for n in (SIZES if rows else [13])]
    torch.save([(x, top_p(x)) for x in xs], tmp_path / "expected.pt")
    code = f"""
        import sys
        sys.modules["sortpass"] = None  # an import of it fails from here on
        import torch
        step = torch.export.load({str(tmp_path / "step.pt2")!r}).module()
        for x, expected in torch.load({str(tmp_path / "expected.pt")!r}):
            assert torch.equal(step(x), expected), x.shape
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_loaded_program_can_be_rewritten_and_saved_again(tmp_path: Path) -> None:
    torch.export.save(exported(top_p, rows=Dim("rows", max=MAX)), tmp_path / "whole.pt2")
    program = torch.export.load(tmp_path / "whole.pt2")
    assert sortpass.rewrite(program, **EVERY_SORT).num_rewritten == 1
    torch.export.save(program.run_decompositions(), tmp_path / "chunked.pt2")
    runs_as(top_p, torch.export.load(tmp_path / "chunked.pt2"), SIZES)


def test_an_aot_inductor_package_gives_every_row_for_every_number_of_rows(tmp_path: Path) -> None:
    program = exported(top_p, rows=Dim("rows", max=MAX))
    assert sortpass.rewrite(program, row_chunk=8, min_bytes=1).num_rewritten == 1
    path = torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "step.pt2"))
    step = torch._inductor.aoti_load_package(path)
    for rows in SIZES:
        x = torch.randn(rows, 8)
        assert torch.equal(step(x), top_p(x))


def test_two_batch_dims_are_cut_along_the_one_that_can_be_larger() -> None:
    def step(x: Any) -> Any:
        return x.sort(-1)[0].cumsum(-1)

    dims = {0: Dim("batch", max=4), 1: Dim("tokens", max=MAX)}
    program = export(Step(step), (torch.randn(3, 2, 8),), dynamic_shapes=(dims,)).run_decompositions()
    report = sortpass.rewrite(program, **{**EVERY_SORT, "row_chunk": 8})
    assert report.sites[0].num_windows == 12  # two tokens of at most four sequences each
    module = program.module()
    for batch, tokens in [(1, 1), (4, MAX), (2, 13), (3, 0), (1, 2)]:
        x = torch.randn(batch, tokens, 8)
        assert_same([step(x)], [module(x)])


DECLINES: dict[str, tuple[Any, dict[str, Any], DeclineCode, str]] = {
    "no max": (Dim("rows"), {}, DeclineCode.DYNAMIC_ROWS, "give the dim a max"),
    "many windows": (
        Dim("rows", max=100),
        {"max_unroll": 24},
        DeclineCode.TOO_MANY_WINDOWS,
        "the 100 rows that its dim allows",
    ),
    "a loop": (Dim("rows", max=MAX), {"form": "loop"}, DeclineCode.NOT_FUNCTIONAL, "use form='unroll' or 'auto'"),
    "static loop": (None, {"form": "loop"}, DeclineCode.NOT_FUNCTIONAL, "use form='unroll' or 'auto'"),
    "few rows at most": (Dim("rows", max=5), {"row_chunk": 5}, DeclineCode.FEW_ROWS, "has 5 rows"),
    "few bytes at most": (Dim("rows", max=MAX), {"min_bytes": 12 * 8 * MAX + 1}, DeclineCode.BELOW_MIN_BYTES, "2,208"),
}


@pytest.mark.parametrize("name", DECLINES)
def test_what_cannot_be_unrolled_is_declined_and_says_what_to_do(name: str) -> None:
    rows, options, code, says = DECLINES[name]
    program = exported(top_p, rows=rows)
    before = str(program.graph)
    report = sortpass.rewrite(program, **{**EVERY_SORT, **options})
    assert report.sites[0].code is code
    assert says in report.sites[0].reason
    assert str(program.graph) == before


def test_an_op_whose_kernel_must_know_the_size_of_a_piece_stays_outside() -> None:
    def shifted(x: Any) -> Any:
        return torch.nn.functional.pad(x.sort(-1)[0].cumsum(-1), (1, 0)).amax(-1)

    program = exported(shifted, rows=Dim("rows", max=MAX))
    site = sortpass.rewrite(program, **EVERY_SORT).sites[0]
    assert site.region_ops == ("aten.sort.default", "getitem", "aten.cumsum.default")
    assert [(no.node, no.code) for no in site.boundary] == [("constant_pad_nd", DeclineCode.REBUILD_FAILED)]
    runs_as(shifted, program, SIZES)
    whole = sortpass.rewrite(exported(shifted, traced=13), **EVERY_SORT).sites[0]
    assert "aten.constant_pad_nd.default" in whole.region_ops


def test_auto_declines_a_sort_that_cat_would_hold_twice() -> None:
    report = sortpass.rewrite(exported(lambda x: x.sort(-1), rows=Dim("rows", max=MAX)), row_chunk=CHUNK, min_bytes=1)
    assert report.sites[0].code is DeclineCode.NO_GAIN
    forced = exported(lambda x: x.sort(-1), rows=Dim("rows", max=MAX))
    assert sortpass.rewrite(forced, **EVERY_SORT, form="unroll").num_rewritten == 1
    runs_as(lambda x: tuple(x.sort(-1)), forced, SIZES)


def test_a_graph_module_without_its_program_is_unrolled_only_where_it_can_still_be_saved(tmp_path: Path) -> None:
    static = exported(top_p, traced=13)
    assert sortpass.rewrite(static.graph_module, **EVERY_SORT).sites[0].form == "unroll"
    torch.export.save(static, tmp_path / "static.pt2")
    runs_as(top_p, torch.export.load(tmp_path / "static.pt2"), [13])
    dynamic = exported(top_p, rows=Dim("rows", max=MAX))
    report = sortpass.rewrite(dynamic.graph_module, **EVERY_SORT)
    assert report.sites[0].code is DeclineCode.DYNAMIC_ROWS
    assert "rewrite the program itself" in report.sites[0].reason


@pytest.mark.parametrize(("form", "inner"), [("unroll", "aot_eager"), ("auto", "aot_eager"), ("auto", "inductor")])
def test_a_dim_that_mark_dynamic_gave_a_range_compiles_once_and_is_right_in_all_of_it(form: str, inner: str) -> None:
    # Dynamo turns any guard that a size in the range would fail into an error, so nothing may be asked of it.
    step = torch.compile(
        lambda x: top_p(x), backend="chunked_sort", options={**EVERY_SORT, "inner": inner, "form": form}
    )
    with sortpass.capture_reports() as reports:
        for rows in (13, MAX, 6, CHUNK + 1, CHUNK, 3, 2):
            x = torch.randn(rows, 8)
            torch._dynamo.mark_dynamic(x, 0, min=2, max=MAX)
            assert torch.equal(step(x), top_p(x))
    assert [report.sites[0].form for report in reports] == ["unroll" if form == "unroll" else "loop"]
