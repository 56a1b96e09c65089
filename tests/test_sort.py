"""Every way a sort can be written, on every layout: found, rewritten in every form, and as whole to the bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers import assert_same, capture_graph, compile_chunked, run_both

import sortpass
from sortpass import DeclineCode

FORMS = [(form, scope) for form in ("loop", "unroll") for scope in ("region", "sort")]

SPELLINGS: dict[str, Callable[[Any], Any]] = {
    "no dim": lambda x: x.sort(),
    "dim=-1": lambda x: torch.sort(x, dim=-1),
    "positional": lambda x: x.sort(1, True),
    "dim=0": lambda x: x.sort(0),
    "dim=-2": lambda x: x.sort(dim=-2, descending=True),
    "stable=False": lambda x: torch.sort(x, stable=False),
    "stable=True": lambda x: torch.sort(x, stable=True, descending=True),
    "stable=None": lambda x: torch.sort(x, stable=None, dim=-1),
    "argsort": lambda x: x.argsort(-1),
    "argsort stable": lambda x: torch.argsort(x, stable=True, dim=0),
    "msort": lambda x: torch.msort(x),
    "quantile": lambda x: x.float().quantile(0.3, dim=-1),
    "searchsorted": lambda x: torch.searchsorted(x.sort()[0], x),
    "vmap": lambda x: torch.vmap(lambda row: row.sort())(x),
    "out=": lambda x: torch.sort(x, out=(torch.empty_like(x), torch.empty_like(x, dtype=torch.long))),
    "twice": lambda x: (*x.sort(), *x.sort(descending=True)),
}


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("form, scope", FORMS)
def test_every_spelling_is_rewritten_and_equals_whole(spelling: str, form: str, scope: str) -> None:
    x = torch.randint(0, 5, (10, 10)).float()  # ties, and rows == vocab
    whole, chunked, report = run_both(SPELLINGS[spelling], x, form=form, scope=scope)
    assert report.num_rewritten == len(report.sites) >= 1
    assert all((s.form, s.scope, s.rows, s.num_windows) == (form, scope, 10, 4) for s in report.sites)
    assert_same(whole, chunked)


LAYOUTS: dict[str, tuple[tuple[int, ...], Callable[[Any], Any]]] = {
    "transposed": ((10, 20), lambda x: x.t().sort()),
    "transposed dim 0": ((10, 20), lambda x: x.t().sort(0)),
    "every second row": ((20, 20), lambda x: x[::2].sort()),
    "every second column": ((10, 20), lambda x: x[:, ::2].sort()),
    "cut columns": ((10, 20), lambda x: x[:, :17].sort()),
    "expanded rows": ((10, 20), lambda x: x[:1].expand(10, 20).sort()),
    "expanded columns": ((10, 20), lambda x: x[:, :1].expand(10, 20).sort()),
    "last position": ((9, 4, 20), lambda x: x[:, -1, :].sort()),
    "3-D": ((2, 7, 20), lambda x: x.sort()),
    "3-D dim 0": ((2, 7, 20), lambda x: x.sort(0)),
    "3-D dim 1": ((2, 7, 20), lambda x: x.sort(1)),
    "[1, S, V]": ((1, 9, 20), lambda x: x.sort()),
    "[B, 1, V]": ((9, 1, 20), lambda x: x.sort()),
    "3-D permuted": ((2, 7, 20), lambda x: x.permute(1, 0, 2).sort()),
    "3-D permuted, sorted dim first in memory": ((2, 7, 20), lambda x: x.permute(2, 0, 1).sort(0)),
    "4-D": ((2, 3, 5, 8), lambda x: x.sort()),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("form, scope", FORMS)
def test_every_layout_keeps_values_indices_and_strides(layout: str, form: str, scope: str) -> None:
    shape, fn = LAYOUTS[layout]
    whole, chunked, report = run_both(fn, torch.randn(shape), form=form, scope=scope)
    assert report.num_rewritten == 1
    assert report.sites[0].row_chunk <= 3, "both batch dims above row_chunk: cut along both"
    assert_same(whole, chunked)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int32, torch.int64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("descending", [False, True])
def test_tie_order_is_kept_for_every_dtype(dtype: torch.dtype, descending: bool) -> None:
    x = torch.randint(0, 3, (7, 20)).to(dtype)
    whole, chunked, report = run_both(lambda x: x.sort(descending=descending), x)
    assert report.num_rewritten == 1
    assert_same(whole, chunked)


def test_special_values_stay_in_their_rows() -> None:
    special = torch.tensor([float("nan"), -float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1.0])
    x = torch.stack([special[torch.randperm(7)] for _ in range(6)] + [special.new_full((7,), float("nan"))])
    x = torch.cat([x, x.new_full((1, 7), -float("inf"))])
    whole, chunked, _ = run_both(lambda x: x.sort(), x)
    assert_same(whole, chunked)
    assert torch.equal(whole[0].signbit(), chunked[0].signbit())


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 6, 7, 12, 13])
def test_row_counts_around_the_chunk_size(rows: int) -> None:
    whole, chunked, report = run_both(lambda x: x.sort(), torch.randn(rows, 5))
    assert report.num_rewritten == (rows > 3)
    assert_same(whole, chunked)


@pytest.mark.parametrize("shape", [(), (9,), (0, 9), (9, 0), (0, 0), (1, 9), (3, 9)])
def test_what_has_too_few_rows_is_declined_and_untouched(shape: tuple[int, ...]) -> None:
    gm = capture_graph(lambda x: x.sort(), torch.randn(shape))
    before = [node.format_node() for node in gm.graph.nodes]
    report = sortpass.rewrite(gm, row_chunk=3, min_bytes=1, force=True)
    assert not report.modified
    assert report.sites[0].code in (DeclineCode.NO_ROW_DIM, DeclineCode.FEW_ROWS, DeclineCode.BELOW_MIN_BYTES)
    assert [node.format_node() for node in gm.graph.nodes] == before


def test_a_small_sort_is_declined_with_both_sizes() -> None:
    gm = capture_graph(lambda x: x.sort(), torch.randn(100, 10))
    report = sortpass.rewrite(gm, row_chunk=3, min_bytes=12_001, force=True)
    assert report.sites[0].code is DeclineCode.BELOW_MIN_BYTES
    assert "12,000 bytes, below min_bytes=12,001" in report.sites[0].reason
    assert report.sites[0].rows == 100
    assert sortpass.rewrite(gm, row_chunk=3, min_bytes=12_000, force=True).modified


def test_unroll_declines_more_windows_than_max_unroll() -> None:
    gm = capture_graph(lambda x: x.sort(), torch.randn(100, 10))
    report = sortpass.rewrite(gm, row_chunk=1, min_bytes=1, force=True, form="unroll", max_unroll=99)
    assert report.sites[0].code is DeclineCode.TOO_MANY_WINDOWS
    assert "needs 100 windows, more than max_unroll=99" in report.sites[0].reason


def test_a_graph_without_shapes_is_declined_with_what_to_do() -> None:
    gm = capture_graph(lambda x: x.sort(), torch.randn(100, 10))
    for node in gm.graph.nodes:
        node.meta.clear()
    report = sortpass.rewrite(gm, min_bytes=1, force=True, row_chunk=1)
    assert report.sites[0].code is DeclineCode.NO_SHAPE
    assert "run FakeTensorProp first" in report.sites[0].reason


@pytest.mark.parametrize("dtype", [torch.complex64, torch.float8_e4m3fn])
def test_what_fails_without_the_pass_fails_with_it(dtype: torch.dtype) -> None:
    x = torch.ones(9, 8).to(dtype)
    with pytest.raises(Exception, match=r"(?i)complex|not implemented|Float8|unsupported"):
        compile_chunked(lambda x: x.sort())(x)


def test_offsets_beyond_32_bits_are_planned_without_memory() -> None:
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    with FakeTensorMode():
        logits = torch.empty(40_000, 128_256)  # 5.1e9 elements
        gm = make_fx(lambda x: x.sort(-1)[0])(logits)
    report = sortpass.rewrite(gm, row_chunk=64)
    assert report.sites[0].num_windows == 625
