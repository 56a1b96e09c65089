"""Find out which ops really are the same bits in chunks of rows, on a device at hand.

The levels in ``rules/exactness.py`` say what is promised. A device often keeps more than that; where one keeps less,
that is a bug to report.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

PROBES: dict[str, Callable[[Tensor], Any]] = {
    "sort": lambda x: x.sort(-1),
    "topk": lambda x: x.topk(50),
    "multiply and add": lambda x: x * 0.7 + x,
    "exp": torch.exp,
    "log": lambda x: x.abs().log(),
    "sigmoid": torch.sigmoid,
    "pow": lambda x: x.abs() ** 0.7,
    "softmax": lambda x: x.softmax(-1),
    "log_softmax": lambda x: x.log_softmax(-1),
    "logsumexp": lambda x: x.logsumexp(-1),
    "cumsum": lambda x: x.cumsum(-1),
    "sum": lambda x: x.sum(-1),
    "mean": lambda x: x.mean(-1),
    "var": lambda x: x.var(-1),
    "sum of columns": lambda x: x.mT.contiguous().sum(0),
}


def probe_exactness(
    device: str | torch.device = "cpu",
    *,
    dtype: torch.dtype = torch.float32,
    row_chunks: Sequence[int] = (2, 3, 8),
) -> dict[str, bool]:
    """Run representative ops whole and in chunks of rows, in eager mode, and say which gave the same bits.

    Args:
        device: where to run.
        dtype: of the rows; they are as wide as a vocabulary, and no multiple of a vector register.
        row_chunks: sizes of chunk to try; 1 shows what single rows do.

    Returns:
        Name of an op -> whether every chunk of every size was equal to the whole.

    Example:
        >>> probe_exactness("cpu")["softmax"]
        True
    """
    generator = torch.Generator().manual_seed(0)
    # A CPU kernel shares out a row among threads from 32,768 elements on.
    rows = (3 * torch.randn(9, 40_001, generator=generator)).to(device, dtype)
    return {name: all(_is_equal(op, rows, size) for size in row_chunks) for name, op in PROBES.items()}


def _is_equal(op: Callable[[Tensor], Any], rows: Tensor, size: int) -> bool:
    """Whether whole chunks give the whole's rows; a smaller rest would be another size of chunk."""
    num_rows = rows.shape[0] - rows.shape[0] % size
    whole = tree_leaves(op(rows))
    chunks = [tree_leaves(op(chunk)) for chunk in rows[:num_rows].split(size)]
    return all(
        torch.equal(torch.cat(parts), expected[:num_rows]) for expected, *parts in zip(whole, *chunks, strict=True)
    )
