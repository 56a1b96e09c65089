"""Ops that draw random numbers, one or more for each row; taken into a region with ``allow_rng=True`` only.

There are two kinds, and windows treat them differently.

Drawn from the device's generator: ``multinomial``, ``exponential``, ``rand_like`` and the like; all of them under
``aot_eager``, and those that Inductor leaves to ATen. Each window draws anew and moves the generator on, so no two
windows share numbers. A row that two windows have in common is drawn twice, and all outputs keep the later draw. The
distribution is that of the whole. The numbers are others, unless all of this holds (measured on a CPU, whose kernels
fill a tensor one number after the other in the order of its memory):

- the region has a single op that draws;
- windows do not overlap: in a loop their size divides the number of rows, and unrolled ones never do;
- the row dim is the outermost one in memory;
- of normal numbers (``randn``, ``randn_like``, ``normal``) each window has a multiple of 16: the kernel makes 16 at a
  time, and where some are left over it makes the last 16 anew.

On CUDA an element's place in the generator's sequence depends on the size of the launch, so there windows always get
other numbers.

Computed from a seed: ``inductor_random`` and ``inductor_randint``, which Inductor makes of ``rand_like``, ``randn``,
``exponential_``, ``bernoulli``, dropout and most others. Number ``i`` of a tensor is a function of the seed and ``i``,
so a window computes its own part of the whole (:mod:`sortpass.random_rows`): the same bits whatever the
windows. A backward that computes them again from the saved seed gets those of the forward.
"""

from __future__ import annotations

from typing import Any

import torch

from sortpass.random_rows import randint_rows, random_rows, teach_inductor_rows
from sortpass.rules.call import Call, same_size
from sortpass.rules.exactness import Exactness
from sortpass.rules.registry import WHOLE, Blocked, Flow, Rule, broadcast_rule, register_rule

aten, prims = torch.ops.aten, torch.ops.prims

SEEDED = (prims.inductor_random.default, prims.inductor_randint.default)
"""Draws that are a function of a seed, and so pure ops to everybody else."""


def is_draw(op: Any) -> bool:
    """Whether an op gives random numbers, and changes nothing but the state of a generator."""
    if not isinstance(op, torch._ops.OpOverload) or op._schema.is_mutable:
        return False
    return op in SEEDED or torch.Tag.nondeterministic_seeded in op.tags


def register_draw(*ops: Any) -> Any:
    """:func:`register_rule` for ops that draw from the device's generator, unless they are given one of their own."""

    def decorate(rule: Rule) -> Rule:
        def with_default_generator(call: Call, row_dim: int) -> Flow | Blocked:
            if call.args.get("generator") is not None:
                return Blocked("draws from a generator that it was given")
            return rule(call, row_dim)

        register_rule(*ops, exactness=Exactness.DRAWS)(with_default_generator)
        return rule

    return decorate


@register_draw(aten.multinomial.default)
def multinomial(call: Call, row_dim: int) -> Flow | Blocked:
    """``[N, k] <- [N, V]``: each row of probabilities gives ``k`` of its positions."""
    if row_dim == len(call.out_shape) - 1:
        return Blocked("draws all numbers of a row together")
    return Flow({"self": row_dim})


@register_draw(aten._sample_dirichlet.default)
def sample_dirichlet(call: Call, row_dim: int) -> Flow | Blocked:
    if row_dim == len(call.out_shape) - 1:
        return Blocked("divides by the sum of the row that it draws")
    return Flow({"self": row_dim})


# One number for each element. What in-place ops such as exponential_ fill is of no interest but for its shape.
register_draw(
    *(aten.exponential.default, aten.uniform.default, aten.cauchy.default, aten.log_normal.default),
    *(aten.geometric.default, aten.normal_functional.default),
    *(aten.random.default, aten.random.to, getattr(aten.random, "from")),
    *(aten.rand_like.default, aten.randn_like.default, aten.randint_like.default, aten.randint_like.low_dtype),
    *(aten.rand_like.generator, aten.randn_like.generator, aten.randint_like.generator),
    *(aten.randint_like.low_generator_dtype, aten.bernoulli.p),
    *(aten.bernoulli.default, aten.bernoulli.Tensor, aten.poisson.default, aten.binomial.default),
    *(aten.normal.Tensor_float, aten.normal.float_Tensor, aten.normal.Tensor_Tensor, aten._standard_gamma.default),
    *(aten.native_dropout.default, aten.dropout.default, aten.rrelu.default),
)(broadcast_rule)


@register_draw(aten.randint_like.Tensor)
def randint_like_tensor(call: Call, row_dim: int) -> Flow | Blocked:
    return Flow({"self": row_dim, "high": WHOLE})


@register_draw(
    *(aten.rand.default, aten.rand.generator, aten.randn.default, aten.randn.generator),
    *(aten.randint.default, aten.randint.generator, aten.randint.low, aten.randint.low_generator),
    aten.normal.float_float,
)
def of_size(call: Call, row_dim: int) -> Flow | Blocked:
    return Flow({}, resized={"size": row_dim})


@register_draw(prims.normal.default)
def prims_normal(call: Call, row_dim: int) -> Flow | Blocked:
    return Flow({}, resized={"shape": row_dim})


def inductor_random(call: Call, row_dim: int) -> Flow | Blocked:
    if call.args.get("align_dtype") is not None:
        return Blocked("draws the numbers that eager CUDA would (align_random_eager)")
    return _rows_of_whole(call, row_dim, random_rows)


def inductor_randint(call: Call, row_dim: int) -> Flow | Blocked:
    return _rows_of_whole(call, row_dim, randint_rows)


def _rows_of_whole(call: Call, row_dim: int, op: Any) -> Flow | Blocked:
    """Numbers ``start * V`` and on, of ``N * V``; in front of the row dim only dims of size 1."""
    if not all(same_size(size, 1) for size in call.out_shape[:row_dim]):
        return Blocked("numbers its elements across the rows")
    teach_inductor_rows()  # only a graph of Inductor's gets here, so what this imports is loaded
    return Flow({"seed": WHOLE}, resized={"size": row_dim}, in_window=op)


def exactness_of_mode(call: Call, row_dim: int) -> Exactness:
    return Exactness.ROUNDS if call["mode"] == "randn" else Exactness.COPIES


register_rule(prims.inductor_random.default, exactness=exactness_of_mode)(inductor_random)
register_rule(prims.inductor_randint.default, exactness=Exactness.COPIES)(inductor_randint)
