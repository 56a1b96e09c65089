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


@dataclasses.dataclass(frozen=True)
class Check:
    """One line of the doctor's table; ``passed`` is None where it is only a remark."""

    name: str
    passed: bool | None
    found: str
    advice: str = ""


def run_checks() -> list[Check]:
    """Every check; one that raises has failed with what it raised."""
    checks: list[tuple[str, Callable[[], Check], str]] = [
        ("python", _python, "install Python 3.10 or newer"),
        ("torch", _torch, "pip install 'torch>=2.13'"),
        ("backend", _entry_point, "pip install sortpass into the environment of this Python, or import sortpass"),
        ("aot_eager compile", _compile_with("aot_eager"), "report this: it needs nothing but torch"),
        ("C++ compiler", _cpp_compiler, "install g++ (Debian: apt install g++), or use inner='aot_eager'"),
        ("Inductor compile", _compile_with("inductor"), "see the line above; inner='aot_eager' works without it"),
        ("GPU", _gpu, ""),
    ]
    return [_run(*check) for check in checks]


def _run(name: str, check: Callable[[], Check], advice: str) -> Check:
    try:
        done = check()
    except Exception as error:  # a broken installation may raise anything
        first_line = (str(error).strip() or type(error).__name__).split("\n")[0]
        return Check(name, False, first_line[:120], advice)
    return done if done.passed is not False else dataclasses.replace(done, advice=advice)


def _python() -> Check:
    return Check("python", sys.version_info >= OLDEST_PYTHON, platform.python_version())


def _torch() -> Check:
    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    return Check("torch", version >= OLDEST_TORCH, f"{torch.__version__} (2.13.0 and {NEWEST_TRIED} are tested)")


def _entry_point() -> Check:
    found = importlib.metadata.entry_points(group="torch_dynamo_backends", name="chunked_sort")
    known = "chunked_sort" in torch._dynamo.list_backends(None)
    where = ", ".join(entry.value for entry in found)
    return Check("backend", bool(found) and known, where or "no entry point named chunked_sort")


def _cpp_compiler() -> Check:
    from torch._inductor.cpp_builder import get_cpp_compiler

    return Check("C++ compiler", True, get_cpp_compiler())


def _compile_with(inner: str) -> Callable[[], Check]:
    def check() -> Check:
        from sortpass.report import capture_reports

        def step(x: torch.Tensor) -> torch.Tensor:
            return x.sort(-1)[0].softmax(-1).cumsum(-1)

        x = torch.randn(12, 1_000)
        options: dict[str, Any] = {"row_chunk": 4, "min_bytes": 1, "inner": inner}
        with capture_reports() as reports:
            result = torch.compile(step, backend="chunked_sort", options=options)(x)
        torch.testing.assert_close(result, step(x))
        rewritten = sum(report.num_rewritten for report in reports)
        return Check(f"{inner} compile", rewritten == 1, f"{rewritten} of 1 sorts rewritten, results as eager")

    return check


def _gpu() -> Check:
    if not torch.cuda.is_available():
        return Check("GPU", None, "none that this torch can use; everything works on CPU")
    free, total = torch.cuda.mem_get_info()
    return Check("GPU", None, f"{torch.cuda.get_device_name()}, {free / 2**30:.1f} of {total / 2**30:.1f} GiB free")
