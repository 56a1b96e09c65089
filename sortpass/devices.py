"""Which device's kernels a prediction is about: a tensor's own, or the one an estimate is asked for."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

import torch

_as_if: ContextVar[str | None] = ContextVar("sortpass_device", default=None)


def device_type(tensor: torch.Tensor) -> str:
    """``"cpu"``, ``"cuda"``, ..."""
    return _as_if.get() or tensor.device.type


@contextlib.contextmanager
def as_if_on(device: str | None) -> Iterator[None]:
    """Predict for another device than the one tensors are on; None changes nothing."""
    token = _as_if.set(None if device is None else torch.device(device).type)
    try:
        yield
    finally:
        _as_if.reset(token)
