"""Random programs, whole against chunked, and what they have shown so far.

``make fuzz`` goes on for longer; these are always the same few hundred.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fuzz import Check, Tally, fuzz
from fuzz_compare import Difference
from fuzz_programs import Functions
from fuzzing import Options, Outcome, check_compiled, check_gradients, check_traced
from torch.fx.experimental.proxy_tensor import make_fx

import sortpass
from sortpass.emit.nodes import CannotBuild

TESTS = Path(__file__).parent


def rows_of(*shapes: tuple[int | str, ...]) -> Callable[[int], list[Any]]:
    """Makes float inputs with ties, ``"n"`` standing for the number of rows."""

    def inputs(n: int) -> list[Any]:
        torch.manual_seed(0)
        return [torch.randint(-3, 4, [n if size == "n" else int(size) for size in shape]).float() for shape in shapes]

    return inputs


@pytest.mark.parametrize(
    "check, count, least",
    [(check_traced, 250, 120), (check_compiled, 15, 6), (check_gradients, 15, 6)],
    ids=["traced", "compiled", "gradients"],
)
def test_random_programs_are_as_whole(check: Check, count: int, least: int) -> None:
    tally = Tally()
    failure = fuzz(check, seed=None, count=count, tally=tally)
    assert failure is None, f"{failure.error}\n\n{failure.as_code()}"
    assert tally.outcomes["rewritten"] >= least, tally.outcomes


def test_a_difference_is_found_and_printed_as_a_program_that_shows_it(tmp_path: Path) -> None:
    def check(case: Functions, options: Options) -> Outcome:
        """As if every flipped tensor came out wrong."""
        outputs = case.program(*case.inputs(case.rows))
        if any(t.numel() > 1 and not torch.equal(t, t.flip(0)) for t in outputs):
            raise Difference("flipped")
        return Outcome()

    failure = fuzz(check, seed=0, count=100, tally=Tally())
    assert failure is not None
    assert len(failure.program.lines) <= 2, failure.as_code()
    code = failure.as_code().replace("from fuzzing import Options, check", "from fuzzing import Options, check_traced")
    script = tmp_path / "case.py"
    script.write_text(code.replace("check(case", "check_traced(case"))
    subprocess.run([sys.executable, str(script)], check=True, env={"PYTHONPATH": str(TESTS), "PATH": ""})


@pytest.mark.parametrize("form", ["loop", "unroll"])
@pytest.mark.parametrize("scope", ["region", "sort"])
def test_a_region_stays_behind_the_write_to_what_it_reads(form: str, scope: str) -> None:
    def program(a: Any, b: Any) -> list[Any]:
        a[0] = b[0]
        return [*a.sort(-1), b + 1]

    case = Functions(rows_of(("n", 5), ("n", 5)), program, rows=5, other_rows=8)
    assert check_traced(case, Options(form=form, scope=scope)).region_ops


def test_a_row_count_read_off_another_tensor_is_the_windows_row_count_in_a_loop() -> None:
    def program(a: Any) -> list[Any]:
        values, order = a.sort(0)
        return [values.clamp(min=0.5).take_along_dim(order, -1), order]

    case = Functions(rows_of((3, "n", 3)), program, rows=5, other_rows=8)
    assert check_traced(case, Options(trace="symbolic", functional=True, form="auto")).region_ops


def test_a_size_that_no_input_of_a_loop_body_tells_is_no_reason_to_fail() -> None:
    def program(a: Any) -> list[Any]:
        # The outer loop's body sees windows of n - 1 rows; an inner buffer's strides are multiples of that.
        pairs = a.median(1)[0].unfold(-1, 2, 1)
        values, order = pairs.sort(-2, descending=True)
        return [order, values.cumsum(-1).median(1)[1]]

    case = Functions(rows_of((2, "n", 7)), program, rows=7, other_rows=9)
    assert check_traced(case, Options(trace="symbolic", functional=True, row_chunk=1)).region_ops


@pytest.mark.parametrize(
    "program",
    [
        lambda a: [(first := a.sort(-1))[0], *first[1].sort(1)],
        lambda a: [order := a.sort(-1)[1], order.expand(0, *order.shape).roll(1, -1)],
    ],
    ids=["size 1", "empty"],
)
def test_strides_that_lead_nowhere_may_differ(program: Callable[[Any], list[Any]]) -> None:
    inputs = rows_of(("n", 5, 5))
    case = Functions(lambda n: [inputs(n)[0].transpose(0, 1)], program, rows=5, other_rows=6)
    assert check_traced(case, Options(form="unroll")).region_ops


def test_a_dim_of_known_size_may_be_cut_into_windows_of_a_dynamic_number_of_steps() -> None:
    # The second call is compiled for [2, s, 5] with s = 2: cut along the first dim, s rows a step.
    case = Functions(rows_of((2, "n", 5)), lambda a: [*a.sort(-1)], rows=5, other_rows=2)
    assert len(check_compiled(case, Options()).region_ops) == 2


def test_no_size_is_read_off_a_node_that_goes_away() -> None:
    def program(a: Any) -> list[Any]:
        values, order = a.sort(0)
        twice = torch.cat([values, values], 0)  # inside: the columns are cut; the only value of 2 * s rows
        return [order.argsort(-1), twice.softmax(-1), twice.softmax(0).softmax(-1), values.view(values.shape)]

    case = Functions(rows_of(("n", 5)), program, rows=5, other_rows=5)
    assert check_traced(case, Options(trace="symbolic")).region_ops


def test_a_row_count_that_breaks_a_guard_of_the_traced_graph_is_not_compared() -> None:
    # One symbol stands for both dims of size 5; the guard of the unflatten has an `or`.
    case = Functions(rows_of(("n", 5, 4)), lambda a: [a.sort(-1)[1].unflatten(-1, (-1, 2))], rows=5, other_rows=6)
    outcome = check_traced(case, Options(trace="symbolic", form="loop"))
    assert outcome.region_ops and not outcome.second_row_count


def test_a_topk_of_a_number_beside_a_sort_is_looked_at_too() -> None:
    def program(a: Any, b: Any) -> list[Any]:
        return [*b.topk(1, -1), *a.sort(-1)]

    def inputs(rows: int) -> list[Any]:
        return [torch.randn(rows, 5), torch.tensor(0.5)]

    assert check_traced(Functions(inputs, program, rows=5, other_rows=6), Options()).region_ops


def test_strides_of_an_op_whose_fake_kernel_has_others_are_as_without_the_pass() -> None:
    def program(a: Any) -> list[Any]:
        index = a.sort(-1)[1]
        return [index, torch.isin(index, torch.tensor([0, 1])), index[:, torch.tensor([1, 0])]]

    def inputs(rows: int) -> list[Any]:
        return [torch.randn(5, rows, generator=torch.Generator().manual_seed(0)).t()]

    check_compiled(Functions(inputs, program, rows=5, other_rows=6), Options())


def test_sizes_made_of_a_symbol_that_is_itself_no_size() -> None:
    def program(a: Any) -> list[Any]:
        halves = a.softmax(-1)[:, None].unflatten(-1, (-1, 2))  # [n, 1, s // 2, s // (s // 2)]
        return [*halves.softmax(-1).sort(-1)]

    case = Functions(rows_of(("n", 4)), program, rows=5, other_rows=6)
    assert check_traced(case, Options(trace="symbolic", scope="auto")).region_ops


def test_a_graph_that_does_not_run_with_fake_tensors_is_left_alone() -> None:
    def program(a: Any) -> Any:
        order = torch.isin(a.sort(-1)[1], torch.tensor([0.0, 1.0])).sort(-1)[1]
        return order.view(order.shape[0], 1, -1)  # of strides that only the real isin has

    gm = make_fx(program)(torch.randn(5, 2, 5).transpose(0, 1))
    before, values = str(gm.graph), [node.meta.get("val") for node in gm.graph.nodes]
    report = sortpass.rewrite(gm, row_chunk=2, min_bytes=1, force=True)
    assert {site.code for site in report.sites} == {sortpass.DeclineCode.NO_SHAPE}
    assert str(gm.graph) == before
    assert all(a is b for a, b in zip(values, [node.meta.get("val") for node in gm.graph.nodes], strict=True))


def test_what_follows_an_op_with_wrong_fake_strides_is_not_held_against_the_pass() -> None:
    # The real isin of a transposed tensor is contiguous, the fake one is not; the sort's output takes after it.
    def program(a: Any) -> list[Any]:
        return [*torch.isin(a, torch.tensor([0.0, 1.0])).sort(-1)]

    def inputs(rows: int) -> list[Any]:
        return [torch.randn(5, rows, generator=torch.Generator().manual_seed(0)).t()]

    outcome = check_compiled(Functions(inputs, program, rows=5, other_rows=6), Options())
    assert outcome.skipped is not None and "isin" in outcome.skipped


def test_a_decline_after_the_first_new_node_leaves_the_order_as_it_was() -> None:
    def program(a: Any) -> list[Any]:
        values = a.sort(-1)[0]
        noise = a * 2
        return [values + noise.t().contiguous().cumsum(0).t(), noise]

    gm = make_fx(program)(torch.randn(6, 6))
    before = str(gm.graph)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sortpass.emit.unroll._join", _refuse)
        report = sortpass.rewrite(gm, row_chunk=2, min_bytes=1, force=True, form="unroll")
    assert report.sites[0].code is sortpass.DeclineCode.REBUILD_FAILED
    assert str(gm.graph) == before


def _refuse(builder: Any, node: Any, *args: Any) -> Any:
    raise CannotBuild(node, "as a test wants it")
