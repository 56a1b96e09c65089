"""A function named on the command line, and arguments made from a shape."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

DTYPES = {
    "f32": torch.float32,
    "bf16": torch.bfloat16,
    "f16": torch.float16,
    "f64": torch.float64,
    "i64": torch.int64,
}


def load_target(text: str) -> Callable[..., Any]:
    """``module:function`` or ``file.py:function``.

    Raises:
        argparse.ArgumentTypeError: it is neither, or there is no such function.
    """
    place, colon, name = text.rpartition(":")
    if not colon or not name:
        raise argparse.ArgumentTypeError(f"{text!r} is not module:function or file.py:function")
    try:
        module = _load_file(Path(place)) if place.endswith(".py") else importlib.import_module(place)
    except (ImportError, OSError) as error:
        raise argparse.ArgumentTypeError(f"{text!r}: cannot import {place}: {error}") from error
    found = getattr(module, name, None)
    if not callable(found):
        others = [key for key, value in vars(module).items() if inspect.isfunction(value) and not key.startswith("_")]
        raise argparse.ArgumentTypeError(f"{text!r}: {place} has no function {name!r}; it has {', '.join(others)}")
    return found


def _load_file(path: Path) -> Any:
    if not path.is_file():
        raise OSError(f"no such file: {path}")
    sys.path.insert(0, str(path.parent))  # a script finds its neighbours
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def parse_shape(text: str) -> tuple[int, ...]:
    """The sizes of one tensor argument.

    >>> parse_shape("2x3")
    (2, 3)
    """
    try:
        sizes = tuple(int(size) for size in text.split("x"))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no shape such as 8192x128256") from error
    if any(size < 0 for size in sizes):
        raise argparse.ArgumentTypeError(f"{text!r} has a negative size")
    return sizes


def make_args(shapes: list[tuple[int, ...]], dtype: torch.dtype, device: str, *, meta: bool) -> list[torch.Tensor]:
    """One tensor per shape: normal random numbers with a spread of 4, as logits have; on ``meta`` without memory."""
    if meta:
        return [torch.empty(shape, dtype=dtype, device="meta") for shape in shapes]
    generator = torch.Generator().manual_seed(0)
    return [(4 * torch.randn(shape, generator=generator)).to(device, dtype) for shape in shapes]
