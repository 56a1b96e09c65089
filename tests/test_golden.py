"""The graphs users meet, before and after. The emitted graph is an interface: a change here goes into CHANGELOG.md
under "Graph changes". Update with ``EXPECTTEST_ACCEPT=1 make test``.
"""

from __future__ import annotations

import re
from typing import Any

import torch
import torch.fx as fx
from expecttest import TestCase
from helpers import capture_graph
from samplers import top_p

import sortpass


def show(gm: fx.GraphModule) -> str:
    """The graph as code, without comments and deletions."""
    text = gm.print_readable(print_output=False)
    text = re.sub(r"^\s*# .*\n", "", text, flags=re.M)
    text = re.sub(r";  .* = None$", "", text, flags=re.M)
    text = re.sub(r"torch\.ops\.(aten|higher_order)\.", r"\1.", text)
    text = text.replace("9223372036854775807", "INT_MAX").replace("(torch.nn.Module)", "")
    return "\n".join(line.rstrip() for line in text.splitlines() if line.strip())


class TestGoldenGraphs(TestCase):
    maxDiff = None

    def rewritten(self, fn: Any, *args: Any, dynamic: Any = None, **options: Any) -> str:
        gm = capture_graph(fn, *args, dynamic=dynamic)
        assert sortpass.rewrite(gm, **{"row_chunk": 2, "min_bytes": 1, "force": True, **options}).modified
        return show(gm)

    def test_sort_alone_unrolled(self) -> None:
        self.assertExpectedInline(
            self.rewritten(lambda x: x.sort(-1), torch.randn(5, 8), form="unroll", scope="sort"),
            """\
class <lambda>:
    def forward(self, arg0_1: "f32[5, 8]"):
        split_with_sizes_default = aten.split_with_sizes.default(arg0_1, [1, 2, 2], 0)
        getitem_2: "f32[1, 8]" = split_with_sizes_default[0]
        sort_default = aten.sort.default(getitem_2)
        getitem_3: "f32[1, 8]" = sort_default[0]
        getitem_4: "i64[1, 8]" = sort_default[1]
        getitem_5: "f32[2, 8]" = split_with_sizes_default[1]
        sort_default_1 = aten.sort.default(getitem_5)
        getitem_6: "f32[2, 8]" = sort_default_1[0]
        getitem_7: "i64[2, 8]" = sort_default_1[1]
        getitem_8: "f32[2, 8]" = split_with_sizes_default[2]
        sort_default_2 = aten.sort.default(getitem_8)
        getitem_9: "f32[2, 8]" = sort_default_2[0]
        getitem_10: "i64[2, 8]" = sort_default_2[1]
        getitem: "f32[5, 8]" = aten.cat.default([getitem_3, getitem_6, getitem_9], 0)
        getitem_1: "i64[5, 8]" = aten.cat.default([getitem_4, getitem_7, getitem_10], 0)
        return (getitem, getitem_1)""",
        )

    def test_sort_alone_in_a_loop(self) -> None:
        self.assertExpectedInline(
            self.rewritten(lambda x: x.sort(-1), torch.randn(5, 8), form="loop"),
            """\
class <lambda>:
    def forward(self, arg0_1: "f32[5, 8]"):
        empty_strided_default: "f32[5, 8]" = aten.empty_strided.default([5, 8], [8, 1], dtype = torch.float32, device = device(type='cpu'))
        empty_strided_default_1: "i64[5, 8]" = aten.empty_strided.default([5, 8], [8, 1], dtype = torch.int64, device = device(type='cpu'))
        full_default: "i64[]" = aten.full.default([], 0, dtype = torch.int64, device = device(type='cpu'))
        chunk_body_0 = self.chunk_body_0
        chunk_cond_0 = self.chunk_cond_0
        while_loop = higher_order.while_loop(chunk_cond_0, chunk_body_0, (empty_strided_default, empty_strided_default_1, full_default), (arg0_1,))
        getitem: "f32[5, 8]" = while_loop[0]
        getitem_1: "i64[5, 8]" = while_loop[1]
        return (getitem, getitem_1)
    class chunk_body_0:
        def forward(self, out_0: "f32[5, 8]", out_1: "i64[5, 8]", window: "i64[]", arg0_1: "f32[5, 8]"):
            _local_scalar_dense_default: "Sym(u0)" = aten._local_scalar_dense.default(window)
            sym_constrain_range_default = aten.sym_constrain_range.default(_local_scalar_dense_default, min = 0, max = 2)
            mul: "Sym(5*u0)" = _local_scalar_dense_default * 5
            floordiv: "Sym(((5*u0)//3))" = mul // 3
            add: "Sym((((5*u0)//3)) + 2)" = floordiv + 2
            slice_tensor: "f32[2, 8]" = aten.slice.Tensor(arg0_1, 0, floordiv, add)
            sort_default = aten.sort.default(slice_tensor)
            getitem: "f32[2, 8]" = sort_default[0]
            getitem_1: "i64[2, 8]" = sort_default[1]
            slice_tensor_1: "f32[2, 8]" = aten.slice.Tensor(out_0, 0, floordiv, add)
            copy__default: "f32[2, 8]" = aten.copy_.default(slice_tensor_1, getitem)
            slice_tensor_2: "i64[2, 8]" = aten.slice.Tensor(out_1, 0, floordiv, add)
            copy__default_1: "i64[2, 8]" = aten.copy_.default(slice_tensor_2, getitem_1)
            add_tensor: "i64[]" = aten.add.Tensor(window, 1)
            return (out_0, out_1, add_tensor)
    class chunk_cond_0:
        def forward(self, out_0: "f32[5, 8]", out_1: "i64[5, 8]", window: "i64[]", arg0_1: "f32[5, 8]"):
            lt_scalar: "b8[]" = aten.lt.Scalar(window, 3)
            return lt_scalar""",
        )

    def test_sort_with_dynamic_rows(self) -> None:
        x = torch.randn(5, 8)
        torch._dynamo.mark_dynamic(x, 0)
        self.assertExpectedInline(
            self.rewritten(lambda x: x.argsort(-1), x, form="loop"),
            """\
class <lambda>:
    def forward(self, arg0_1: "Sym(s77)", arg1_1: "f32[s77, 8]"):
        add_6: "Sym(s77 + 1)" = arg0_1 + 1
        floordiv: "Sym(((s77 + 1)//2))" = add_6 // 2
        sub_2: "Sym((((s77 + 1)//2)) - 1)" = floordiv - 1
        add_7: "Sym(s77 + (((s77 + 1)//2)) - 1)" = arg0_1 + sub_2
        floordiv_1: "Sym(((s77 + (((s77 + 1)//2)) - 1)//(((s77 + 1)//2))))" = add_7 // floordiv
        empty_strided_default: "i64[s77, 8]" = aten.empty_strided.default([arg0_1, 8], [8, 1], dtype = torch.int64, device = device(type='cpu'))
        full_default: "i64[]" = aten.full.default([], 0, dtype = torch.int64, device = device(type='cpu'))
        chunk_body_0 = self.chunk_body_0
        chunk_cond_0 = self.chunk_cond_0
        while_loop = higher_order.while_loop(chunk_cond_0, chunk_body_0, (empty_strided_default, full_default), (arg1_1, arg0_1, floordiv, floordiv_1))
        getitem_1: "i64[s77, 8]" = while_loop[0]
        return (getitem_1,)
    class chunk_body_0:
        def forward(self, out_0: "i64[s77, 8]", window: "i64[]", arg1_1: "f32[s77, 8]", arg0_1: "Sym(s77)", floordiv: "Sym(((s77 + 1)//2))", floordiv_1: "Sym(((s77 + (((s77 + 1)//2)) - 1)//(((s77 + 1)//2))))"):
            _local_scalar_dense_default: "Sym(u0)" = aten._local_scalar_dense.default(window)
            sym_constrain_range_default = aten.sym_constrain_range.default(_local_scalar_dense_default, min = 0, max = None)
            mul: "Sym(s77*u0)" = _local_scalar_dense_default * arg0_1
            floordiv_2: "Sym(((s77*u0)//(((s77 + 1)//2))))" = mul // floordiv
            add: "Sym((((s77*u0)//(((s77 + 1)//2)))) + (((s77 + (((s77 + 1)//2)) - 1)//(((s77 + 1)//2)))))" = floordiv_2 + floordiv_1
            ge: "Sym((((s77*u0)//(((s77 + 1)//2)))) >= 0)" = floordiv_2 >= 0
            le: "Sym((((s77*u0)//(((s77 + 1)//2)))) <= s77)" = floordiv_2 <= arg0_1
            ge_1: "Sym((((s77*u0)//(((s77 + 1)//2)))) + (((s77 + (((s77 + 1)//2)) - 1)//(((s77 + 1)//2)))) >= 0)" = add >= 0
            le_1: "Sym((((s77*u0)//(((s77 + 1)//2)))) + (((s77 + (((s77 + 1)//2)) - 1)//(((s77 + 1)//2)))) <= s77)" = add <= arg0_1
            _assert_scalar_default = aten._assert_scalar.default(ge, 'a window lies outside the rows')
            _assert_scalar_default_1 = aten._assert_scalar.default(le, 'a window lies outside the rows')
            _assert_scalar_default_2 = aten._assert_scalar.default(ge_1, 'a window lies outside the rows')
            _assert_scalar_default_3 = aten._assert_scalar.default(le_1, 'a window lies outside the rows')
            slice_tensor: "f32[((s77 + (((s77 + 1)//2)) - 1)//(((s77 + 1)//2))), 8]" = aten.slice.Tensor(arg1_1, 0, floordiv_2, add)
            sort_default = aten.sort.default(slice_tensor)
            getitem: "i64[((s77 + (((s77 + 1)//2)) - 1)//(((s77 + 1)//2))), 8]" = sort_default[1]
            slice_tensor_1: "i64[((s77 + (((s77 + 1)//2)) - 1)//(((s77 + 1)//2))), 8]" = aten.slice.Tensor(out_0, 0, floordiv_2, add)
            copy__default: "i64[((s77 + (((s77 + 1)//2)) - 1)//(((s77 + 1)//2))), 8]" = aten.copy_.default(slice_tensor_1, getitem)
            add_tensor: "i64[]" = aten.add.Tensor(window, 1)
            return (out_0, add_tensor)
    class chunk_cond_0:
        def forward(self, out_0: "i64[s77, 8]", window: "i64[]", arg1_1: "f32[s77, 8]", arg0_1: "Sym(s77)", floordiv: "Sym(((s77 + 1)//2))", floordiv_1: "Sym(((s77 + (((s77 + 1)//2)) - 1)//(((s77 + 1)//2))))"):
            lt_scalar: "b8[]" = aten.lt.Scalar(window, floordiv)
            return lt_scalar""",
        )

    def test_top_p_before(self) -> None:
        gm = capture_graph(top_p, torch.zeros(5, 1, dtype=torch.long), torch.randn(5, 8))
        self.assertExpectedInline(
            show(gm),
            """\
class <lambda>:
    def forward(self, arg0_1: "f32[5, 8]"):
        sort = aten.sort.default(arg0_1)
        getitem: "f32[5, 8]" = sort[0]
        getitem_1: "i64[5, 8]" = sort[1]
        _softmax: "f32[5, 8]" = aten._softmax.default(getitem, -1, False)
        cumsum: "f32[5, 8]" = aten.cumsum.default(_softmax, -1)
        le: "b8[5, 8]" = aten.le.Scalar(cumsum, 0.09999999999999998)
        _tensor_constant0: "b8[]" = self._tensor_constant0
        lift_fresh_copy: "b8[]" = aten.lift_fresh_copy.default(_tensor_constant0)
        slice_1: "b8[5, 1]" = aten.slice.Tensor(le, 1, -1, INT_MAX)
        fill: "b8[5, 1]" = aten.fill.Tensor(slice_1, lift_fresh_copy)
        slice_scatter: "b8[5, 8]" = aten.slice_scatter.default(le, fill, 1, -1, INT_MAX)
        scatter: "b8[5, 8]" = aten.scatter.src(slice_scatter, 1, getitem_1, slice_scatter)
        masked_fill: "f32[5, 8]" = aten.masked_fill.Scalar(arg0_1, scatter, -inf)
        return (masked_fill,)""",
        )

    def test_top_p_in_a_loop(self) -> None:
        args = torch.zeros(5, 1, dtype=torch.long), torch.randn(5, 8)
        self.assertExpectedInline(
            self.rewritten(top_p, *args, form="loop"),
            """\
class <lambda>:
    def forward(self, arg0_1: "f32[5, 8]"):
        _tensor_constant0: "b8[]" = self._tensor_constant0
        lift_fresh_copy: "b8[]" = aten.lift_fresh_copy.default(_tensor_constant0)
        empty_strided_default: "f32[5, 8]" = aten.empty_strided.default([5, 8], [8, 1], dtype = torch.float32, device = device(type='cpu'))
        full_default: "i64[]" = aten.full.default([], 0, dtype = torch.int64, device = device(type='cpu'))
        chunk_body_0 = self.chunk_body_0
        chunk_cond_0 = self.chunk_cond_0
        while_loop = higher_order.while_loop(chunk_cond_0, chunk_body_0, (empty_strided_default, full_default), (arg0_1, lift_fresh_copy))
        masked_fill: "f32[5, 8]" = while_loop[0]
        return (masked_fill,)
    class chunk_body_0:
        def forward(self, out_0: "f32[5, 8]", window: "i64[]", arg0_1: "f32[5, 8]", lift_fresh_copy: "b8[]"):
            _local_scalar_dense_default: "Sym(u0)" = aten._local_scalar_dense.default(window)
            sym_constrain_range_default = aten.sym_constrain_range.default(_local_scalar_dense_default, min = 0, max = 2)
            mul: "Sym(5*u0)" = _local_scalar_dense_default * 5
            floordiv: "Sym(((5*u0)//3))" = mul // 3
            add: "Sym((((5*u0)//3)) + 2)" = floordiv + 2
            slice_tensor: "f32[2, 8]" = aten.slice.Tensor(arg0_1, 0, floordiv, add)
            sort_default = aten.sort.default(slice_tensor)
            getitem: "f32[2, 8]" = sort_default[0]
            getitem_1: "i64[2, 8]" = sort_default[1]
            _softmax_default: "f32[2, 8]" = aten._softmax.default(getitem, -1, False)
            cumsum_default: "f32[2, 8]" = aten.cumsum.default(_softmax_default, -1)
            le_scalar: "b8[2, 8]" = aten.le.Scalar(cumsum_default, 0.09999999999999998)
            slice_tensor_1: "b8[2, 1]" = aten.slice.Tensor(le_scalar, 1, -1, INT_MAX)
            fill_tensor: "b8[2, 1]" = aten.fill.Tensor(slice_tensor_1, lift_fresh_copy)
            slice_scatter_default: "b8[2, 8]" = aten.slice_scatter.default(le_scalar, fill_tensor, 1, -1, INT_MAX)
            scatter_src: "b8[2, 8]" = aten.scatter.src(slice_scatter_default, 1, getitem_1, slice_scatter_default)
            masked_fill_scalar: "f32[2, 8]" = aten.masked_fill.Scalar(slice_tensor, scatter_src, -inf)
            slice_tensor_2: "f32[2, 8]" = aten.slice.Tensor(out_0, 0, floordiv, add)
            copy__default: "f32[2, 8]" = aten.copy_.default(slice_tensor_2, masked_fill_scalar)
            add_tensor: "i64[]" = aten.add.Tensor(window, 1)
            return (out_0, add_tensor)
    class chunk_cond_0:
        def forward(self, out_0: "f32[5, 8]", window: "i64[]", arg0_1: "f32[5, 8]", lift_fresh_copy: "b8[]"):
            lt_scalar: "b8[]" = aten.lt.Scalar(window, 3)
            return lt_scalar""",
        )

    def test_top_p_unrolled(self) -> None:
        args = torch.zeros(5, 1, dtype=torch.long), torch.randn(5, 8)
        self.assertExpectedInline(
            self.rewritten(top_p, *args, form="unroll", row_chunk=3),
            """\
class <lambda>:
    def forward(self, arg0_1: "f32[5, 8]"):
        _tensor_constant0: "b8[]" = self._tensor_constant0
        lift_fresh_copy: "b8[]" = aten.lift_fresh_copy.default(_tensor_constant0)
        split_with_sizes_default = aten.split_with_sizes.default(arg0_1, [2, 3], 0)
        getitem_2: "f32[2, 8]" = split_with_sizes_default[0]
        sort_default = aten.sort.default(getitem_2)
        getitem_3: "f32[2, 8]" = sort_default[0]
        getitem_4: "i64[2, 8]" = sort_default[1]
        _softmax_default: "f32[2, 8]" = aten._softmax.default(getitem_3, -1, False)
        cumsum_default: "f32[2, 8]" = aten.cumsum.default(_softmax_default, -1)
        le_scalar: "b8[2, 8]" = aten.le.Scalar(cumsum_default, 0.09999999999999998)
        slice_tensor: "b8[2, 1]" = aten.slice.Tensor(le_scalar, 1, -1, INT_MAX)
        fill_tensor: "b8[2, 1]" = aten.fill.Tensor(slice_tensor, lift_fresh_copy)
        slice_scatter_default: "b8[2, 8]" = aten.slice_scatter.default(le_scalar, fill_tensor, 1, -1, INT_MAX)
        scatter_src: "b8[2, 8]" = aten.scatter.src(slice_scatter_default, 1, getitem_4, slice_scatter_default)
        masked_fill_scalar: "f32[2, 8]" = aten.masked_fill.Scalar(getitem_2, scatter_src, -inf)
        getitem_5: "f32[3, 8]" = split_with_sizes_default[1]
        sort_default_1 = aten.sort.default(getitem_5)
        getitem_6: "f32[3, 8]" = sort_default_1[0]
        getitem_7: "i64[3, 8]" = sort_default_1[1]
        _softmax_default_1: "f32[3, 8]" = aten._softmax.default(getitem_6, -1, False)
        cumsum_default_1: "f32[3, 8]" = aten.cumsum.default(_softmax_default_1, -1)
        le_scalar_1: "b8[3, 8]" = aten.le.Scalar(cumsum_default_1, 0.09999999999999998)
        slice_tensor_1: "b8[3, 1]" = aten.slice.Tensor(le_scalar_1, 1, -1, INT_MAX)
        fill_tensor_1: "b8[3, 1]" = aten.fill.Tensor(slice_tensor_1, lift_fresh_copy)
        slice_scatter_default_1: "b8[3, 8]" = aten.slice_scatter.default(le_scalar_1, fill_tensor_1, 1, -1, INT_MAX)
        scatter_src_1: "b8[3, 8]" = aten.scatter.src(slice_scatter_default_1, 1, getitem_7, slice_scatter_default_1)
        masked_fill_scalar_1: "f32[3, 8]" = aten.masked_fill.Scalar(getitem_5, scatter_src_1, -inf)
        masked_fill: "f32[5, 8]" = aten.cat.default([masked_fill_scalar, masked_fill_scalar_1], 0)
        return (masked_fill,)""",
        )
