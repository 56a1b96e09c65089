"""Every torch internal the pass relies on beyond public FX, in one place.

Tried with torch 2.13.0 and 2.14.1. Each entry says what to do when it breaks.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import sympy
import torch
import torch.fx as fx
from torch._dynamo.guards import GuardBuilder
from torch._dynamo.source import GlobalStateSource
from torch._functorch._aot_autograd.descriptors import InputMutationAOTOutput
from torch._functorch.partitioners import get_default_op_list
from torch._higher_order_ops.while_loop import while_loop_op as while_loop_op  # emit/loop.py is the only caller
from torch._inductor.custom_graph_pass import CustomGraphPass as CustomGraphPass  # the hook's base class
from torch._inductor.custom_graph_pass import CustomPartitionerFn as CustomPartitionerFn  # and the partitioner's
from torch._prims_common import (
    ELEMENTWISE_TYPE_PROMOTION_KIND,
    compute_elementwise_output_logical_to_physical_perm,
    elementwise_dtypes,
    is_contiguous_or_false,
    is_non_overlapping_and_dense_or_false,
)
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.fx.experimental.symbolic_shapes import (
    StrictMinMaxConstraint,
    free_unbacked_symbols,
    statically_known_true,
    sym_and,
)
from torch.fx.passes.fake_tensor_prop import FakeTensorProp
from torch.utils._python_dispatch import _disable_current_modes

log = logging.getLogger(__name__)


def fake_mode_of(gm: fx.GraphModule) -> FakeTensorMode | None:
    """The one fake tensor mode that the graph's ``meta["val"]`` live in.

    Dynamo, AOT autograd, functorch and export leave all values in one mode. ``make_fx`` with real inputs makes a mode
    per value; those graphs are propagated once through a new mode. A graph without shapes gives None, and so does one
    that a fake kernel gets wrong: that of ``isin`` has other strides than the real one, which may not allow a view.
    """
    modes = {id(v.fake_mode): v.fake_mode for node in gm.graph.nodes for v in fake_values(node)}
    if len(modes) == 1:
        return next(iter(modes.values()))
    placeholders = gm.graph.find_nodes(op="placeholder")
    if not modes or any("val" not in node.meta for node in placeholders):
        return None
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    before = {node: node.meta["val"] for node in gm.graph.nodes if "val" in node.meta}
    with mode:
        inputs = [_refaked(node.meta["val"]) for node in placeholders]
    try:
        FakeTensorProp(gm, mode).propagate_dont_convert_inputs(*inputs)
    except Exception as error:  # a kernel may raise anything
        log.debug("the graph does not run with fake tensors: %s", error)
        for node in gm.graph.nodes:
            if node in before:
                node.meta["val"] = before[node]
            else:
                node.meta.pop("val", None)
        return None
    for node in gm.graph.find_nodes(op="get_attr"):
        if isinstance(attr := _attribute(gm, str(node.target)), torch.Tensor):
            node.meta["val"] = mode.from_tensor(attr)
    return mode


def fake_values(node: fx.Node) -> Iterator[FakeTensor]:
    """The fake tensors among a node's value."""
    val = node.meta.get("val")
    for item in val if isinstance(val, (tuple, list)) else (val,):
        if isinstance(item, FakeTensor):
            yield item


def _refaked(val: Any) -> Any:
    if not isinstance(val, torch.Tensor):
        return val
    return torch.empty_strided(val.shape, val.stride(), dtype=val.dtype, device=val.device)


def _attribute(gm: fx.GraphModule, target: str) -> Any:
    obj: Any = gm
    for part in target.split("."):
        obj = getattr(obj, part)
    return obj


def size_hint_maybe(size: int | torch.SymInt) -> int | None:
    """The size at compile time, without a guard; None for an unbacked size. (``SymNode.hint``.)"""
    if isinstance(size, int):
        return size
    if free_unbacked_symbols(size):
        return None
    hint = size.node.hint
    return None if hint is None else int(hint)


def symbol_hints(size: int | torch.SymInt) -> dict[Any, int]:
    """The compile-time value of each symbol in a size, without a guard. (``ShapeEnv.create_symintnode``.)"""
    if not isinstance(size, torch.SymInt):
        return {}
    shape_env = size.node.shape_env
    pairs = ((s, size_hint_maybe(shape_env.create_symintnode(s, hint=None))) for s in size.node.expr.free_symbols)
    return {symbol: hint for symbol, hint in pairs if hint is not None}


def upper_bound_maybe(size: int | torch.SymInt) -> int | None:
    """The largest value a size can have, without a guard; None where it has no bound.

    ``mark_dynamic(x, 0, max=4096)`` and ``torch.export.Dim("rows", max=4096)`` give bounds. (``ShapeEnv.bound_sympy``;
    a dim without one has ``int_oo``, or ``sys.maxsize`` and less when it was saved and loaded.)
    """
    if not isinstance(size, torch.SymInt):
        return size
    upper = size.node.shape_env.bound_sympy(size.node.expr).upper
    return int(upper) if upper.is_number and upper.is_finite and upper < _NO_BOUND else None


def unbacked_ranges(graph: fx.Graph) -> dict[Any, Any]:
    """Each unbacked symbol a graph defines, with its range, as ``ExportedProgram.range_constraints`` wants them.

    A program that was saved without them cannot be loaded ("vr must not be None for symbol u0").
    """
    bound = [(node.meta["val"], symbol) for node in graph.nodes for symbol in node.meta.get("unbacked_bindings") or ()]
    return {
        symbol: value.node.shape_env.var_to_range[symbol] for value, symbol in bound if isinstance(value, torch.SymInt)
    }


_NO_BOUND = 2**48  # rows; more than any memory holds, less than any stand-in for "unbounded"


def in_forward_ad() -> bool:
    """Whether a graph is being compiled for dual tensors; Dynamo will ask again before each call.

    Dynamo has a guard on ``forward_ad.dual_level`` and does not always install it.
    """
    context = torch._guards.TracingContext.try_get()
    if context is not None:
        context.guards_context.dynamo_guards.add(GlobalStateSource().make_guard(GuardBuilder.DUAL_LEVEL))
    return torch.autograd.forward_ad._current_level >= 0


def is_compile_off() -> bool:
    """Whether a call of a compiled function would not compile it now, but run it, raise, or break a trace or capture.

    ``torch.compiler.set_stance`` has no getter (``torch._dynamo.eval_frame._stance``).
    """
    if torch.compiler.is_compiling() or torch._dynamo.config.disable:
        return True
    if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        return True
    return torch._dynamo.eval_frame._stance.stance != "default"


def graph_break_reasons() -> list[str]:
    """The first line of each graph break Dynamo has met. (``torch._dynamo.utils.graph_break_reasons``.)"""
    reasons = torch._dynamo.utils.graph_break_reasons
    return [str(reason.reason).strip().split("\n")[0] for reason in reasons if reason.graph_break]


def is_tracing_structured() -> bool:
    """Whether torch writes a structured trace (``TORCH_TRACE=dir``)."""
    return bool(torch._logging._internal.trace_log.handlers)


def trace_artifact(name: str, text: str) -> None:
    """Add a text to the structured trace; ``tlparse`` lists it under the compile it belongs to."""
    torch._logging.trace_structured(
        "artifact", metadata_fn=lambda: {"name": name, "encoding": "string"}, payload_fn=lambda: text
    )


def may_guard(*sizes: int | torch.SymInt) -> bool:
    """Whether a guard may be added on these sizes.

    Not on a dim given a range by ``mark_dynamic(x, 0, min=2, max=4096)``: Dynamo then refuses, as a
    ``ConstraintViolationError``, every guard that some size in the range would fail. (``ShapeEnv.tracked_fakes``.)
    """
    symbolic = [size for size in sizes if isinstance(size, torch.SymInt)]
    ranged: set[Any] = set()
    for tracked in (symbolic[0].node.shape_env.tracked_fakes or ()) if symbolic else ():
        constraints = getattr(tracked.symbolic_context, "constraint_sizes", None) or ()
        dims = tracked.fake.shape if isinstance(tracked.fake, torch.Tensor) else ()
        for dim, constraint in zip(dims, constraints, strict=False):
            if isinstance(constraint, StrictMinMaxConstraint) and isinstance(dim, torch.SymInt):
                ranged |= dim.node.expr.free_symbols
    return not any(size.node.expr.free_symbols & ranged for size in symbolic)


def is_exported(gm: fx.GraphModule) -> bool:
    """Whether a graph module is that of an ``ExportedProgram``, by what the exporter leaves in its ``meta``.

    ``inline_constraints``: from ``export`` on, through every ``run_decompositions``; ``treespec_namedtuple_fields``:
    after ``load``. No other tracer writes either. If a torch version stops, ``rewrite(program)`` still knows.
    """
    return not {"inline_constraints", "treespec_namedtuple_fields"}.isdisjoint(gm.meta)


def overwritten_inputs(joint: fx.Graph) -> set[fx.Node]:
    """The inputs of a joint graph that its forward writes into, in the graph or after it.

    AOT autograd describes inputs and outputs in ``meta["desc"]``. A write that is described otherwise than as one into
    an input of this graph, as those into parts of tensor subclasses are, counts as one into every input.
    """
    inputs = joint.find_nodes(op="placeholder")
    by_desc = {node.meta.get("desc"): node for node in inputs}
    updates = [desc for desc in _output_descs(joint) if "InputMutation" in repr(desc)]
    if not all(isinstance(desc, InputMutationAOTOutput) and desc.mutated_input in by_desc for desc in updates):
        return set(inputs)
    copies = joint.find_nodes(op="call_function", target=torch.ops.aten.copy_.default)
    return {*(by_desc[desc.mutated_input] for desc in updates), *{node.args[0] for node in copies}.intersection(inputs)}


def num_input_updates(graph: fx.Graph) -> int:
    """How many outputs of a joint graph or a forward are new values of inputs; they come first."""
    return sum(isinstance(desc, InputMutationAOTOutput) for desc in _output_descs(graph))


def _output_descs(graph: fx.Graph) -> Sequence[Any]:
    return graph.output_node().meta.get("desc") or ()


def is_compute_intensive(node: fx.Node) -> bool:
    """Whether torch's partitioner never repeats the op for its cost: matmuls, convolutions, attention.

    (``get_default_op_list().is_compute_intensive``.)
    """
    return get_default_op_list().is_compute_intensive(node)


def is_dropped_by_compilers(op: Any) -> bool:
    """Whether Inductor may find a call of the op to do nothing, and use its argument in its place.

    (``torch._inductor.fx_passes.post_grad.noop_registry``. If that goes, look at ``remove_noop_ops``.)
    """
    from torch._inductor.fx_passes.post_grad import noop_registry  # a second of imports, done where Inductor compiles

    return op in noop_registry


def guard_all(*conditions: Any) -> bool:
    """Decide a conjunction at compile time, with a single guard on symbolic sizes.

    One guard, not one a condition: with several, the ways in which the conjunction can fail would each get a compile
    of their own.
    """
    return bool(sym_and(*conditions)) if len(conditions) > 1 else bool(conditions[0])


def known_true(condition: Any) -> bool:
    """Whether a condition on sizes is known to hold, without adding a guard."""
    return statically_known_true(condition)


def number_of(tensor: torch.Tensor) -> int | float | None:
    """The number in a real tensor of one element, also while a fake tensor mode is on; None of any other tensor."""
    if isinstance(tensor, FakeTensor) or tensor.numel() != 1:
        return None
    with unset_fake_temporarily():
        return tensor.item()


def promoted_dtype(numbers: Sequence[Any]) -> torch.dtype:
    """The dtype in which a pointwise op of these tensors and Python numbers computes."""
    return elementwise_dtypes(*numbers, type_promotion_kind=ELEMENTWISE_TYPE_PROMOTION_KIND.DEFAULT)[1]


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether the tensor fills its memory without holes or overlap, in any order of dims."""
    return bool(is_non_overlapping_and_dense_or_false(tensor))


def is_contiguous(tensor: torch.Tensor) -> bool:
    """Whether the tensor is known to lie in memory row by row, without adding a guard."""
    return bool(is_contiguous_or_false(tensor))


def physical_order(tensor: torch.Tensor) -> list[int]:
    """The dims from the slowest to the fastest varying in memory."""
    perm, _ = compute_elementwise_output_logical_to_physical_perm(tensor)
    return list(perm)


@contextlib.contextmanager
def tracing_items(mode: FakeTensorMode) -> Iterator[None]:
    """Evaluate nodes that read a loop counter, or the bound of a piece, with ``.item()``.

    ``allow_scalar_outputs`` stays on for this compile's mode: Inductor evaluates the ``while_loop`` once more after the
    pass (``FakeTensorUpdater``) and would fail with ``DataDependentOutputException``. The nodes that
    bind the new symbols say so themselves (``unbacked_bindings``); nothing else must wait for them.
    """
    if mode.shape_env is None:
        mode.shape_env = torch.fx.experimental.symbolic_shapes.ShapeEnv()
        mode.static_shapes = False
    mode.allow_scalar_outputs = True
    with mode, mode.shape_env.ignore_fresh_unbacked_symbols():
        yield


@contextlib.contextmanager
def refusals_unlogged() -> Iterator[None]:
    """Keep a fake kernel's refusal from printing a traceback: it is caught, and the op stays outside the region.

    (``torch._subclasses.fake_tensor`` logs at ERROR before it raises.)
    """
    level = _fake_tensor_log.level
    _fake_tensor_log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        _fake_tensor_log.setLevel(level)


_fake_tensor_log = logging.getLogger("torch._subclasses.fake_tensor")


def size_nodes(graph: fx.Graph, sizes: Iterable[int | torch.SymInt], before: fx.Node) -> list[Any]:
    """FX nodes (or plain ints) for sizes, made at the graph's insertion point, in front of ``before``.

    A raw ``SymInt`` in a node's arguments becomes a ``NameError`` in the generated code. A size that some earlier node
    is or has is read off there; any other expression is computed by ``materialize_symints`` (new in torch 2.13).

    Raises:
        UnknownSize: no input of the graph tells a symbol (in a loop's body, which sees windows only).
    """
    earlier = list(itertools.takewhile(lambda node: node is not before, graph.nodes))
    found = [size if isinstance(size, int) else _size_node_maybe(graph, size, earlier) for size in sizes]
    missing = [size for size, node in zip(sizes, found, strict=True) if node is None and isinstance(size, torch.SymInt)]
    known = _known_symbols(graph)
    for size in missing:
        if unknown := size.node.expr.free_symbols - known:
            raise UnknownSize(f"no input tells {', '.join(map(str, unknown))}, which the size {size} depends on")
    made = iter(graph.materialize_symints(missing))
    fill_values(graph)
    return [next(made) if node is None else node for node in found]


class UnknownSize(Exception):
    """A size that a graph has no way to compute."""


def _known_symbols(graph: fx.Graph) -> set[Any]:
    """The symbols ``materialize_symints`` can compute; it asserts that it is asked for no other."""
    known: set[Any] = set()
    for node in graph.nodes:
        known |= set(node.meta.get("unbacked_bindings") or ())
        value = node.meta.get("val")
        sizes = value.shape if isinstance(value, torch.Tensor) else (value,)
        for expr in (size.node.expr for size in sizes if node.op == "placeholder" and isinstance(size, torch.SymInt)):
            # A symbol, or a multiple of one; a tensor of s - 1 rows tells nothing.
            if expr.is_Symbol or (isinstance(value, torch.Tensor) and expr.is_Mul and len(expr.args) == 2):
                known |= expr.free_symbols if len(expr.free_symbols) == 1 else set()
    return known


def _size_node_maybe(graph: fx.Graph, size: torch.SymInt, earlier: list[fx.Node]) -> fx.Node | None:
    for node in earlier:
        value = node.meta.get("val")
        if isinstance(value, torch.SymInt) and value.node.expr == size.node.expr:
            return node
    for node in earlier:
        value = node.meta.get("val")
        for dim, s in enumerate(value.shape if isinstance(value, torch.Tensor) else ()):
            if isinstance(s, torch.SymInt) and s.node.expr == size.node.expr:
                return _sym_size(graph, node, dim)
    return None


def _sym_size(graph: fx.Graph, node: fx.Node, dim: int) -> fx.Node:
    size = graph.call_function(torch.ops.aten.sym_size.int, (node, dim))
    size.meta["val"] = node.meta["val"].shape[dim]
    return size


def fill_values(graph: fx.Graph) -> None:
    """Give size arithmetic that has no value yet (``materialize_symints``, proxies) its value."""
    for node in graph.nodes:
        if node.op == "call_function" and "val" not in node.meta and node.target.__module__ == "_operator":
            node.meta["val"] = node.target(*fx.map_arg(node.args, lambda arg: arg.meta["val"]))


def captured_inputs(gm: fx.GraphModule) -> list[Any]:
    """The fake inputs that Dynamo captured a graph with. Backends get the real ones, which nobody may keep.

    (``meta["example_value"]`` of the placeholders; None each in a graph that is not Dynamo's.)
    """
    return [node.meta.get("example_value") for node in gm.graph.find_nodes(op="placeholder")]


@contextlib.contextmanager
def compiling_again(fakes: Sequence[Any]) -> Iterator[None]:
    """Compile a graph that Dynamo captured earlier, while one of its calls runs.

    The shape environment is the same, so sizes stay as dynamic as they were. (``torch._guards.tracing``, as where AOT
    autograd compiles a backward on its first call; ``compile_lock`` and ``_disable_current_modes``, as Dynamo does.)

    Args:
        fakes: see :func:`captured_inputs`.
    """
    mode = next((fake.fake_mode for fake in fakes if isinstance(fake, FakeTensor)), None)
    context = torch._guards.TracingContext(mode)
    with torch._dynamo.convert_frame.compile_lock, _disable_current_modes(), torch._guards.tracing(context):
        yield


def writes_outside_graph() -> bool:
    """Whether what AOT autograd compiled last under :func:`compiling_again` writes into inputs after the graph ran.

    It does where gradients are wanted, and for writes that change more than values. (``ViewAndMutationMeta``.)
    """
    metadata = torch._guards.TracingContext.get().fw_metadata
    return metadata is not None and metadata.num_mutated_inp_runtime_indices > 0


def guards_of(fakes: Sequence[Any]) -> tuple[Any, ...]:
    """The guards so far on the sizes of these inputs. (``ShapeEnv.guards``, which grows also when frozen.)"""
    symbolic = next((size for fake in fakes for size in _sizes(fake) if isinstance(size, torch.SymInt)), None)
    return () if symbolic is None else tuple(guard.expr for guard in symbolic.node.shape_env.guards)


def guards_hold(guards: Sequence[Any], fakes: Sequence[Any], args: Sequence[Any]) -> bool:
    """Whether guards hold for these real arguments. Dynamo checks only those added while it compiled."""
    if not guards:
        return True
    both = zip(fakes, args, strict=True)
    pairs = itertools.chain.from_iterable(zip(_sizes(fake), _sizes(arg), strict=False) for fake, arg in both)
    symbolic = ((size.node.expr, value) for size, value in pairs if isinstance(size, torch.SymInt))
    values = {expr: sympy.Integer(value) for expr, value in symbolic if expr.is_Symbol}
    return all(guard.xreplace(values) == sympy.true for guard in guards)


def _sizes(value: Any) -> Sequence[Any]:
    if isinstance(value, torch.Tensor):
        return value.shape
    return (value,) if isinstance(value, (int, torch.SymInt)) else ()
