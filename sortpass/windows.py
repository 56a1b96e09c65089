"""How many windows, how large: arithmetic that serves ints, ``SymInt`` and FX proxies alike.

For ``N`` steps along the row dim and at most ``C`` steps a window::

    n     = (N + C - 1) // C          number of windows
    size  = (N + n - 1) // n          steps per window, <= C, the same for all
    start = (k * N) // n              k = 0 .. n-1; start_0 = 0, start_{n-1} + size = N, no gap

Neighbouring windows may overlap by a step, which is then computed twice from the same inputs. That is right because a
region is deterministic and reads nothing the loop writes. No ``min`` is needed, so the same formulas serve dynamic rows
(``min`` in a start expression ends as ``NameError: Min`` in Inductor's wrapper).

``N`` steps of ``P`` rows each (logits ``[B, T, V]`` cut along ``T``: ``P = B``) get ``C = row_chunk // P``, at least 1.
Where a step may have more rows than ``row_chunk``, each window is cut once more, along the other dim.
"""

from __future__ import annotations

from typing import Any


def count_windows(steps: Any, limit: Any, *, may_be_empty: bool) -> tuple[Any, Any]:
    """Number of windows and steps in each, for at most ``limit`` steps a window.

    Where ``steps`` may be 0 at run time, one window more is made, so that the number of windows, which ``steps`` is
    divided by, never is.

    >>> count_windows(10, 4, may_be_empty=False)
    (3, 4)
    """
    if isinstance(limit, int) and limit == 1:
        return steps, 1  # what the formulas give, but as an expression they would not simplify to it
    num_windows = steps // limit + 1 if may_be_empty else (steps + (limit - 1)) // limit
    return num_windows, (steps + (num_windows - 1)) // num_windows


def limit_steps(rows_per_step: Any, row_chunk: int) -> Any:
    """Most steps a window may hold: ``row_chunk`` rows, but at least one step.

    Asking ``rows_per_step <= row_chunk`` of a dynamic size would be a guard, and so one more compile.

    >>> limit_steps(4, 64), limit_steps(100, 64)
    (16, 1)
    """
    return _at_least_one(row_chunk // _at_least_one(rows_per_step))


def _at_least_one(size: Any) -> Any:
    """``max(size, 1)`` for sizes from 0 up; ``max`` itself is missing from Inductor's wrapper, as ``min`` is."""
    return max(size, 1) if isinstance(size, int) else size + 1 // (size + 1)
