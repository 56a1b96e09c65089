"""One call of an op as a rule sees it: arguments bound by schema name, shapes at hand."""

from __future__ import annotations

import operator
import sys
from typing import Any

import torch
import torch.fx as fx
from torch.fx.experimental.symbolic_shapes import statically_known_true


class Call:
    """One call of an op, its arguments bound by schema name and its shapes at hand.

    ATen graphs drop arguments that have their default value, and ops differ in what is positional, so a rule never
    looks at ``node.args[i]``.
    """

    def __init__(self, node: fx.Node) -> None:
        self.node = node
        self.args: dict[str, Any] = bound_args(node)

    def __getitem__(self, name: str) -> Any:
        return self.args[name]

    def is_tensor(self, name: str) -> bool:
        return isinstance(value_of(self.args.get(name)), torch.Tensor)

    def shape(self, name: str) -> tuple[Any, ...]:
        """Shape of a tensor argument."""
        return tuple(value_of(self.args[name]).shape)

    def ndim(self, name: str) -> int:
        return len(self.shape(name))

    @property
    def out(self) -> torch.Tensor:
        """The output, or the first tensor of a tuple of outputs."""
        val = self.node.meta["val"]
        return next(v for v in val if isinstance(v, torch.Tensor)) if isinstance(val, (tuple, list)) else val

    @property
    def out_shape(self) -> tuple[Any, ...]:
        return tuple(self.out.shape)

    def dim(self, name: str, of: str = "self") -> int:
        """A dim argument, wrapped to be non-negative."""
        return wrap_dim(self.args[name], self.ndim(of))

    def size_along(self, name: str, of: str = "self") -> Any:
        """Size of a tensor along the dim an argument names; 1 where the tensor is a scalar, which has none."""
        return self.shape(of)[self.dim(name, of)] if self.ndim(of) else 1

    def takes_all(self) -> bool:
        """Whether a slice is all of its dim, as ``x[:, 1:]`` has one of dim 0: from the start to beyond any size."""
        is_open = self["end"] is None or (isinstance(self["end"], int) and self["end"] >= sys.maxsize)
        return self["start"] in (None, 0) and is_open and self["step"] == 1

    def dims(self, name: str, of: str = "self") -> tuple[int, ...] | None:
        """A dim or list of dims, wrapped; None when it means all dims."""
        value = self.args[name]
        if value is None or (isinstance(value, (list, tuple)) and not value):
            return None
        values = value if isinstance(value, (list, tuple)) else [value]
        return tuple(wrap_dim(v, self.ndim(of)) for v in values)


def bound_args(node: fx.Node) -> dict[str, Any]:
    """The arguments of a call by schema name, with the schema's defaults filled in."""
    if node.target is operator.getitem:
        return {"self": node.args[0], "index": node.args[1]}
    schema = node.target._schema  # type: ignore[union-attr]
    bound: dict[str, Any] = {}
    for position, arg in enumerate(schema.arguments):
        if position < len(node.args):
            bound[arg.name] = node.args[position]
        elif arg.name in node.kwargs:
            bound[arg.name] = node.kwargs[arg.name]
        else:
            bound[arg.name] = arg.default_value if arg.has_default_value() else None
    return bound


def value_of(arg: Any) -> Any:
    """The fake value of a node, or the argument itself where it is a constant."""
    return arg.meta.get("val") if isinstance(arg, fx.Node) else arg


def wrap_dim(dim: int, ndim: int) -> int:
    return dim + max(ndim, 1) if dim < 0 else dim


def same_size(a: Any, b: Any) -> bool:
    """Whether two sizes are known to be equal, without adding a guard."""
    return statically_known_true(a == b)
