"""Memory an op takes while it runs and gives back: neither its inputs nor its outputs.

Only ops whose scratch grows with their input are listed; what is not here takes none. CPU: measured on torch 2.13.0 and
2.14.1 with ``peak_bytes`` minus the outputs. CUDA: the sort from its kernel sources (see :func:`cuda_sort_bytes`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sympy
import torch
import torch.fx as fx

from sortpass.devices import device_type
from sortpass.rules import Call, same_size, value_of
from sortpass.sizes import ZERO, as_expr
from sortpass.torch_compat import promoted_dtype

aten = torch.ops.aten

INDEX_BYTES = 8

SizeOf = Callable[[fx.Node], sympy.Expr]
"""Bytes of a node's tensors as an expression."""


def scratch_of(node: fx.Node, size_of: SizeOf, rows: int) -> sympy.Expr:
    """Bytes an op takes for itself.

    Args:
        node: the call.
        size_of: bytes of its arguments.
        rows: sorted sequences it works on, where that decides which kernel runs.
    """
    estimate = _ESTIMATES.get(node.target)
    if estimate is not None:
        return estimate(Call(node), size_of, rows)
    tags = getattr(node.target, "tags", ())
    return _cast_elements(Call(node), size_of) if torch.Tag.pointwise in tags else ZERO


CPU_SORT_BYTES = INDEX_BYTES
"""Per element of one row: the numbers 0, 1, 2, ... that the indices of every row start from."""


def cuda_sort_bytes(key_bytes: int, row_length: int, rows: int) -> int:
    """Scratch of ``torch.sort`` on CUDA per element, for keys of ``key_bytes``.

    Rows of up to 4,096 elements are sorted where they are. Longer ones: below 128 rows a segmented radix sort of
    ``3K + 32`` bytes per element, from 128 rows on two radix sorts in turn of ``2K + 24``, ``K + 8`` of which are the
    outputs (``aten/src/ATen/native/cuda/Sort.cpp``; for float32 keys 44 and 32). Derived, not measured here;
    :func:`sortpass.probe_sort` measures a device.
    """
    if row_length <= 4096:
        return 0
    return 2 * key_bytes + 24 if rows < MANY_ROWS else key_bytes + 16


MANY_ROWS = 128
"""Rows from which on CUDA's sort takes its other path."""

_probed: dict[tuple[str, int, bool], float] = {}


def record_probe(device: str, key_bytes: int, rows: int, per_element: float) -> None:
    """Let a measurement override the table for the rest of the process.

    Args:
        device: type of the device.
        key_bytes: size of an element.
        rows: sorted sequences.
        per_element: bytes of scratch per element; on CPU per element of one row.
    """
    _probed[device, key_bytes, rows >= MANY_ROWS] = per_element


def probed_key() -> str:
    """Text that differs whenever a probe could have changed a plan."""
    return repr(sorted(_probed.items()))


def sort_scratch(device: str, key_bytes: int, row_length: Any, rows: int, numel: Any) -> Any:
    """Bytes of scratch of a sort; ``row_length`` and ``numel`` may be expressions."""
    measured = _probed.get((device, key_bytes, rows >= MANY_ROWS))
    if device == "cpu":
        return (CPU_SORT_BYTES if measured is None else round(measured)) * row_length
    if measured is not None:
        return sympy.Rational(round(measured * 64), 64) * numel
    if device != "cuda":
        return ZERO
    known_length = int(row_length) if sympy.sympify(row_length).is_Integer else 2**62
    return cuda_sort_bytes(key_bytes, known_length, rows) * numel


def _sort(call: Call, size_of: SizeOf, rows: int) -> sympy.Expr:
    keys = value_of(call["self"])
    length = call.size_along("dim")
    numel = size_of(call["self"]) / keys.element_size()
    return sort_scratch(device_type(keys), keys.element_size(), as_expr(length), rows, numel)


def _multinomial(call: Call, size_of: SizeOf, rows: int) -> sympy.Expr:
    """One exponential number per probability, unless several are drawn with replacement."""
    return ZERO if call["replacement"] and not same_size(call["num_samples"], 1) else size_of(call["self"])


def _one_copy(call: Call, size_of: SizeOf, rows: int) -> sympy.Expr:
    """The noise (dropout's mask as numbers, rrelu's slopes, a product of means)."""
    return size_of(next(arg for arg in call.args.values() if isinstance(arg, fx.Node)))


def _two_copies(call: Call, size_of: SizeOf, rows: int) -> sympy.Expr:
    return 2 * _one_copy(call, size_of, rows)


def _kthvalue(call: Call, size_of: SizeOf, rows: int) -> sympy.Expr:
    """A copy of the row to select in, and its indices."""
    itemsize = value_of(call["self"]).element_size()
    return size_of(call["self"]) * sympy.Rational(itemsize + INDEX_BYTES, itemsize)


def _half_index(call: Call, size_of: SizeOf, rows: int) -> sympy.Expr:
    """CPU kernels that gather or scatter two-byte floats widen what they move."""
    value = value_of(call["self"])
    is_half = device_type(value) == "cpu" and value.dtype in _HALF
    return size_of(call["index"]) / INDEX_BYTES * 4 if is_half else ZERO


def _strided_softmax(call: Call, size_of: SizeOf, rows: int) -> sympy.Expr:
    """Along another dim than the last one, CPU kernels keep a copy."""
    value = value_of(call["self"])
    is_last = value.ndim == 0 or same_size(value.stride()[call.dim("dim")], 1)
    return ZERO if is_last or device_type(value) != "cpu" else size_of(call["self"])


def _cast_elements(call: Call, size_of: SizeOf) -> sympy.Expr:
    """A CPU pointwise kernel casts the arguments that have another dtype than the one it computes in."""
    if device_type(call.out) != "cpu":
        return ZERO
    numbers = [v for name, v in _values(call) if isinstance(v, (torch.Tensor, bool, int, float))]
    common = promoted_dtype(numbers)
    if call.out.dtype.is_floating_point and not common.is_floating_point:
        common = call.out.dtype
    tensors = [(name, v) for name, v in _values(call) if isinstance(v, torch.Tensor) and v.ndim and v.dtype != common]
    return sum((_cast_to(common, call[name], size_of) for name, _ in tensors), ZERO)


def _values(call: Call) -> list[tuple[str, Any]]:
    return [(name, value_of(arg)) for name, arg in call.args.items() if name in _OPERANDS]


_OPERANDS = ("self", "other", "input", "end", "value", "min", "max", "exponent")


def _cast_to(dtype: torch.dtype, arg: fx.Node, size_of: SizeOf) -> sympy.Expr:
    return size_of(arg) / value_of(arg).element_size() * dtype.itemsize


def _cast_rows(call: Call, size_of: SizeOf, rows: int) -> sympy.Expr:
    """A CPU reduction or scan whose result has another dtype casts its input first: int64 for bool and small ints."""
    value, dtype = value_of(call["self"]), call.out.dtype
    if call.node.target is aten.mean.dim and dtype in _HALF:
        dtype = torch.float32
    return _cast_to(dtype, call["self"], size_of) if value.dtype != dtype and device_type(value) == "cpu" else ZERO


def _logsumexp(call: Call, size_of: SizeOf, rows: int) -> sympy.Expr:
    """A copy for ``exp(x - max)``."""
    return _cast_rows(call, size_of, rows) + _cast_to(call.out.dtype, call["self"], size_of)


_HALF = (torch.float16, torch.bfloat16)

_ESTIMATES: dict[Any, Callable[[Call, SizeOf, int], sympy.Expr]] = {
    aten.sort.default: _sort,
    aten.sort.stable: _sort,
    aten.logsumexp.default: _logsumexp,
    aten.multinomial.default: _multinomial,
    aten.native_dropout.default: _one_copy,
    aten.rrelu.default: _one_copy,
    aten.normal.Tensor_float: _one_copy,
    aten._sample_dirichlet.default: _two_copies,
    aten.kthvalue.default: _kthvalue,
    aten.gather.default: _half_index,
    aten.scatter.src: _half_index,
    aten.scatter.value: _half_index,
    aten.scatter_add.default: _half_index,
    aten._softmax.default: _strided_softmax,
    aten._log_softmax.default: _strided_softmax,
    **dict.fromkeys(
        (
            *(aten.sum.dim_IntList, aten.sum.default, aten.nansum.default, aten.mean.dim, aten.prod.dim_int),
            *(aten.cumsum.default, aten.cumprod.default, aten.any.dim, aten.any.dims, aten.all.dim, aten.all.dims),
        ),
        _cast_rows,
    ),
}
