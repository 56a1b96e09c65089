"""Make nodes that carry everything the next pass expects: a fake value, the user's source line.

NOTE [Sizes no kernel may ask about]: evaluated with a size such as ``3 * N // 7``, every kernel asks "is it 0, is it 1"
and gets an answer for the traced ``N``, recorded as a guard. An exported program would keep it
(``run_decompositions`` writes guards into the program), and Dynamo refuses it on a dim that ``mark_dynamic`` gave a
range. So such a size goes through a tensor and comes back as an unbacked one, of which nothing is known.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.fx as fx
from torch._subclasses.fake_tensor import FakeTensorMode

from sortpass.region import Region, RowDim
from sortpass.rules import Call, Flattened, value_of
from sortpass.torch_compat import refusals_unlogged

aten = torch.ops.aten

# What a copied node must not inherit: facts about the whole tensor.
_WHOLE_FACTS = ("val", "tensor_meta", "example_value", "unbacked_bindings", "eager_input_vals")


@dataclasses.dataclass(frozen=True)
class Applied:
    """What an emitter made.

    Attributes:
        replacements: live-out that is read -> the node that takes its place.
        anchors: where the anchor stands now, one per copy: the graph module (the loop's body, or the graph itself) and
            the node in it.
        copies: ``copy_`` that is done already -> the node that takes its place.
    """

    replacements: Mapping[fx.Node, fx.Node]
    anchors: tuple[tuple[fx.GraphModule, fx.Node], ...]
    copies: Mapping[fx.Node, fx.Node] = dataclasses.field(default_factory=dict)


class CannotBuild(Exception):
    """An op refused its chunk-sized inputs. Raised before the graph is changed; becomes a decline."""

    def __init__(self, node: fx.Node, why: str) -> None:
        super().__init__(why)
        self.node = node


class NodeBuilder:
    """Creates ``call_function`` nodes with fake values at the graph's insertion point."""

    def __init__(self, graph: fx.Graph, mode: FakeTensorMode) -> None:
        self.graph = graph
        self.mode = mode

    def call(self, target: Any, *args: Any, origin: fx.Node | None = None, **kwargs: Any) -> fx.Node:
        """Create a node, evaluate it on fake values, and inherit ``origin``'s source location.

        Raises:
            CannotBuild: the op's fake kernel refuses the inputs; the node is removed again.
        """
        node = self.graph.call_function(target, args, kwargs)
        if origin is not None:
            node.meta.update({key: value for key, value in origin.meta.items() if key not in _WHOLE_FACTS})
        try:
            with self.mode, refusals_unlogged():
                node.meta["val"] = target(*_values(args), **_values(kwargs))
        except RuntimeError as error:
            self.graph.erase_node(node)
            raise CannotBuild(origin or node, str(error).split("\n")[0]) from error
        return node

    def size(self, node: fx.Node, dim: int) -> Any:
        """A size of a node's value as an argument: a number, or a node."""
        size = value_of(node).shape[dim]
        return size if isinstance(size, int) else self.call(aten.sym_size.int, node, dim)

    def hidden_size(self, size: fx.Node) -> fx.Node:
        """The same number, of which nothing is known while tracing; see NOTE [Sizes no kernel may ask about].

        Call it under :func:`sortpass.torch_compat.tracing_items`.
        """
        tensor = self.call(aten.scalar_tensor.default, size, dtype=torch.int64)
        hidden = self.call(aten._local_scalar_dense.default, tensor)
        hidden.meta["unbacked_bindings"] = {hidden.meta["val"].node.expr: ()}  # this node defines the symbol
        self.call(aten.sym_constrain_range.default, hidden, min=0)
        return hidden


LiveIn = Callable[[fx.Node, "RowDim | None"], fx.Node]
"""What stands for an outside value in a window, cut along a dim or whole."""


def unflatten(
    builder: NodeBuilder, node: fx.Node, dim: Flattened, inside: Callable[[Any], Any] = lambda size: size
) -> fx.Node:
    """A live-in with the dims back that were flattened (NOTE [Flattened rows]), to be cut along one of them.

    ``inside`` gives what stands for a size where the window is.
    """
    sizes = [-1 if position == dim.position else inside(size) for position, size in enumerate(dim.sizes)]
    return builder.call(aten.view.default, node, [*sizes, builder.size(node, 1)])


def flatten_again(builder: NodeBuilder, window: fx.Node, dim: Flattened) -> fx.Node:
    """The window of an unflattened live-in as the product takes it."""
    return builder.call(aten.reshape.default, window, [-1, builder.size(window, len(dim.sizes))])


def _values(args: Any) -> Any:
    return fx.map_arg(args, value_of)


def copy_chunk(
    builder: NodeBuilder,
    region: Region,
    live_in: LiveIn,
    window_steps: Any,
    window_start: Any,
) -> Mapping[fx.Node, fx.Node]:
    """Copy the region's nodes for one window.

    Args:
        builder: where the copies go.
        region: what to copy.
        live_in: gives the node that stands for an outside value, cut along a dim or whole.
        window_steps: what replaces the row count in size arguments.
        window_start: the window's first row.

    Returns:
        Member -> its copy.
    """
    copies: dict[fx.Node, fx.Node] = {}
    for node in region.nodes:
        flow, args = region.flows[node], Call(node).args

        def chunk_of(arg: Any, dim: Any) -> Any:
            if not isinstance(arg, fx.Node) or arg is window_steps:
                return arg
            if arg in copies:
                return copies[arg]
            return live_in(arg, dim if isinstance(dim, RowDim) else None)

        new_args: dict[str, Any] = {}
        for name, arg in args.items():
            dim = flow.inputs.get(name)
            if isinstance(arg, (list, tuple)):
                dims = dim if isinstance(dim, tuple) else (dim,) * len(arg)
                items = list(arg)
                if name in flow.resized:
                    items[flow.resized[name]] = window_steps  # the whole's row count may not exist in a loop's body
                new_args[name] = [chunk_of(item, d) for item, d in zip(items, dims, strict=True)]
            else:
                new_args[name] = chunk_of(arg, dim)
        positional, keyword = _as_written(node, new_args)
        if flow.in_window is not None:
            keyword.update(row_dim=region.row_dims[node], start=window_start)
        copies[node] = builder.call(flow.in_window or node.target, *positional, origin=node, **keyword)
    return copies


def _as_written(node: fx.Node, bound: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Arguments in the form the node had them: nothing defaulted is spelled out, so ``stable`` stays what it was."""
    names = list(bound)
    return [bound[name] for name in names[: len(node.args)]], {name: bound[name] for name in node.kwargs}
