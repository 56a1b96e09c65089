"""From a budget in bytes to rows per window.

Good sizes of a window, measured (CPU: the sweep in ``docs/rows_per_window.md``) or from kernel sources (CUDA):

- CPU kernels share out rows among threads, so a window has a multiple of the thread count, at least twice it;
- CUDA's sort takes another path from 128 rows on that needs less scratch per row, and 94 to 127 rows need more than
  128 do; above 512 rows nothing is gained;
- one row at a time is slow everywhere, so it is never chosen where two fit.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable

import torch

from sortpass.config import ChunkConfig, format_bytes, parse_bytes_maybe
from sortpass.errors import ConfigError

DEFAULT_BUDGET = {"cpu": 64 * 2**20}
DEFAULT_BUDGET_ELSEWHERE = 2**30

GPU_WINDOWS = (512, 256, 128)
GPU_BELOW_128 = 93

MANY_ROWS = 2**20


@dataclasses.dataclass(frozen=True)
class RowChoice:
    """Rows per window, and what decided.

    Attributes:
        rows: the most rows a window may hold.
        why: the end of a sentence: ``row_chunk=64``, ``memory_budget=128 MiB``.
        short_of: bytes one row needs, where the budget holds none.
    """

    rows: int
    why: str
    short_of: int | None = None


def choose_rows(window_bytes: Callable[[int], int], config: ChunkConfig, device: str) -> RowChoice:
    """The most rows of a good size whose window fits the budget; ``row_chunk`` where the user gave it.

    Args:
        window_bytes: rows -> what a window of so many rows holds above the graph's inputs and outputs.
        config: the options.
        device: type of the device the sort runs on.
    """
    if config.row_chunk is not None:
        return RowChoice(config.row_chunk, f"row_chunk={config.row_chunk}")
    budget = budget_bytes(config, device)
    why = f"memory_budget={format_bytes(budget)}"
    most = _most_that_fit(window_bytes, budget)
    if most == 0:
        return RowChoice(1, why, short_of=window_bytes(1))
    if device == "cpu":
        threads = torch.get_num_threads()
        return RowChoice(most - most % threads if most >= 2 * threads else most, why)
    good = next((rows for rows in GPU_WINDOWS if window_bytes(rows) <= budget), None)
    return RowChoice(good or min(most, GPU_BELOW_128), why)


def _most_that_fit(window_bytes: Callable[[int], int], budget: int) -> int:
    """Most rows within a budget; bytes grow with rows on each of the sort's paths."""
    low, high = 0, 1
    while high < MANY_ROWS and window_bytes(high) <= budget:
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if window_bytes(middle) <= budget else (low, middle)
    return low


def budget_bytes(config: ChunkConfig, device: str) -> int:
    """The budget in bytes; a fraction is taken of the memory that is free now.

    A fraction's result is rounded down to four binary digits, so that two compiles of one program, with a little more
    or less free memory, make the same plan and find each other's cache entries.

    Raises:
        ConfigError: a fraction, where the free memory is not known.
    """
    budget = config.memory_budget
    if budget is None:
        return DEFAULT_BUDGET.get(device, DEFAULT_BUDGET_ELSEWHERE)
    if isinstance(budget, float):
        free = _free_bytes(device)
        if free is None:
            raise ConfigError(
                f"option 'memory_budget' is {budget}, a fraction of the free memory, which is not known for device "
                f"{device!r}; give bytes, such as memory_budget='512MiB'"
            )
        wanted = max(1, int(free * budget))
        step = 1 << max(0, wanted.bit_length() - 4)
        return wanted - wanted % step
    parsed = parse_bytes_maybe(budget) if isinstance(budget, str) else budget
    assert parsed is not None  # ChunkConfig checked the text
    return parsed


def budget_key(config: ChunkConfig) -> tuple[str, ...]:
    """What the number of rows depends on besides the options and the graph."""
    devices = ("cpu", *(("cuda",) if torch.cuda.is_available() else ()))
    by_free_memory = isinstance(config.memory_budget, float)
    budgets = [str(budget_bytes(config, device)) for device in devices] if by_free_memory else []
    return (str(torch.get_num_threads()), *budgets)


def _free_bytes(device: str) -> int | None:
    if device == "cuda" and torch.cuda.is_available():
        return torch.cuda.mem_get_info()[0]
    if device == "cpu" and "SC_AVPHYS_PAGES" in os.sysconf_names:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None
