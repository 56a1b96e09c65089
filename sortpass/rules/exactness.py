"""How exact each op is: what its result for one row depends on besides that row.

Cut into chunks, an op runs on the same rows with another *number* of rows. Whether that shows in the result depends on
the op's kernels, so each op has a level, which says where cutting is promised not to show. The levels stand in one
table; ``register_rule(..., exactness=)`` fills it along with the rules, :func:`declare_exactness` for ops that need no
rule of their own. An op nobody spoke for is ``CLOSE``.

Bit-equal includes the sign of a zero, which a reciprocal would show; any NaN equals any other.
"""

from __future__ import annotations

import enum
import math
import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.fx as fx

from sortpass.rules.call import Call, same_size, value_of
from sortpass.torch_compat import number_of

aten = torch.ops.aten


class Exactness(enum.Enum):
    """Where the result of an op for one row is the same bits, however many rows there are.

    Each value is a sentence's end: ``exp rounds as its kernel pleases``.
    """

    COPIES = "moves or compares elements, and never rounds"
    """Everywhere: any device, any compiler. Views, gathers, comparisons, sort, all integer arithmetic, the min
    and max of a row."""

    PICKS = "picks among equal elements as its kernel pleases"
    """On CPU, where each row is searched by itself. CUDA's topk takes another kernel for many rows than for few, and
    they break ties differently."""

    ROUNDS = "rounds each element once"
    """In eager kernels. A compiler that fuses such ops may keep a half-precision intermediate in float32, or contract
    a product and a sum into one rounding, and fuses chunks in another way than the whole."""

    ROWWISE = "works on each row by itself, as its kernel pleases"
    """In eager CPU kernels with at least two rows. A single row is no longer a row to them: a sum runs on every thread.
    A compiler chooses its reduction by the number of rows, and so do CUDA's scans."""

    CLOSE = "rounds as its kernel pleases"
    """Nowhere. The last bits may depend on which elements share a vector register, and so on the number of rows."""

    DRAWS = "draws anew in each window"
    """Nowhere: results have the distribution of the whole, and other values (``rules/random.py`` says where not)."""


Level = Exactness | Callable[[Call, int], Exactness]
"""An op's level, or a function of a call and the dim its output is cut along."""

_LEVELS: dict[Any, Level] = {}


def declare_exactness(level: Level, *ops: Any) -> None:
    """Set the level of op overloads, or of all overloads of a packet such as ``torch.ops.aten.add``."""
    for op in ops:
        packet = isinstance(op, torch._ops.OpOverloadPacket)
        for overload in (getattr(op, name) for name in op.overloads()) if packet else (op,):
            _LEVELS[overload] = level


def declared_exactness(op: Any) -> Level:
    """The level of an op whatever its arguments are."""
    return Exactness.COPIES if op is operator.getitem else _LEVELS.get(op, Exactness.CLOSE)


def exactness_of(node: fx.Node, row_dim: Any) -> Exactness:
    """The level of one call whose output is cut along ``row_dim``."""
    level = declared_exactness(node.target)
    level = level if isinstance(level, Exactness) else level(Call(node), row_dim)
    if level in (Exactness.COPIES, Exactness.PICKS, Exactness.DRAWS):
        return level
    val = node.meta["val"]
    values = [*(val if isinstance(val, (tuple, list)) else (val,)), *map(value_of, node.all_input_nodes)]
    dtypes = {value.dtype for value in values if isinstance(value, torch.Tensor)}
    if any(dtype.is_complex for dtype in dtypes):
        return Exactness.CLOSE  # a product of complex numbers is rounded several times
    # Integer sums, products and scans are exact in any order. What a custom op does with integers is not known.
    is_ours = getattr(node.target, "namespace", None) in ("aten", "prims")
    return level if any(dtype.is_floating_point for dtype in dtypes) or not is_ours else Exactness.COPIES


def along_last(call: Call, row_dim: int) -> Exactness:
    """Level of a reduction or scan: it takes each row by itself only where a row's elements lie side by side.

    ``sum(x[N, V], dim=0)`` adds up columns, several per vector register, and those that are left over in another order.
    """
    # Gradients of softmax name their inputs otherwise; all have the output's shape.
    name = "self" if call.is_tensor("self") else "grad_output"
    dims = call.dims("dim", of=name)
    tensor = value_of(call[name])
    if dims is not None and len(dims) == 1 and tensor.ndim and same_size(tensor.stride()[dims[0]], 1):
        return Exactness.ROWWISE
    return Exactness.CLOSE


_NUMBERS = ("fill_value", "value", "self", "other", "min", "max", "nan", "posinf", "neginf")


def selects(call: Call, row_dim: int) -> Exactness:
    """Level of an op that puts elements and numbers where its arguments say, casting them to the output's dtype.

    ``where(mask, x, -inf)`` only moves; ``where(mask, x, 0.1)`` rounds 0.1 where ``x`` is half precision.
    """
    for name, arg in call.args.items():
        for value in map(value_of, arg if name == "tensors" else (arg,)):
            if isinstance(value, torch.Tensor):
                rounds = value.dtype not in (call.out.dtype, torch.bool)
            else:
                rounds = name in _NUMBERS and not _fits_any_dtype(value)
            if rounds and name != "index":
                return Exactness.ROUNDS
    return Exactness.COPIES


def picks_of_two(call: Call, row_dim: int) -> Exactness:
    """Level of the smaller or larger of two elements.

    Of 0.0 and -0.0, a full vector register gives one and what does not fill a register the other. They do not meet
    where one side is a constant that is not zero, as in ``torch.min(epsilon, x)``; and where the result goes into
    comparisons only, none of them sees which it was.
    """
    sides = [arg for name, arg in call.args.items() if name in ("self", "other", "min", "max") and arg is not None]
    harmless = any(map(_is_never_zero, sides)) or _is_only_compared(call.node)
    return selects(call, row_dim) if harmless else Exactness.CLOSE


def _is_only_compared(node: fx.Node) -> bool:
    return all(
        user.target in _COMPARISONS or (user.target in _VIEWS and _is_only_compared(user)) for user in node.users
    )


def _is_never_zero(arg: Any) -> bool:
    while isinstance(arg, fx.Node) and arg.target in _COPIERS:
        arg = arg.args[0]
    if isinstance(arg, fx.Node) and arg.op == "get_attr":
        arg = getattr(arg.graph.owning_module, str(arg.target), None)
    elif isinstance(arg, fx.Node):
        arg = arg.args[1] if arg.target is aten.full.default else None
    if isinstance(arg, torch.Tensor):
        arg = number_of(arg)
    return arg is not None and arg != 0


_COMPARISONS = tuple(
    getattr(getattr(aten, name), overload)
    for name in ("lt", "le", "gt", "ge", "eq", "ne")
    for overload in ("Tensor", "Scalar")
)
_VIEWS = (aten.unsqueeze.default, aten.view.default, aten.expand.default, aten.squeeze.dim, aten.alias.default)
_COPIERS = (aten.lift_fresh_copy.default, aten.clone.default, aten.detach.default, aten._to_copy.default)


def _fits_any_dtype(number: Any) -> bool:
    """Whether a number is the same in every float dtype from bfloat16 up."""
    if isinstance(number, float):
        return not math.isfinite(number) or (number.is_integer() and abs(number) <= 256)
    return number is None or (isinstance(number, int) and abs(number) <= 256)
