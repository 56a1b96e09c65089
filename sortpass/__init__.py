"""Bound the peak memory of sorting big logits, without rewriting the model.

    step = torch.compile(sample_step, backend="chunked_sort", options={"memory_budget": "128MiB"})

finds the large ``aten.sort`` calls of a sampling graph and runs each, with the whole row-independent region around it,
over windows of as many rows as the budget holds::

    sort = aten.sort(logits)                        out  = empty([N, V])
    probs = softmax(sort[0])                        loop over windows of 64 rows:
    mask = cumsum(probs) <= 1 - top_p                   sort, softmax, cumsum, scatter, where  on 64 rows
    out = where(scatter(mask, sort[1]), -inf, x)        out[start : start + 64] = ...

See :class:`ChunkConfig` for the options, :func:`estimate` for the peak before anything runs, :func:`rewrite` for graphs
from elsewhere, :class:`ChunkedSortPass` for somebody else's Inductor pipeline, and :func:`capture_reports` for what was
done and why.
"""

import importlib
from typing import Any

from sortpass.backend import chunked_sort
from sortpass.chunk_pass import ChunkedSortPass, rewrite
from sortpass.compare import Comparison, compare
from sortpass.config import ChunkConfig
from sortpass.errors import ConfigError, EstimateError, InternalError, NothingRewritten, SortPassError
from sortpass.estimate import Estimate, estimate
from sortpass.explain import Explanation, explain
from sortpass.probe import probe_exactness, probe_sort
from sortpass.report import Decline, DeclineCode, PassReport, SiteReport, capture_reports
from sortpass.rules import Blocked, Exactness, Flow, register_rule

__version__ = "0.1.0"

__all__ = [
    "Blocked",
    "ChunkConfig",
    "ChunkedSortPass",
    "Comparison",
    "ConfigError",
    "Decline",
    "DeclineCode",
    "Estimate",
    "EstimateError",
    "Exactness",
    "Explanation",
    "Flow",
    "InternalError",
    "NothingRewritten",
    "PassReport",
    "SiteReport",
    "SortPassError",
    "capture_reports",
    "chunked_sort",
    "compare",
    "estimate",
    "explain",
    "probe_exactness",
    "probe_sort",
    "register_rule",
    "rewrite",
]


def __getattr__(name: str) -> Any:
    # sortpass.hf imports transformers, which only its users have.
    if name == "hf":
        return importlib.import_module("sortpass.hf")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
