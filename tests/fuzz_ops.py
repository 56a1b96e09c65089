"""What random programs are made of: lines of PyTorch with holes.

    {x} {y} {z}  any tensor                 {f} {g}  a float tensor
    {m}          one with two dims or more  {b}      a bool tensor
    {i}          an int64 tensor            {e} {h}  one whose elements add up without rounding, in any order
    {s}          one with several rows, if there is one
    {d}          a dim                      {k}      a small count           {c}  a constant

A hole that stands twice in a line is filled with the same thing. Nothing here has to be valid: a line that raises, or
whose result is no tensor or too large, is left out of the program. What must hold is that a valid line gives the same
bits however its rows are grouped. So sums take exact operands, and two kinds of op are missing: what reads memory
nobody wrote, and pointwise ops whose vectorised and scalar CPU kernels round differently (``sigmoid``).
"""

from __future__ import annotations

SORTS = (
    "{s}.sort({d})",
    "{s}.sort({d}, descending=True)",
    "{x}.sort()",
    "torch.sort({s}, dim={d}, stable=True)",
    "torch.sort({s}, stable=False, dim={d}, descending=True)",
    "{s}.argsort({d})",
    "{s}.argsort({d}, descending=True)",
    "torch.argsort({s}, dim={d}, stable=True)",
    "torch.msort({s})",
    "{f}.quantile(0.5, {d})",
    "torch.vmap(lambda row: row.sort()[0])({s})",
    "torch.sort({s}, {d}, out=(torch.empty_like({s}), torch.empty_like({s}, dtype=torch.long)))",
    "torch.empty_like({s}).scatter({d}, {s}.argsort({d}), {s})",
    "{s}.double().sort({d})[0].float()",
)

ROW_WISE = (
    "{f}.softmax({d})",
    "{f}.log_softmax({d})",
    "{x}.cumsum({d})",
    "{x}.cumprod({d})",
    "{x}.cummax({d})",
    "{f}.logcumsumexp({d})",
    "{x}.topk(1, {d})",
    "{x}.topk(2, {d}, largest=False)",
    "{x}.kthvalue(1, {d})",
    "{x}.contiguous().median({d})",
    "{x}.amax({d})",
    "{x}.amax({d}, keepdim=True)",
    "{x}.min({d})",
    "{x}.min({d}, keepdim=True)",
    "{x}.argmax({d})",
    "{x}.argmin({d}, keepdim=True)",
    "{e}.sum({d})",
    "{e}.sum({d}, keepdim=True)",
    "{e}.sum((-1, -2))",
    "{e}.mean({d}, keepdim=True)",
    "{b}.any({d})",
    "{x}.isnan().all({d}, keepdim=True)",
    "{x}.gather({d}, {i})",
    "{x}.scatter({d}, {i}, {y})",
    "{x}.scatter({d}, {i}, {c})",
    "torch.zeros_like({x}).scatter({d}, {i}, {y})",
    "{e}.scatter_add({d}, {i}, {h})",
    "{e} @ {h}",
    "{e} @ {h}.mT",
    "F.linear({e}, {h})",
    "{x}.take_along_dim({i}, {d})",
    "{x}.index_select({d}, torch.tensor([0, 1, 0]))",
    "{x}.index_fill({d}, torch.tensor([0]), {c})",
    "torch.searchsorted({f}, {g})",
    "torch.bucketize({x}, torch.tensor([-1.0, 0.0, 1.0]))",
    "F.pad({x}, (1, 2))",
    "F.one_hot({i}, 10)",
    "torch.isin({x}.contiguous(), torch.tensor([0.0, 1.0]))",  # its fake kernel has wrong strides else
)

POINTWISE = (
    "{x} + {y}",
    "{x} - {y}",
    "{x} * {y}",
    "{x} * {c}",
    "{x} / {y}",
    "{x} > {y}",
    "{x} <= {c}",
    "{x} == {y}",
    "{b} & {y}",
    "~{b}",
    "-{x}",
    "{f}.exp()",
    "{f}.floor()",
    "{x}.abs()",
    "{x}.clamp(min={c})",
    "{x}.double()",
    "{x}.float()",
    "{x}.bfloat16()",
    "{e}.long()",
    "torch.minimum({x}, {y})",
    "torch.where({b}, {x}, {y})",
    "torch.where({x} > {y}, {x}, {z})",
    "{x}.masked_fill({b}, {c})",
    "{x}.masked_fill({x} > {y}, -float('inf'))",
    "{x}.clone()",
    "{x}.contiguous()",
)

MAKERS = (
    "torch.arange({x}.shape[{d}])",
    "torch.arange({m}.shape[0]).unsqueeze(-1)",
    "{x}.new_zeros({x}.shape)",
    "torch.full_like({x}, {c})",
    "torch.ones({m}.shape[0], 1)",
    "torch.full(({m}.shape[0], {m}.shape[1]), 2.0)",
    "torch.tensor({c})",
)

VIEWS = (
    "{x}[..., :{k}]",
    "{x}[..., {k}:]",
    "{x}[..., ::2]",
    "{x}[..., -1]",
    "{x}[:, {k}]",
    "{x}[:, None]",
    "{x}[:{k}]",
    "{x}[{k}:]",
    "{x}[{k}]",
    "{x}[::2]",
    "{x}.unsqueeze({d})",
    "{x}.squeeze({d})",
    "{x}.squeeze()",
    "{x}.transpose(0, {d})",
    "{m}.mT",
    "{x}.permute(1, 0, 2)",
    "{x}.permute(2, 0, 1)",
    "{x}.expand({k}, *{x}.shape)",
    "{x}.expand_as({y})",
    "{x}.view(-1)",
    "{x}.view({x}.shape)",
    "{x}.view({x}.shape[0], 1, -1)",
    "{x}.reshape(-1, {x}.shape[-1])",
    "{x}.reshape({x}.shape[0], -1)",
    "{x}.reshape({y}.shape)",
    "{x}.flatten(0, 1)",
    "{x}.unflatten({d}, (-1, 2))",
    "{x}.detach()",
    "{x}.split(2, {d})",
    "{x}.unbind({d})",
    "{x}.diagonal()",
    "{x}.unfold({d}, 2, 1)",
)

COUPLING = (
    "{x}.max()",
    "{x} - {x}.amax(0)",
    "{e}.sum()",
    "{e}.mean(0)",
    "({x} > {y}).any()",
    "{f}.softmax(0)",
    "{x}.cumsum(0)",
    "{x}.flip({d})",
    "{x}.roll(1, {d})",
    "{x}.roll(1)",
    "{x}[torch.arange({x}.shape[0]).flip(0)]",
    "{x}[{i}]",
    "{x}[:, {i}]",
    "{x}[{i}, {i}]",
    "{x} - {x}[0]",
    "{x}[1:] - {x}[:-1]",
    "{x} + {x}.t()",
    "{e} @ {e}.mT",
    "{x}.view(-1).cumsum(0).view({x}.shape)",
    "{x}.argmax()",
    "{x}.gather(0, {i})",
    "{x}.scatter(0, {i}, {y})",
    "{x}.index_put(({i},), torch.tensor({c}))",
    "{e}.index_add(0, torch.tensor([0, 0]), {h}[:2])",
    "torch.cat([{x}, {y}], {d})",
    "torch.cat([{x}, {x}], 0)",
    "torch.stack([{x}, {y}], {d})",
    "{x}.tril()",
    "{x}.select_scatter({y}, {d}, 0)",
    "{x}.slice_scatter({y}, {d}, 0, {k})",
    "F.pad({x}, (0, 0, 1, 0))",
    "{x}.repeat(2, 1)",
    "{x}.repeat(1, 2)",
    "{x}.repeat_interleave(2, {d})",
)

RANDOM = (
    "torch.rand_like({f})",
    "torch.randn({m}.shape)",
    "torch.randint_like({x}, 5)",
    "torch.randperm({x}.shape[0])",
    "torch.rand(3)",
    "F.dropout({f}, 0.5)",
    "torch.empty_like({f}).exponential_()",
    "{f}.nan_to_num(0, 1, 1).abs().add(1).multinomial(2)",
    # What these draw is certain, so it is the same in any windows.
    "F.one_hot({i}.abs() % 5, 5).float().multinomial(1)",
    "({x} == {x}.amax(-1, keepdim=True)).float().cumsum(-1).eq(1).float().cumsum(-1).eq(1).float().multinomial(1)",
    "torch.bernoulli(({x} > {y}).float())",
    "torch.normal({f}, 0.0)",
    "torch.poisson({b}.float() * 0)",
    "torch.randint_like({x}, 2, 3)",
    "torch.randint(2, 3, ({m}.shape[0], 1)) + {m}",
    "F.dropout({f}, 1.0)",
    "torch.empty_like({f}).exponential_(float('inf'))",
)

WRITES = (
    "{x}.mul_({c})",
    "{x}.add_({y})",
    "{x}.masked_fill_({b}, {c})",
    "{x}.masked_fill_({x} > {y}, {c})",
    "{x}[..., :{k}] = {c}",
    "{x}[:{k}] = {c}",
    "{x}[..., -1] = {y}",
    "{x}[0] = {y}",
    "{x}[{b}] = {c}",
    "{x}.copy_({y})",
    "{x}.zero_()",
    "{x}.clamp_(min={c})",
    "{x}.cumsum_({d})",
    "{x}.scatter_({d}, {i}, {y})",
    "{x}.scatter_({d}, {i}, {c})",
    "{x}.index_fill_(0, torch.tensor([0]), {c})",
    "torch.cumsum({x}, {d}, out={x})",
    "{f}.uniform_()",
    "{f}.exponential_()",
)

KINDS = {
    "sort": SORTS,
    "row-wise": ROW_WISE,
    "pointwise": POINTWISE,
    "maker": MAKERS,
    "view": VIEWS,
    "coupling": COUPLING,
    "random": RANDOM,
    "write": WRITES,
}

# How often a line is of each kind.
WEIGHTS = {"row-wise": 6, "pointwise": 5, "view": 4, "coupling": 3, "write": 2, "maker": 1, "random": 2}

DIMS = (-1, 0, 1, -2, -1, -1, 2)
COUNTS = (1, 2, 0, 3)
CONSTANTS = ("0.0", "1.0", "2", "-1", "0.5", "-float('inf')")

# Values of inputs, of a shape to be filled in.
VALUES = (
    "torch.randint(-3, 4, ({shape},)).float()",
    "torch.randn({shape})",
    "torch.randint(0, 2, ({shape},)).float()",
    "torch.where(torch.rand({shape}) < 0.2, float('nan'), torch.randn({shape}))",
    "torch.randint(-3, 4, ({shape},)).double()",
    "torch.randint(-3, 4, ({shape},)).bfloat16()",
    "torch.randint(0, 4, ({shape},))",
)

# Layouts of the first input: the shape to draw, and how it is viewed. Rows are ``n``; ``v`` and ``t`` are numbers.
LAYOUTS = (
    ("n, {v}", ""),
    ("{v}, n", ".t()"),
    ("n, {v} * 2", "[:, ::2]"),
    ("n * 2, {v}", "[::2]"),
    ("n, {v} + 2", "[:, 1:-1]"),
    ("1, {v}", ".expand(n, {v})"),
    ("n, 1", ".expand(n, {v})"),
    ("n, n", ""),
    ("n, {t}, {v}", ""),
    ("{t}, n, {v}", ""),
    ("n, {t}, {v}", ".transpose(0, 1)"),
    ("{v}, n, {t}", ".permute(1, 2, 0)"),
)

# The other inputs: same as the first, per row, per vocab entry, a mask, a per-row index.
SIDES = (
    "torch.randn(n)",
    "torch.randint(-2, 3, (n, 1)).float()",
    "torch.randint(-2, 3, ({v},)).float()",
    "torch.randint(-2, 3, (n, {v})).float()",
    "torch.rand(n, {v}) < 0.5",
    "torch.randint(0, max({v}, 1), (n, 1))",
    "torch.randint(0, max({v}, 1), (n,))",
    "torch.rand(n, n).argsort(-1)",
    "torch.randint(-2, 3, (n, n)).float()",
    "torch.tensor(0.5)",
)
