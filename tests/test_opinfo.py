"""Rules proven against PyTorch's own samples, and sorts of PyTorch's own samples through the backend.

``op_db`` holds sample inputs for almost every operator. Each is run with its ATen calls recorded, as written and with
Inductor's decompositions. Whatever call has a rule is cut along every dim the rule allows, joined, and compared with
the whole: bitwise where the op's level promises it.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import sys
import warnings
from typing import Any

import pytest
import torch
from helpers import as_list, assert_same, compile_chunked, compile_whole
from rule_checker import answer, assert_chunks_join, fake_call
from torch._inductor.decomposition import select_decomp_table
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

import sortpass
from sortpass.rules import Flow, exactness_of, find_rule_maybe, registered_rules
from sortpass.scratch import scratch_of
from sortpass.sizes import bytes_of

aten, prims = torch.ops.aten, torch.ops.prims

NUM_SAMPLES = {torch.float32: 20, torch.bfloat16: 8, torch.int64: 8, torch.bool: 8}
"""Samples of each operator, by dtype."""

CALLS_PER_OVERLOAD, MAX_NUMEL = 300, 20_000

NOT_SAMPLED = {
    **dict.fromkeys((aten.softmax.int, aten.log_softmax.int), "composite: only torch.export leaves them whole"),
    **dict.fromkeys((aten.where.Scalar, aten.where.ScalarOther, aten.where.ScalarSelf), "composite, as these"),
    aten.linear.default: "composite, as these",
    aten.lift_fresh_copy.default: "made by tracing a constant",
    **dict.fromkeys((aten.copy.default, aten.fill.Tensor), "made by functionalizing copy_ and fill_"),
    aten.scatter.value_reduce: "the samples have a single dim, which is the scattered one",
    **dict.fromkeys(
        (
            *(aten.exponential.default, aten.uniform.default, aten.cauchy.default, aten.log_normal.default),
            *(aten.geometric.default, aten.normal_functional.default, aten.bernoulli.p),
            *(aten.random.default, aten.random.to, getattr(aten.random, "from")),
        ),
        "made by functionalizing exponential_ and its like",
    ),
    **dict.fromkeys(
        (
            *(aten.rand.generator, aten.randn.generator, aten.randint.generator, aten.randint.low_generator),
            *(aten.rand_like.generator, aten.randn_like.generator, aten.randint_like.generator),
            aten.randint_like.low_generator_dtype,
        ),
        "no sample has a generator",
    ),
    **dict.fromkeys(
        (prims.inductor_random.default, prims.inductor_randint.default), "made by Inductor's passes on whole graphs"
    ),
    **dict.fromkeys(
        (
            *(aten.rand_like.default, aten.randint_like.Tensor, aten.rrelu.default),
            *(aten.bernoulli.Tensor, aten.poisson.default, aten.binomial.default, aten.normal.float_Tensor),
            *(aten._standard_gamma.default, aten._sample_dirichlet.default),
            *(aten.native_dropout.default, aten.dropout.default),
        ),
        "no sample makes this call",
    ),
}
"""Rules that no sample reaches, and why; rule_cases.py has rows for them."""


@dataclasses.dataclass
class Counts:
    """What a sweep has seen."""

    operators: set[str] = dataclasses.field(default_factory=set)
    untraceable: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    overloads: collections.Counter[Any] = dataclasses.field(default_factory=collections.Counter)
    levels: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    samples: int = 0
    dims_claimed: int = 0
    differences: dict[str, str] = dataclasses.field(default_factory=dict)

    def __str__(self) -> str:
        cut_short = sorted({reason.split(":")[0] for reason in self.untraceable})
        return (
            f"{len(self.operators)} of {len({op.name for op in op_db})} operators, {self.samples} samples run\n"
            f"{len(self.overloads)} overloads cut along {self.dims_claimed} dims: {dict(self.levels)}\n"
            f"{len(cut_short)} operators with a sample that does not run here: {', '.join(cut_short)}\n"
        )


class CheckCalls(TorchDispatchMode):
    """Checks each ATen call as it is made.

    It sees the calls that ``make_fx`` would write into a graph, with the values they run on, in a tenth of the time.
    """

    def __init__(self, counts: Counts, decompositions: dict[Any, Any]) -> None:
        super().__init__()
        self.counts = counts
        self.decompositions = decompositions
        self.seen: set[Any] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in self.decompositions:
            with self:
                out = self.decompositions[func](*args, **kwargs)
            if out is not NotImplemented:
                return out
        out = func(*args, **kwargs)
        if find_rule_maybe(func) is not None:
            names = [argument.name for argument in func._schema.arguments]
            self.check(func, dict(zip(names, args, strict=False)) | kwargs, out)
        return out

    def check(self, func: Any, args: dict[str, Any], out: Any) -> None:
        if not isinstance(next(iter(tree_leaves(out)), None), torch.Tensor):
            return  # aten.equal, tagged pointwise, gives a bool; unbind of nothing gives nothing
        tensors = [leaf for leaf in tree_leaves((args, out)) if isinstance(leaf, torch.Tensor)]
        key = (func, str(tree_map_only(torch.Tensor, lambda t: (t.shape, t.stride(), t.dtype), args)))
        is_new = key not in self.seen and self.counts.overloads[func] < CALLS_PER_OVERLOAD
        if not is_new or any(t.numel() > MAX_NUMEL or t.layout is not torch.strided for t in tensors):
            return
        self.seen.add(key)
        node = fake_call(func, args, out)
        assert scratch_of(node, lambda arg: bytes_of(arg.meta["val"]), rows=2) >= 0
        for dim, size in enumerate(tree_leaves(out)[0].shape):
            flow = answer(node, dim)
            if not isinstance(flow, Flow) or size < 2:
                continue
            self.counts.dims_claimed += 1
            self.counts.overloads[func] += 1
            self.counts.levels[exactness_of(node, dim).name] += 1
            try:
                assert_chunks_join(node, args, flow, dim)
            except (AssertionError, RuntimeError, IndexError, ValueError) as error:
                self.counts.differences[f"{key} along {dim}"] = str(error)


def samples_of(op: Any, dtype: torch.dtype, count: int, requires_grad: bool = False) -> list[Any]:
    """Up to ``count`` of the operator's samples, spread over the first sixty."""
    samples = list(itertools.islice(op.sample_inputs_func(op, "cpu", dtype, requires_grad), 60))
    return samples[:: max(1, -(-len(samples) // count))]


def run(op: Any, sample: Any, *, backward: bool) -> None:
    out = op(sample.input, *sample.args, **sample.kwargs)
    if backward:
        leaves = [leaf for leaf in tree_leaves(out) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
        losses = [(leaf.abs() if leaf.is_complex() else leaf).sum() for leaf in leaves]
        torch.stack(losses).sum().backward()


@pytest.fixture(scope="module")
def sweep() -> Counts:
    counts = Counts()
    modes = [CheckCalls(counts, {}), CheckCalls(counts, select_decomp_table())]
    warnings.simplefilter("ignore")
    for op, (dtype, backward) in itertools.product(
        op_db, [*((dtype, False) for dtype in NUM_SAMPLES), (torch.float32, True)]
    ):
        if dtype not in op.supported_dtypes("cpu") or backward and not op.supports_autograd:
            continue
        torch.manual_seed(0)
        try:
            count = 3 if backward else NUM_SAMPLES[dtype]
            for sample in samples_of(op, dtype, count, backward):
                for mode in modes:
                    with mode:
                        run(op, sample, backward=backward)
                    counts.samples += 1
                    counts.operators.add(op.name)
        except Exception as error:  # whatever a sample needs that the machine or the mode lacks
            counts.untraceable[f"{op.name}: {type(error).__name__}: {error}"] += 1
    return counts


def test_no_call_of_any_sample_differs_when_cut_along_a_dim_its_rule_allows(sweep: Counts, capsys: Any) -> None:
    with capsys.disabled():
        sys.stdout.write(f"\n{sweep}")
    assert sweep.differences == {}
    assert len(sweep.operators) > 600
    assert sweep.dims_claimed > 10_000


def test_every_rule_is_reached_by_some_sample(sweep: Counts) -> None:
    ours = {op for op in registered_rules() if op.namespace in ("aten", "prims")}
    assert {op for op in ours if not sweep.overloads[op]} == set(NOT_SAMPLED)


SORTS = {op.name: op for op in op_db if op.name in ("sort", "argsort", "msort", "topk")}
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTS = (torch.int64, torch.uint8, torch.bool)
REFUSED = (torch.complex64,)


def outcome(fn: Any, x: torch.Tensor) -> list[Any] | type[Exception]:
    try:
        return as_list(fn(x))
    except Exception as error:
        return type(error)


@pytest.mark.parametrize("dtype", [*FLOATS, *INTS, *REFUSED], ids=str)
@pytest.mark.parametrize("name", SORTS)
def test_sorts_of_samples_are_as_whole_for_every_chunk_and_form(name: str, dtype: torch.dtype) -> None:
    op = SORTS[name]
    num_rewritten = 0
    for sample in samples_of(op, dtype, 10 if dtype is torch.float32 else 4):

        def fn(x: torch.Tensor, sample: Any = sample) -> Any:
            return op.op(x, *sample.args, **sample.kwargs)

        whole = outcome(compile_whole(fn), sample.input)
        for row_chunk, form in itertools.product((1, 2, 3), ("loop", "unroll")):
            with sortpass.capture_reports() as reports:
                options = {"row_chunk": row_chunk, "form": form, "max_unroll": 1_000}
                chunked = outcome(compile_chunked(fn, **options), sample.input)
            num_rewritten += sum(report.num_rewritten for report in reports)
            if isinstance(whole, type):
                assert chunked is whole
            else:
                assert isinstance(chunked, list)
                assert_same(whole, chunked)
            if sample.input.ndim < 2:
                break  # a single row, whatever the options
    # topk alone makes nothing large; chunking it would not lower the peak.
    assert num_rewritten > 0 or name == "topk" or dtype in REFUSED
