"""How exact a rewritten region is: what is promised holds, and what cannot be promised is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers import as_list, assert_same, capture_graph, compile_chunked, compile_whole, run_both
from rule_checker import fake_call
from samplers import SAMPLERS, inputs_for
from torch.utils._pytree import tree_leaves

import sortpass
from sortpass import DeclineCode, Exactness
from sortpass.exactness import Setting, is_promised
from sortpass.rules import declared_exactness, exactness_of, registered_rules
from sortpass.rules.exactness import along_last
from sortpass.rules.registry import broadcast_rule

aten, prims = torch.ops.aten, torch.ops.prims

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def levels(name: str, inner: str, **options: Any) -> set[str | None]:
    """What the regions of a sampler are reported to be."""
    gm = capture_graph(SAMPLERS[name], *inputs_for(name, 37, 101), decompose=inner == "inductor")
    report = sortpass.rewrite(gm, **{"row_chunk": 7, "min_bytes": 1, "force": True, "inner": inner, **options})
    assert report.num_rewritten == len(report.sites) >= 1
    return {site.exactness for site in report.sites}


@pytest.mark.parametrize("form", ["loop", "unroll"])
@pytest.mark.parametrize("name", SAMPLERS)
def test_a_sampler_is_bitwise_under_aot_eager(name: str, form: str) -> None:
    assert levels(name, "aot_eager", form=form) == {"bitwise"}


# Typical sampling sorts what it computes with softmax; top-p sorts the logits.
SORTS_COMPUTED = ("typical", "min_p", "chain")


@pytest.mark.parametrize("name", SAMPLERS)
def test_inductor_is_promised_to_keep_only_the_order_of_what_no_softmax_went_into(name: str) -> None:
    assert levels(name, "inductor") == {"close" if name in SORTS_COMPUTED else "indices-exact"}


@pytest.mark.parametrize("name", SAMPLERS)
def test_windows_of_a_single_row_are_promised_no_more_than_under_inductor(name: str) -> None:
    expected = {"close" if name in SORTS_COMPUTED else "indices-exact"}
    assert levels(name, "aot_eager", row_chunk=1) == expected
    # 37 rows in pieces of at most two: one of the 19 pieces has a single row.
    assert levels(name, "aot_eager", row_chunk=2, form="unroll") == expected
    assert levels(name, "aot_eager", row_chunk=2, form="loop") == {"bitwise"}


@pytest.mark.parametrize("rows, vocab", [(37, 101), (11, 1003), (3, 40_001)])
@pytest.mark.parametrize("form", ["loop", "unroll"])
@pytest.mark.parametrize("name", ["top_p", "typical", "per_row"])
def test_what_is_reported_bitwise_is_bit_equal(name: str, form: str, rows: int, vocab: int) -> None:
    args = inputs_for(name, rows, vocab)
    whole = as_list(compile_whole(SAMPLERS[name])(*args))
    for row_chunk in (1, 2, 3, 8):
        with sortpass.capture_reports() as reports:
            chunked = as_list(compile_chunked(SAMPLERS[name], row_chunk=row_chunk, form=form)(*args))
        if any(site.exactness == "bitwise" for site in reports[0].sites):
            assert_same(whole, chunked)
        assert row_chunk != 3 or rows <= 3 or reports[0].sites[0].exactness == "bitwise"


def masked_sort(x: Any) -> Any:
    values, index = (x * 0.7 + 1).masked_fill(x < 0, -torch.inf).sort(-1)
    return values - values.amax(-1, keepdim=True), x.gather(-1, index), (values > 1).sum(-1)


def test_moves_and_arithmetic_are_bitwise_under_inductor_too() -> None:
    for vocab in (101, 1003):
        whole, chunked, report = run_both(masked_sort, torch.randn(11, vocab), inner="inductor", exactness="bitwise")
        assert report.sites[0].exactness == "bitwise"
        assert_same(whole, chunked)


def test_half_precision_arithmetic_is_not_promised_where_a_compiler_may_keep_it_in_float32() -> None:
    for inner, expected in (("inductor", "close"), ("aot_eager", "bitwise"), (lambda gm, inputs: gm, "close")):
        gm = capture_graph(masked_sort, torch.randn(11, 101).bfloat16())
        assert sortpass.rewrite(gm, row_chunk=3, min_bytes=1, force=True, inner=inner).sites[0].exactness == expected


def test_what_is_reported_indices_exact_has_the_same_indices_under_inductor() -> None:
    def fn(x: Any) -> Any:
        values, index = x.sort(-1, descending=True)
        return values.softmax(-1).cumsum(-1), index

    whole, chunked, report = run_both(fn, torch.randn(11, 1003), inner="inductor")
    assert report.sites[0].exactness == "indices-exact"
    torch.testing.assert_close(whole[0], chunked[0])
    assert torch.equal(whole[1], chunked[1])


def test_the_smaller_of_two_is_promised_where_two_zeros_cannot_meet() -> None:
    x = torch.randn(10, 20)
    for number, expected in ((0.5, "bitwise"), (0.0, "close")):
        gm = capture_graph(lambda x, number=number: torch.minimum(x, torch.tensor(number)).sort(-1)[0], x)
        assert (
            sortpass.rewrite(gm, row_chunk=3, min_bytes=1, force=True, inner="aot_eager").sites[0].exactness == expected
        )


def test_the_smaller_of_two_is_promised_where_it_is_only_compared() -> None:
    def dropped(x: Any, least: Any) -> Any:
        bound = torch.minimum(least, x.amax(-1))
        return x.sort(-1)[0] < bound[:, None]

    def bound_and_dropped(x: Any, least: Any) -> Any:
        bound = torch.minimum(least, x.amax(-1))[:, None]
        return x.sort(-1)[0] < bound, bound

    for fn, expected in ((dropped, "bitwise"), (bound_and_dropped, "indices-exact")):
        gm = capture_graph(fn, torch.randn(10, 20), torch.tensor(0.0))
        report = sortpass.rewrite(gm, row_chunk=3, min_bytes=1, force=True, inner="aot_eager")
        assert report.sites[0].exactness == expected


DECLINED: dict[str, tuple[Callable[[Any], Any], dict[str, Any], str, str]] = {
    "a compiler": (lambda x: x.sort(-1)[0].softmax(-1), {"inner": "inductor"}, "_softmax", "inner='aot_eager'"),
    "one row": (lambda x: x.cumsum(-1).sort(-1)[0], {"row_chunk": 1}, "cumsum", "two rows or more"),
    "vector tails": (lambda x: x.sigmoid().sort(-1)[0], {}, "sigmoid", "exactness='any'"),
    "sign of a zero": (lambda x: torch.minimum(x, x.sort(-1)[0]), {}, "minimum", "exactness='any'"),
    "columns": (lambda x: x[:, None].sort(-1)[0].sum(1), {}, "sum", "exactness='any'"),
}


@pytest.mark.parametrize("name", DECLINED)
def test_bitwise_declines_what_cannot_be_promised_and_names_the_node(name: str) -> None:
    fn, options, node, advice = DECLINED[name]
    gm = capture_graph(fn, torch.randn(10, 20))
    before = gm.print_readable(print_output=False)
    options = {"row_chunk": 3, "min_bytes": 1, "force": True, "inner": "aot_eager", "exactness": "bitwise", **options}

    site = sortpass.rewrite(gm, **options).sites[0]
    assert (site.status, site.code, site.exactness) == ("declined", DeclineCode.NOT_BITWISE, None)
    assert f"aten.{node}." in site.reason
    assert advice in site.reason
    assert gm.print_readable(print_output=False) == before
    assert sortpass.rewrite(gm, **{**options, "exactness": "any"}).num_rewritten == 1


def test_dynamic_rows_are_promised_what_every_number_of_rows_keeps() -> None:
    def fn(x: Any) -> Any:
        return x.sort(-1)[0].softmax(-1)

    for row_chunk, expected in ((1, "indices-exact"), (2, "bitwise"), (3, "bitwise")):
        with sortpass.capture_reports() as reports:
            step = compile_chunked(fn, row_chunk=row_chunk, dynamic=True)
            for rows in (row_chunk + 1, row_chunk + 2, 9):
                x = torch.randn(rows, 101)
                if expected == "bitwise":
                    assert_same([fn(x)], [step(x)])
        assert {report.sites[0].exactness for report in reports if report.modified} <= {expected}


@pytest.mark.parametrize(
    "level, promised",
    [
        (Exactness.COPIES, {"cpu eager", "cpu inductor", "cpu other", "cuda eager", "cuda inductor", "cuda other"}),
        (Exactness.PICKS, {"cpu eager", "cpu inductor"}),
        (Exactness.ROUNDS, {"cpu eager", "cpu inductor", "cuda eager"}),
        (Exactness.ROWWISE, {"cpu eager"}),
        (Exactness.CLOSE, set()),
    ],
)
def test_what_a_level_promises(level: Exactness, promised: set[str]) -> None:
    settings = {
        f"{device} {inner}": Setting(device, "aot_eager" if inner == "eager" else inner, fewest_steps=2)
        for device in ("cpu", "cuda")
        for inner in ("eager", "inductor", "other")
    }
    assert {name for name, setting in settings.items() if is_promised(level, {torch.float32}, setting)} == promised


def args_for(op: Any, rows: torch.Tensor) -> list[Any]:
    """Arguments for a pointwise op: rows for its tensors, a mask of them, 0.7 for its numbers; None for the rest."""
    kinds = {"Tensor": rows.abs() + 0.1, "number": 0.7}
    required = [argument for argument in op._schema.arguments if not argument.has_default_value()]
    return [rows > 0 if a.name in ("mask", "condition") else kinds.get(str(a.type)) for a in required]


PROMISING = sorted(
    (
        op
        for packet in (getattr(aten, name) for name in dir(aten))
        if isinstance(packet, torch._ops.OpOverloadPacket)
        for op in (getattr(packet, name) for name in packet.overloads())
        if torch.Tag.pointwise in op.tags
        and not op._schema.is_mutable
        and declared_exactness(op) is not Exactness.CLOSE
        and all(arg is not None for arg in args_for(op, torch.empty(1)))
        and op not in (aten.clamp.default, aten.clamp.Tensor)  # want a bound that their schemas call optional
    ),
    key=str,
)

ROW_BY_ROW = {
    "softmax": lambda x: x.softmax(-1),
    "log_softmax": lambda x: x.log_softmax(-1),
    "gradient of softmax": lambda x: aten._softmax_backward_data(x, x.softmax(-1), -1, x.dtype),
    "gradient of log_softmax": lambda x: aten._log_softmax_backward_data(x, x.log_softmax(-1), -1, x.dtype),
    **{
        op: lambda x, op=op: getattr(torch, op)(x, -1)
        for op in ("cumsum", "cumprod", "logcumsumexp", "sum", "nansum", "mean", "prod", "logsumexp", "var", "std")
    },
    **{f"norm {p}": lambda x, p=p: torch.linalg.vector_norm(x, p, -1) for p in (1, 2, 3)},
    "sum in float32": lambda x: x.sum(-1, dtype=torch.float32),
}


def assert_rows_do_not_see_each_other(op: Callable[[Any], Any], rows: torch.Tensor) -> None:
    whole = tree_leaves(op(rows))
    for size in (2, 3, 8):
        chunks = [tree_leaves(op(chunk)) for chunk in rows[: len(rows) - len(rows) % size].split(size)]
        for expected, *parts in zip(whole, *chunks, strict=True):
            joined = torch.cat(parts)
            torch.testing.assert_close(joined, expected[: len(joined)], rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("op", PROMISING, ids=str)
def test_a_pointwise_op_that_promises_bits_keeps_them_on_odd_rows(op: Any) -> None:
    for dtype in FLOATS:
        for vocab in (37, 101, 1003):
            rows = (3 * torch.randn(13, vocab)).to(dtype)
            assert_rows_do_not_see_each_other(lambda x: op(*args_for(op, x)), rows)


@pytest.mark.parametrize("name", ROW_BY_ROW)
def test_a_row_by_row_op_keeps_its_bits_in_chunks_of_two_rows_or_more(name: str) -> None:
    for dtype in FLOATS:
        # A kernel shares out a row among threads from 32,768 elements on.
        for vocab in (101, 1003, 40_001) if dtype is torch.float32 else (101, 1003):
            rows = 3 * torch.randn(13 if vocab < 2_000 else 9, vocab + 3)
            for layout in (rows.to(dtype), rows.to(dtype)[:, 1:-2]):
                assert_rows_do_not_see_each_other(ROW_BY_ROW[name], layout)


def test_what_is_added_up_across_rows_of_memory_is_promised_nothing() -> None:
    x = torch.randn(6, 8, 10)
    for args, dims in ((x, [2]), (x, [1]), (x, [1, 2]), (x.mT, [1]), (x.mT, [2])):
        node = fake_call(aten.sum.dim_IntList, {"self": args, "dim": dims})
        contiguous = len(dims) == 1 and args.stride(dims[0]) == 1
        assert exactness_of(node, 0) is (Exactness.ROWWISE if contiguous else Exactness.CLOSE)
    assert declared_exactness(aten.sum.dim_IntList) is along_last


def test_integer_arithmetic_is_exact_whatever_its_order() -> None:
    for op, args in ((aten.sum.dim_IntList, {"dim": [0]}), (aten.cumsum.default, {"dim": 0})):
        ints, floats = (fake_call(op, {"self": x, **args}) for x in (torch.ones(4, 4).long(), torch.ones(4, 4)))
        assert (exactness_of(ints, 0), exactness_of(floats, 0)) == (Exactness.COPIES, Exactness.CLOSE)


@pytest.mark.parametrize(
    "value, dtype, expected",
    [(-torch.inf, torch.bfloat16, Exactness.COPIES), (0.1, torch.bfloat16, Exactness.ROUNDS)],
)
def test_writing_a_number_rounds_only_where_the_dtype_does_not_hold_it(value: float, dtype: Any, expected: Any) -> None:
    args = {"self": torch.zeros(4, 4, dtype=dtype), "mask": torch.zeros(4, 4).bool(), "value": value}
    assert exactness_of(fake_call(aten.masked_fill.Scalar, args), 0) is expected


def test_an_op_nobody_spoke_for_promises_nothing_and_a_user_may_speak() -> None:
    op = aten.special_airy_ai.default
    assert declared_exactness(op) is Exactness.CLOSE
    rules = registered_rules()
    assert isinstance(rules, dict)
    try:
        for given, expected in (({"exactness": Exactness.ROWWISE}, Exactness.ROWWISE), ({}, Exactness.CLOSE)):
            sortpass.register_rule(op, **given)(broadcast_rule)
            assert declared_exactness(op) is expected
    finally:
        del rules[op]


def test_the_probe_agrees_with_the_levels_on_a_cpu() -> None:
    kept = sortpass.probe_exactness("cpu")
    assert all(kept[name] for name in kept if name not in ("sigmoid", "pow", "sum of columns"))
