"""Rows of random numbers that are a function of a seed, made without the rows in front of them.

``prims.inductor_random(size, seed)`` numbers its elements, so a window of it needs the number of its first one. These
ops take it. Tried with torch 2.13.0 and 2.14.1.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import torch
import torch._inductor.inductor_prims  # defines prims.inductor_random and its like


@torch.library.custom_op(
    "sortpass::random_rows",
    mutates_args=(),
    schema="(SymInt[] size, Tensor seed, str mode, *, int row_dim, SymInt start) -> Tensor",
)
def _random_rows(size: Sequence[int], seed: torch.Tensor, mode: str, *, row_dim: int, start: int) -> torch.Tensor:
    """Rows ``start`` and on of ``prims.inductor_random(whole_size, seed, mode)``, made without the others.

    Under Inductor the same bits; where a graph is run uncompiled, fresh numbers, as that op itself gives there. In
    front of ``row_dim`` there are only dims of size 1.
    """
    return getattr(torch, mode)(size, device=seed.device, dtype=torch.float32)


@torch.library.custom_op(
    "sortpass::randint_rows",
    mutates_args=(),
    schema="(SymInt low, SymInt high, SymInt[] size, Tensor seed, *, int row_dim, SymInt start) -> Tensor",
)
def _randint_rows(
    low: int, high: int, size: Sequence[int], seed: torch.Tensor, *, row_dim: int, start: int
) -> torch.Tensor:
    """The same of ``prims.inductor_randint``."""
    return torch.randint(low, high, size, device=seed.device)


@_random_rows.register_fake
def _(size: Any, seed: torch.Tensor, mode: str, *, row_dim: int, start: Any) -> torch.Tensor:
    return torch.empty(size, device=seed.device, dtype=torch.float32)


@_randint_rows.register_fake
def _(low: Any, high: Any, size: Any, seed: torch.Tensor, *, row_dim: int, start: Any) -> torch.Tensor:
    return torch.empty(size, device=seed.device, dtype=torch.int64)


random_rows = torch.ops.sortpass.random_rows.default
randint_rows = torch.ops.sortpass.randint_rows.default


@functools.cache
def teach_inductor_rows() -> None:
    """Let Inductor compile ``random_rows`` and ``randint_rows``.

    Its lowerings of the whole take the ``offset`` of the first element, which its ops do not. If that goes, write the
    lowering out: a ``Pointwise`` of ``ops.rand(seed, offset + index)``.
    """
    from torch._inductor import lowering  # a second of imports, which a compile by Inductor has done already

    def offset(size: Sequence[Any], row_dim: int, start: Any) -> Any:
        return start * math.prod(size[row_dim + 1 :])

    @lowering.register_lowering(random_rows, type_promotion_kind=None)
    def _(size: Any, seed: Any, mode: str, *, row_dim: int, start: Any) -> Any:
        return lowering.inductor_random(size, seed, mode, offset=offset(size, row_dim, start))

    @lowering.register_lowering(randint_rows, type_promotion_kind=None)
    def _(low: Any, high: Any, size: Any, seed: Any, *, row_dim: int, start: Any) -> Any:
        return lowering.inductor_randint(low, high, size, seed, offset=offset(size, row_dim, start))
