"""Postconditions of a rewrite. A failure here is a bug of ours, never the user's."""

from __future__ import annotations

from collections.abc import Mapping

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
            pairs = zip((*a.shape, *a.stride()), (*b.shape, *b.stride()), strict=True) if same else ()
            if not same or any(known_true(x != y) for x, y in pairs):
                raise InternalError(
                    f"the rewrite changed {old.name}: {a.dtype} {tuple(a.shape)} strides {a.stride()} became "
                    f"{b.dtype} {tuple(b.shape)} strides {b.stride()}; node: {new.format_node()}"
                )
