"""Postconditions of a rewrite. A failure here is a bug of ours, never the user's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.fx as fx

from sortpass.errors import InternalError
from sortpass.torch_compat import fake_values, known_true


def check_rewrite(gm: fx.GraphModule, replacements: Mapping[fx.Node, fx.Node]) -> None:
    """Check that the graph is well formed and every live-out came back with the whole's dtype, shape and strides.

    Raises:
        InternalError: it is not so; the message shows the node.
    """
    gm.graph.lint()
    for old, new in replacements.items():
        for a, b in zip(fake_values(old), fake_values(new), strict=True):
            same = a.dtype == b.dtype and a.device == b.device and len(a.shape) == len(b.shape)
            if not same or any(known_true(x != y) for x, y in _layouts(a, b)):
                raise InternalError(
                    f"the rewrite changed {old.name}: {a.dtype} {tuple(a.shape)} strides {a.stride()} became "
                    f"{b.dtype} {tuple(b.shape)} strides {b.stride()}; node: {new.format_node()}"
                )


def _layouts(a: torch.Tensor, b: torch.Tensor) -> Iterator[tuple[Any, Any]]:
    """Pairs of sizes and of strides that must agree."""
    yield from zip(a.shape, b.shape, strict=True)
    # Strides in an empty tensor, or along a dim of size 1, lead nowhere, and kernels differ in what they leave there.
    if any(known_true(size == 0) for size in a.shape):
        return
    for size, *strides in zip(a.shape, a.stride(), b.stride(), strict=True):
        if not known_true(size == 1):
            yield strides[0], strides[1]
