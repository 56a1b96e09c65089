"""Find out what a device at hand really does: which ops keep their bits in chunks of rows, what its sort takes.

The levels in ``rules/exactness.py`` say what is promised. A device often keeps more than that; where one keeps less,
that is a bug to report. The table in ``scratch.py`` says what a sort takes; a probe of a device overrides it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from sortpass.measure import peak_bytes
from sortpass.scratch import record_probe

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


@functools.cache
def probe_sort(
    device: str = "cpu", *, dtype: torch.dtype = torch.float32, row_length: int = 32_768
) -> dict[int, float]:
    """Measure the scratch of ``torch.sort`` on a device, once a process; later plans use it instead of the table.

    Run it before the first compile, on a device whose allocator the meter can read (CPU, CUDA). It sorts 256 rows of
    ``row_length`` elements, which take 44 bytes each on CUDA: 370 MB at most.

    Args:
        device: where to sort.
        dtype: of the keys.
        row_length: elements of a row; more than 4,096, below which CUDA sorts without scratch.

    Returns:
        Rows -> bytes of scratch, outputs not counted: per element, on CPU per element of one row.

    Example:
        >>> probe_sort("cpu")
        {64: 8.0, 256: 8.0}
    """
    found = {}
    for rows in (64, 256):
        keys = torch.zeros(rows, row_length, dtype=dtype, device=device)
        torch.sort(keys)
        outputs = keys.numel() * (keys.element_size() + 8)
        scratch = peak_bytes(functools.partial(torch.sort, keys), device) - outputs
        found[rows] = scratch / (row_length if keys.device.type == "cpu" else keys.numel())
        record_probe(keys.device.type, keys.element_size(), rows, found[rows])
    return found


def _is_equal(op: Callable[[Tensor], Any], rows: Tensor, size: int) -> bool:
    """Whether whole chunks give the whole's rows; a smaller rest would be another size of chunk."""
    num_rows = rows.shape[0] - rows.shape[0] % size
    whole = tree_leaves(op(rows))
    chunks = [tree_leaves(op(chunk)) for chunk in rows[:num_rows].split(size)]
    return all(
        torch.equal(torch.cat(parts), expected[:num_rows]) for expected, *parts in zip(whole, *chunks, strict=True)
    )
