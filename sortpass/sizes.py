"""Byte counts as expressions: ``4*N*V + 16*c*V`` for ``N`` rows of ``V`` elements, ``c`` of them at a time.

A count of bytes is a sympy expression; an int where nothing is dynamic. ``N`` stands for the size of the row dim and
``c`` for the steps of a window, also where both are known, so that a plan made for one batch says what another takes.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import sympy
import torch

from sortpass.rules import Flattened
from sortpass.torch_compat import symbol_hints

ROWS = sympy.Symbol("N", integer=True, positive=True)
"""Steps along the row dim."""

WINDOW = sympy.Symbol("c", integer=True, positive=True)
"""Steps along the row dim that one window holds."""

ZERO = sympy.Integer(0)


@dataclasses.dataclass(frozen=True)
class Peak:
    """The largest of some byte counts.

    Attributes:
        counts: bytes; those that another one exceeds at all sizes are left out.
    """

    counts: tuple[sympy.Expr, ...] = (ZERO,)

    @classmethod
    def of(cls, counts: Iterable[sympy.Expr]) -> Peak:
        """The peak of many counts.

        >>> Peak.of([4 * ROWS, 8 * ROWS + 2, WINDOW]).counts
        (8*N + 2, c)
        """
        kept: list[sympy.Expr] = []
        for count in dict.fromkeys(counts):
            if not any(_never_above(count, other) for other in kept):
                kept = [other for other in kept if not _never_above(other, count)] + [count]
        return cls(tuple(kept) or (ZERO,))

    def plus(self, count: sympy.Expr) -> Peak:
        """Every count raised."""
        return Peak(tuple(sympy.expand(other + count) for other in self.counts))

    def with_sizes(self, sizes: Mapping[sympy.Symbol, Any]) -> Peak:
        """The same for some known sizes."""
        return Peak.of(sympy.expand(count.xreplace(dict(sizes))) for count in self.counts)

    def at(self, sizes: Mapping[sympy.Symbol, Any]) -> int:
        """Bytes at given sizes; a size that is missing counts as 1, or where that divides by zero as more."""
        for missing in (1, 2**5, 2**10, 2**20):
            with contextlib.suppress(ZeroDivisionError):  # s // (s // 2)
                values = ({s: sizes.get(s, missing) for s in count.free_symbols} for count in self.counts)
                return max(int(c.xreplace(v)) for c, v in zip(self.counts, values, strict=True))
        raise ZeroDivisionError(f"no size for {self.counts} at {sizes}")


def _never_above(a: sympy.Expr, b: sympy.Expr) -> bool:
    """Whether ``a <= b`` at all sizes from 1 up (from 2 rows up), as far as the coefficients show."""
    difference = b - a
    if difference.is_polynomial():
        least = {symbol: symbol + (2 if symbol == ROWS else 1) for symbol in difference.free_symbols}
        difference = sympy.expand(difference.xreplace(least))
    return all(coefficient >= 0 for coefficient in difference.as_coefficients_dict().values())


def bytes_of(tensor: torch.Tensor, row_dim: int | Flattened | None = None, rows: sympy.Expr = ROWS) -> sympy.Expr:
    """Bytes of a tensor, with the size of ``row_dim`` written as ``rows``."""
    count: sympy.Expr = sympy.Integer(tensor.element_size())
    shape = tuple(tensor.shape)
    if isinstance(row_dim, Flattened):
        shape, row_dim = row_dim.unflatten(shape), row_dim.position
    for dim, size in enumerate(shape):
        count = count * (rows if dim == row_dim else as_expr(size))
    return sympy.expand(count)


def as_expr(size: Any) -> sympy.Expr:
    """An int or ``SymInt`` as an expression."""
    return size.node.expr if isinstance(size, torch.SymInt) else sympy.Integer(size)


def hints_of(tensors: Iterable[torch.Tensor]) -> dict[sympy.Symbol, int]:
    """The compile-time value of each symbol that the sizes of some tensors are made of."""
    # In a window, `s` may be nobody's size, and `s // 2` somebody's.
    hints: dict[sympy.Symbol, int] = {}
    for size in (size for tensor in tensors for size in tensor.shape if isinstance(size, torch.SymInt)):
        if not as_expr(size).free_symbols <= hints.keys():
            hints.update(symbol_hints(size))
    return hints


def text_of(peak: Peak, row_length: int | torch.SymInt, sizes: Mapping[sympy.Symbol, Any]) -> str:
    """A peak for people: the row length as ``V``, the largest count and term first.

    >>> text_of(Peak((64000 * ROWS + 8,)), 4000, {ROWS: 256})
    '16*N*V + 8'
    """
    counts = sorted(peak.counts, key=lambda count: -Peak((count,)).at(sizes))
    texts = [" + ".join(_terms(count, as_expr(row_length), sizes)) or "0" for count in counts]
    return texts[0] if len(texts) == 1 else f"max({', '.join(texts)})"


def _terms(count: sympy.Expr, row_length: sympy.Expr, sizes: Mapping[sympy.Symbol, Any]) -> list[str]:
    terms = sorted(count.as_coefficients_dict().items(), key=lambda item: -Peak((item[0] * item[1],)).at(sizes))
    texts = []
    for monomial, coefficient in terms:
        per_row, rest = (
            divmod(coefficient, row_length) if row_length.is_Integer and row_length > 1 else (0, coefficient)
        )
        symbols = [] if monomial == 1 else [str(monomial)]
        texts += [_product(per_row, [*symbols, "V"])] if per_row else []
        texts += [_product(rest, symbols)] if rest else []
    return texts


def _product(coefficient: sympy.Expr, factors: list[str]) -> str:
    return "*".join(factors if coefficient == 1 and factors else [str(coefficient), *factors])
