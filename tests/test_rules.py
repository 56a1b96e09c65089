"""Op rules: for every row of the table in rule_cases.py, cutting a call into chunks and joining them equals the whole.

Also here: rows that depend on each other are refused, and a rule without a row in the table fails the suite.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from rule_cases import CASES, RANDOM, Arg, Case, bools, case, floats, ints, orders, ties
from rule_checker import answer, assert_chunks_join, fake_call
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_leaves, tree_map_only

import sortpass
from sortpass.rules import Blocked, Call, Flow, find_rule_maybe, is_draw, register_rule, registered_rules

aten, prims = torch.ops.aten, torch.ops.prims


def make_args(row: Case) -> dict[str, Any]:
    """The arguments of a row by schema name, as far as it gives them, with real tensors."""
    names = [argument.name for argument in row.op._schema.arguments]
    return tree_map_only(Arg, lambda arg: arg.make(), dict(zip(names, row.args, strict=False)) | row.kwargs)


@pytest.mark.parametrize("row", CASES, ids=str)
def test_chunks_join_to_the_whole_along_the_dims_a_call_may_be_cut_along(row: Case) -> None:
    args = make_args(row)
    node = fake_call(row.op, args)
    answers = {dim: answer(node, dim) for dim in range(len(Call(node).out_shape))}

    assert tuple(dim for dim, flow in answers.items() if isinstance(flow, Flow)) == row.cuts
    for dim, flow in answers.items():
        if isinstance(flow, Blocked):
            assert flow.why
            assert not flow.why.endswith(".")
        else:
            assert_chunks_join(node, args, flow, dim)


@pytest.mark.parametrize(
    ("row", "lie"),
    [
        (case(aten.cumsum.default, floats(6, 6), 0, cuts=()), Flow({"self": 0})),
        (case(aten.gather.default, floats(6, 6), 1, orders(6, 6), cuts=()), Flow({"self": 0, "index": None})),
        (case(aten.view.default, floats(4, 4), [4, 2, 2], cuts=()), Flow({"self": 1}, resized={"size": 0})),
        (case(aten.squeeze.dim, floats(6, 4), 0, cuts=()), Flow({"self": 0})),
    ],
    ids=["cumsum over rows", "index of other rows", "view of the dim of equal size", "squeeze of a single row"],
)
def test_a_rule_that_lies_is_caught(row: Case, lie: Flow) -> None:
    args = make_args(row)
    node = fake_call(row.op, args)
    with pytest.raises((AssertionError, RuntimeError)):
        assert_chunks_join(node, args, lie, 0)


def test_every_rule_has_a_row() -> None:
    ours = {op for op in registered_rules() if op.namespace in ("aten", "prims")}
    assert ours - {row.op for row in CASES} == set()


def test_every_op_of_the_table_may_be_cut_along_some_dim() -> None:
    assert {row.op for row in CASES} - {row.op for row in CASES if row.cuts} == set()


def op_label(op: Any) -> str:
    """A name without an address, which would differ between the processes that run the tests."""
    return str(op) if isinstance(op, (str, torch._ops.OpOverload, torch._ops.OpOverloadPacket)) else op.__name__


COUPLED = {
    "sum over the rows": (aten.sum.dim_IntList, floats(6, 6), [0]),
    "sum over the rows, kept": (aten.sum.dim_IntList, floats(6, 6), [-2], True),
    "max over the rows": (aten.max.dim, floats(6, 6), 0),
    "argmax over everything": (aten.argmax.default, floats(6, 6), None, True),
    "norm over everything": (aten.linalg_vector_norm.default, floats(6, 6), 2, None, True),
    "cumsum along the rows": (aten.cumsum.default, floats(6, 6), 0),
    "cumsum along the rows of 3-D": (aten.cumsum.default, floats(6, 2, 6), -3),
    "softmax along the rows": (aten._softmax.default, floats(6, 6), 0, False),
    "sort along the rows": (aten.sort.default, floats(6, 6), 0),
    "stable sort along the rows": (aten.sort.stable, floats(6, 6), True, -2),
    "topk along the rows": (aten.topk.default, floats(6, 6), 3, 0),
    "flip of the rows": (aten.flip.default, floats(6, 6), [0, 1]),
    "roll of the rows": (aten.roll.default, floats(6, 6), [1], [0]),
    "roll of the flattened rows": (aten.roll.default, floats(6, 6), [1]),
    "cat along the rows": (aten.cat.default, [floats(6, 6), floats(6, 6)]),
    "slice of the rows": (aten.slice.Tensor, floats(6, 6), 0, 1),
    "one row": (aten.select.int, floats(6, 6), 0, 2),
    "split of the rows": (aten.split.Tensor, floats(6, 6), 3),
    "unbind of the rows": (aten.unbind.int, floats(6, 6)),
    "pad of the rows": (aten.constant_pad_nd.default, floats(6, 6), [0, 0, 0, 1]),
    "pad that moves the rows": (aten.constant_pad_nd.default, floats(6, 6), [0, 0, 1, -1]),
    "repeat of the rows": (aten.repeat.default, floats(6, 6), [2, 1]),
    "view that merges the rows": (aten.view.default, floats(4, 3, 2), [12, 2]),
    "view that flattens": (aten.view.default, floats(4, 4), [16]),
    "view that splits the rows": (aten.view.default, floats(4, 4), [2, 2, 4]),
    "squeeze that drops a single row": (aten.squeeze.dim, floats(6, 6), 0),
    "index_select of the rows": (aten.index_select.default, floats(6, 6), 0, ints(6)),
    "x[idx]": (aten.index.Tensor, floats(6, 6), [ints(6)]),
    "x[idx, idx]": (aten.index.Tensor, floats(6, 6), [ints(6), ints(6)]),
    "x[mask]": (aten.index.Tensor, floats(6, 6), [bools(6)]),
    "x[idx] = v": (aten.index_put.default, floats(6, 6), [ints(3)], floats(6)),
    "x[mask] = values": (aten.index_put.default, floats(6, 6), [bools(6)], floats(6)),
    "gather along the rows": (aten.gather.default, floats(6, 6), 0, ints(6, 6)),
    "scatter along the rows": (aten.scatter.src, floats(6, 6), 0, ints(6, 6), floats(6, 6)),
    "scatter_add along the rows": (aten.scatter_add.default, floats(6, 6), -2, ints(6, 6), floats(6, 6)),
    "slice written into the rows": (aten.slice_scatter.default, floats(6, 6), floats(3, 6), 0, 0, 3),
    "multinomial of one row": (aten.multinomial.default, floats(6), 3),
    "one row written": (aten.select_scatter.default, floats(6, 6), floats(6), 0, 2),
}


@pytest.mark.parametrize("name", COUPLED)
def test_rows_that_depend_on_each_other_are_never_cut(name: str) -> None:
    op, *args = COUPLED[name]
    node = fake_call(op, make_args(case(op, *args, cuts=())))
    first = op._schema.arguments[0].name

    for dim in range(len(Call(node).out_shape)):
        flow = answer(node, dim)
        assert isinstance(flow, Blocked) or 0 not in tree_leaves(flow.inputs[first])


@pytest.mark.parametrize("row_dim", [0, 2])
def test_one_output_of_several_is_cut_like_the_call(row_dim: int) -> None:
    sort = fake_call(aten.sort.default, make_args(case(aten.sort.default, ties(2, 6, 4), 1, cuts=())))
    rule = find_rule_maybe(operator.getitem)
    item = sort.graph.call_function(operator.getitem, (sort, 1))
    item.meta["val"] = sort.meta["val"][1]

    assert rule is not None
    assert rule(Call(item), row_dim) == Flow({"self": row_dim})


@pytest.mark.parametrize(
    "op",
    [
        aten.randperm.default,
        aten.alpha_dropout.default,
        aten.exponential_.default,
        aten.add_.Tensor,
        aten.copy_.default,
        aten.squeeze.default,  # drops whatever has size 1, a single row too
        aten.max.default,
        torch.cumsum,
    ],
    ids=op_label,
)
def test_an_op_that_shuffles_rows_or_writes_or_is_not_known_has_no_rule(op: Any) -> None:
    assert find_rule_maybe(op) is None


def test_every_draw_is_known_as_one_also_where_its_seed_makes_it_pure() -> None:
    ours = {row.op for row in RANDOM}
    assert all(map(is_draw, ours)) and not any(map(is_draw, {row.op for row in CASES} - ours))
    assert ours == {op for op in registered_rules() if is_draw(op)}


@pytest.mark.parametrize("op", [aten.multinomial.default, aten.bernoulli.default, aten.rand.generator], ids=op_label)
def test_a_generator_of_its_own_is_not_shared_out_to_windows(op: Any) -> None:
    first = [6, 6] if op is aten.rand.generator else torch.rand(6, 6)
    args = {op._schema.arguments[0].name: first, "num_samples": 1, "generator": None}
    node = fake_call(op, {name: arg for name, arg in args.items() if name in [a.name for a in op._schema.arguments]})
    assert isinstance(answer(node, 0), Flow)
    node.kwargs = {**node.kwargs, "generator": torch.Generator()}
    assert answer(node, 0) == Blocked("draws from a generator that it was given")


@torch.library.custom_op("sortpass_test::row_norm", mutates_args=())
def row_norm(x: torch.Tensor, dim: int) -> torch.Tensor:
    return x / x.square().sum(dim, keepdim=True).sqrt()


@row_norm.register_fake
def _(x: torch.Tensor, dim: int) -> torch.Tensor:
    return torch.empty_like(x)


ROW_NORM = torch.ops.sortpass_test.row_norm.default


def row_norm_rule(call: Call, row_dim: int) -> Flow | Blocked:
    return Blocked("normalises along the row dim") if call.dim("dim", of="x") == row_dim else Flow({"x": row_dim})


@pytest.fixture
def clean_table() -> Iterator[None]:
    """Takes back what a test registers."""
    table = registered_rules()
    assert isinstance(table, dict)
    before = dict(table)
    yield
    table.clear()
    table.update(before)


@pytest.mark.usefixtures("clean_table")
@pytest.mark.parametrize("dim", [-1, 0])
def test_a_rule_the_user_registers_keeps_the_op_in_the_region(dim: int) -> None:
    x = torch.randn(6, 40)
    gm = make_fx(lambda x: ROW_NORM(x.sort(-1).values, dim), tracing_mode="fake")(x)
    expected = gm(x)
    register_rule(ROW_NORM)(row_norm_rule)

    assert sortpass.rewrite(gm, row_chunk=2, min_bytes=1, force=True, form="unroll").num_rewritten == 1
    assert len(gm.graph.find_nodes(op="call_function", target=ROW_NORM)) == (3 if dim == -1 else 1)
    torch.testing.assert_close(gm(x), expected)


@pytest.mark.usefixtures("clean_table")
def test_a_later_registration_replaces_an_earlier_one() -> None:
    assert find_rule_maybe(ROW_NORM) is None
    for rule in (lambda call, row_dim: Blocked("is not known yet"), row_norm_rule):
        register_rule(ROW_NORM, aten.mm.default)(rule)
        assert find_rule_maybe(ROW_NORM) is find_rule_maybe(aten.mm.default) is rule


@pytest.mark.parametrize("op", [aten.cumsum, torch.cumsum, "aten.cumsum.default", operator.getitem], ids=op_label)
def test_only_an_op_overload_can_be_given_a_rule(op: Any) -> None:
    with pytest.raises(TypeError, match="takes op overloads such as torch.ops.aten.cumsum.default, got"):
        register_rule(op)(row_norm_rule)
