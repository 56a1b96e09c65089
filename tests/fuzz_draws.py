"""Which results of a program its draws decide, and which they cannot: those are as whole with other numbers, too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.fx as fx
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_leaves

SEEDS = range(2, 22)
"""So many that a draw of one bit would not be taken for certain."""


def drawn_outputs(program: Callable[..., Any], inputs: Callable[[], list[Any]]) -> set[int] | None:
    """Positions of the outputs that depend on what was drawn; None where it could be any of them.

    A draw that gives the same whatever the seed (from rows that are certain, with a spread of 0) decides nothing.
    """
    torch.default_generator.manual_seed(1)
    try:
        gm = make_fx(program)(*inputs())
        runs = [_Draws(gm).values(inputs(), seed) for seed in SEEDS]
    except Exception:  # with other numbers a program may not run
        return None
    open_ended = {node for node in runs[0] if any(not _equal(run[node], runs[0][node]) for run in runs)}
    if not open_ended:
        return set()
    if any(_writes(node) for node in gm.graph.nodes):
        return None  # what was written into is no user of the draw
    drawn: set[fx.Node] = set()
    for node in gm.graph.nodes:
        if node in open_ended or drawn.intersection(node.all_input_nodes):
            drawn.add(node)
    (outputs,) = next(node for node in gm.graph.nodes if node.op == "output").args
    return {position for position, node in enumerate(outputs) if node in drawn}


class _Draws(fx.Interpreter):
    """Runs a graph and keeps what its random ops gave."""

    def values(self, args: list[Any], seed: int) -> dict[fx.Node, Any]:
        self.seen: dict[fx.Node, Any] = {}
        torch.default_generator.manual_seed(seed)
        self.run(*args)
        return self.seen

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        if torch.Tag.nondeterministic_seeded in getattr(n.target, "tags", ()):
            self.seen[n] = [leaf.clone() for leaf in tree_leaves(result)]
        return result


def _equal(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def _writes(node: fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and schema.is_mutable
