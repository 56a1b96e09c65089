"""Check that everything sortpass needs is here; each failing line says what to do."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import platform
import sys
from collections.abc import Callable
from typing import Any

import torch

OLDEST_PYTHON = (3, 10)
OLDEST_TORCH = (2, 13)
NEWEST_TRIED = "2.14.1"


Finding = tuple[bool | None, str]
"""Whether a check passed, None for a remark; and what was found."""


@dataclasses.dataclass(frozen=True)
class Check:
    """One line of the doctor's table; ``passed`` is None where it is only a remark."""

    name: str
    passed: bool | None
    found: str
    advice: str


def run_checks() -> list[Check]:
    """Every check; one that raises has failed with what it raised."""
    checks: list[tuple[str, Callable[[], Finding], str]] = [
        ("python", _python, "install Python 3.10 or newer"),
        ("torch", _torch, "pip install 'torch>=2.13'"),
        ("backend", _entry_point, "pip install sortpass into the environment of this Python, or import sortpass"),
        ("aot_eager compile", _compile_with("aot_eager"), "report this: it needs nothing but torch"),
        ("C++ compiler", _cpp_compiler, "install g++ (Debian: apt install g++), or use inner='aot_eager'"),
        ("Inductor compile", _compile_with("inductor"), "see the line above; inner='aot_eager' works without it"),
        ("GPU", _gpu, ""),
    ]
    return [_run(*check) for check in checks]


def _run(name: str, check: Callable[[], Finding], advice: str) -> Check:
    try:
        return Check(name, *check(), advice)
    except Exception as error:  # a broken installation may raise anything
        first_line = (str(error).strip() or type(error).__name__).split("\n")[0]
        return Check(name, False, first_line[:120], advice)


def _python() -> Finding:
    return sys.version_info >= OLDEST_PYTHON, platform.python_version()


def _torch() -> Finding:
    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    return version >= OLDEST_TORCH, f"{torch.__version__} (2.13.0 and {NEWEST_TRIED} are tested)"


def _entry_point() -> Finding:
    found = importlib.metadata.entry_points(group="torch_dynamo_backends", name="chunked_sort")
    known = "chunked_sort" in torch._dynamo.list_backends(None)
    where = ", ".join(entry.value for entry in found)
    return bool(found) and known, where or "no entry point named chunked_sort"


def _cpp_compiler() -> Finding:
    from torch._inductor.cpp_builder import get_cpp_compiler

    return True, get_cpp_compiler()


def _compile_with(inner: str) -> Callable[[], Finding]:
    def check() -> Finding:
        from sortpass.report import capture_reports

        def step(x: torch.Tensor) -> torch.Tensor:
            return x.sort(-1)[0].softmax(-1).cumsum(-1)

        x = torch.randn(12, 1_000)
        options: dict[str, Any] = {"row_chunk": 4, "min_bytes": 1, "inner": inner}
        with capture_reports() as reports:
            result = torch.compile(step, backend="chunked_sort", options=options)(x)
        torch.testing.assert_close(result, step(x))
        rewritten = sum(report.num_rewritten for report in reports)
        return rewritten == 1, f"{rewritten} of 1 sorts rewritten, results as eager"

    return check


def _gpu() -> Finding:
    if not torch.cuda.is_available():
        return None, "none that this torch can use; everything works on CPU"
    free, total = torch.cuda.mem_get_info()
    return None, f"{torch.cuda.get_device_name()}, {free / 2**30:.1f} of {total / 2**30:.1f} GiB free"
