"""The table of op rules: where the row dim goes through each op.

A rule answers one question: *if the output of this call is cut along dim d, what must each tensor argument be?* It is
cut along a dim of its own, needed whole, or not read at all. Asked for every output dim, the same rule also gives the
forward direction, so op knowledge stands in one place. What a chunk of the call looks like is part of the answer: the
call is repeated with the same arguments, except those that spell the row count (``view``'s size, ``expand``'s size),
which the rule names in ``Flow.resized``.

Adding an op: write one function in the module of its kind, decorate it, and add one row to ``tests/rule_cases.py``.

    @register_rule(aten.cumsum.default, exactness=along_last)
    def cumsum(call, row_dim):
        if call.dim("dim") == row_dim:
            return Blocked(f"runs along the row dim ({row_dim})")
        return Flow({"self": row_dim})
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true

from sortpass.rules.call import Call, value_of
from sortpass.rules.exactness import Exactness, Level, declare_exactness

WHOLE: Final = None
"""The argument is needed with all its rows."""

ANY: Final = "any"
"""The values of the argument are not read (only its dtype or device), so any part of it will do."""


NOT_AS_FAKED: Final = "has other strides than its fake kernel says where its input is not contiguous"
"""Why some ops are left alone on such tensors: the strides of what a window writes come from the fake kernel."""


@dataclasses.dataclass(frozen=True)
class Flow:
    """What a call needs of its arguments when its output is cut along one dim.

    Attributes:
        inputs: argument name -> the dim it is cut along, :data:`WHOLE`, :data:`ANY`, or for a list of tensors a tuple
            of these. Every tensor argument must be named.
        resized: argument name -> position in that list-valued argument which holds the row count and becomes the
            window's row count.
        in_window: the op that stands for the call in a window, where a window's result depends on which rows it has. It
            takes the call's arguments, and the keywords ``row_dim`` and ``start`` (the window's first row).
    """

    inputs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    resized: Mapping[str, int] = dataclasses.field(default_factory=dict)
    in_window: Any = None


@dataclasses.dataclass(frozen=True)
class Blocked:
    """The call cannot be cut along that dim; ``why`` continues a sentence that starts with the op's name."""

    why: str


Rule = Callable[[Call, int], "Flow | Blocked"]

_RULES: dict[Any, Rule] = {}


def register_rule(*ops: Any, exactness: Level = Exactness.CLOSE) -> Callable[[Rule], Rule]:
    """Register a rule for one or more ATen (or custom) op overloads; a later registration replaces an earlier one.

    Args:
        ops: ``OpOverload`` objects, e.g. ``torch.ops.mylib.rowwise_norm.default``.
        exactness: where the op's result for a row is the same bits however many rows there are; a level, or a function
            ``(call, row_dim) -> Exactness``. The default promises nothing.

    Returns:
        A decorator for a function ``(call: Call, row_dim: int) -> Flow | Blocked``. ``row_dim`` is a dim of the call's
        (first) output, never negative.

    Example:
        >>> @register_rule(torch.ops.mylib.row_norm.default)   # row_norm(Tensor self, int dim) -> Tensor
        ... def row_norm(call, row_dim):
        ...     if call.dim("dim") == row_dim:
        ...         return Blocked("normalises along the row dim")
        ...     return Flow({"self": row_dim})
    """

    def decorate(rule: Rule) -> Rule:
        for op in ops:
            if not isinstance(op, torch._ops.OpOverload):
                raise TypeError(f"register_rule takes op overloads such as torch.ops.aten.cumsum.default, got {op!r}")
            _RULES[op] = rule
            declare_exactness(exactness, op)
        return rule

    return decorate


def registered_rules() -> Mapping[Any, Rule]:
    """The explicit table: op overload -> rule (pointwise ops are known by their tag and not listed)."""
    return _RULES


def is_pure(op: Any) -> bool:
    """Whether repeating a call of ``op`` gives the same result and changes nothing."""
    return (
        isinstance(op, torch._ops.OpOverload)
        and not op._schema.is_mutable
        and torch.Tag.nondeterministic_seeded not in op.tags
    )


def find_rule_maybe(op: Any) -> Rule | None:
    """The rule of an op: registered, or the common one of everything tagged pointwise."""
    if op is operator.getitem:
        return item_rule
    if op in _RULES:
        return _RULES[op]
    if is_pure(op) and torch.Tag.pointwise in op.tags:
        return broadcast_rule
    return None


def broadcast_rule(call: Call, row_dim: int) -> Flow | Blocked:
    """Every tensor argument is aligned with the output from the right, as NumPy broadcasting does.

    For an output ``[N, V]`` cut along dim 0: ``[N, V]`` and ``[N, 1]`` are cut along 0, ``[V]``, ``[1, V]`` and a
    scalar are needed whole.
    """
    inputs: dict[str, Any] = {}
    for name, value in call.args.items():
        if isinstance(value, (list, tuple)) and any(isinstance(value_of(v), torch.Tensor) for v in value):
            return Blocked("takes a list of tensors")
        if call.is_tensor(name):
            inputs[name] = aligned_dim(call.shape(name), call.out_shape, row_dim)
    return Flow(inputs)


def item_rule(call: Call, row_dim: int) -> Flow:
    """``sort[0]``: one output of a call with several, all of which are cut along the same dim."""
    return Flow({"self": row_dim})


def aligned_dim(shape: tuple[Any, ...], out_shape: tuple[Any, ...], row_dim: int) -> int | None:
    """The dim of ``shape`` that broadcasts to ``out_shape[row_dim]``; WHOLE where it has none or has size 1."""
    dim = row_dim - (len(out_shape) - len(shape))
    if dim < 0 or (statically_known_true(shape[dim] == 1) and not statically_known_true(out_shape[row_dim] == 1)):
        return WHOLE
    return dim
