"""The cache id: what must be equal for a cached graph to be the one this pass would make."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path
from typing import Any

import torch

from sortpass.budget import budget_key
from sortpass.config import ChunkConfig
from sortpass.rules import Exactness, declared_exactness, registered_rules
from sortpass.scratch import probed_key


def cache_id(config: ChunkConfig) -> str:
    """Text that differs whenever this pass could leave a different graph: options, sources, rules, torch version.

    And what a budget in bytes was turned into rows by: the free memory, the thread count, a probed sort.
    """
    by_budget = () if config.row_chunk is not None else budget_key(config)
    parts = (_source_hash(), torch.__version__, config.cache_key(), probed_key(), *by_budget, *_foreign_rules())
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


@functools.cache
def _source_hash() -> str:
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _foreign_rules() -> list[str]:
    """Rules that users registered, by name and code: they change what is rewritten, and no file of ours shows it."""
    return sorted(
        f"{op}:{_code_id(rule)}:{level if isinstance(level, Exactness) else _code_id(level)}"
        for op, rule in registered_rules().items()
        if not (rule.__module__ or "").startswith("sortpass.") and (level := declared_exactness(op))
    )


def _code_id(function: Any) -> str:
    """Text that tells a function from any other. What has no code to show gets its address, so it is never cached."""
    if (code := getattr(function, "__code__", None)) is None:
        return repr(function)
    closed_over = [cell.cell_contents for cell in function.__closure__ or ()]
    return f"{function.__module__}.{function.__qualname__}:{code.co_code.hex()}:{code.co_consts!r}:{closed_over!r}"
