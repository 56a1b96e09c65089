"""The torch.compile backend: options in, the rewritten graph handed to the inner compiler.

inner="inductor"    compile_fx, with the pass in ``post_grad_custom_pre_pass``, after whatever the user set there
anything else       AOT autograd, whose forward, backward and inference compilers run the pass first
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx as fx
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.backends.debugging import boxed_nop
from torch._dynamo.backends.registry import lookup_backend
from torch._functorch.aot_autograd import make_boxed_func
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._inductor.custom_graph_pass import get_custom_graph_passes

from sortpass.chunk_pass import ChunkedSortPass
from sortpass.config import OPTION_NAMES, ChunkConfig, unknown_option
from sortpass.errors import ConfigError
from sortpass.fallback import compile_rewritten, compile_with_hook, explain_out_of_memory
from sortpass.recompute import RecomputePartitioner, loss_decompositions
from sortpass.shrink import ShrinkingCall


def chunked_sort(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: dict[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """Backend ``"chunked_sort"`` of :func:`torch.compile`: large sorts and their regions run in row chunks.

    Args:
        gm: the graph Dynamo captured.
        example_inputs: its (fake) inputs.
        options: the fields of :class:`sortpass.ChunkConfig`; with ``inner="inductor"`` also any Inductor option.
        mode: a mode of the inductor inner (``"reduce-overhead"``, ``"max-autotune"``, ...).

    Returns:
        The compiled function.

    Raises:
        ConfigError: an option or the mode is wrong. Dynamo wraps it in ``BackendCompilerFailed``.

    Example:
        >>> step = torch.compile(sample_step, backend="chunked_sort", options={"row_chunk": 64})
    """
    ours = {key: value for key, value in (options or {}).items() if key in OPTION_NAMES}
    theirs = {key: value for key, value in (options or {}).items() if key not in OPTION_NAMES}
    config = ChunkConfig.from_options(ours)

    def compile_graph(gm: fx.GraphModule, example_inputs: Sequence[Any], config: ChunkConfig) -> Callable[..., Any]:
        if config.inner == "inductor":
            return _compile_inductor(gm, example_inputs, config, theirs, mode)
        for key in theirs:
            raise unknown_option(key)
        if mode is not None:
            raise ConfigError(f"mode={mode!r} is for inner='inductor'; inner={config.inner!r} has no modes")
        return _compile_aot(gm, example_inputs, config)

    if config.on_oom == "raise":
        return explain_out_of_memory(compile_graph(gm, example_inputs, config), config)
    return ShrinkingCall(
        gm,
        example_inputs,
        config,
        compile_graph,
        lambda gm, example_inputs, look_at: aot_graphs(look_at, config)(gm, example_inputs),
    )


def _compile_inductor(
    gm: fx.GraphModule, example_inputs: Sequence[Any], config: ChunkConfig, options: dict[str, Any], mode: str | None
) -> Callable[..., Any]:
    # Imported here because importing Inductor takes seconds and other inner compilers do not need it.
    from torch._inductor import config as inductor_config
    from torch._inductor import list_mode_options
    from torch._inductor.compile_fx import compile_fx, compile_fx_inner

    known = inductor_config.get_config_copy()
    patches: dict[str, Any] = {}
    if mode is not None:
        if mode not in list_mode_options():
            raise ConfigError(f"unknown mode {mode!r}; choices are: {', '.join(map(repr, list_mode_options()))}")
        patches.update(list_mode_options(mode))
    for key, value in options.items():
        name = key.replace("-", "_")
        if name not in known:
            raise unknown_option(key, also=tuple(known))
        patches[name] = value
    theirs = patches.get("post_grad_custom_pre_pass", inductor_config.post_grad_custom_pre_pass)
    ours = ChunkedSortPass(**_as_options(config))
    patches["post_grad_custom_pre_pass"] = (*get_custom_graph_passes(theirs), ours)
    if config.recompute:
        own = patches.get("custom_partitioner_fn", inductor_config.custom_partitioner_fn)
        patches["custom_partitioner_fn"] = RecomputePartitioner.around(own, config)
    inner_compile = compile_with_hook(compile_fx_inner, config)
    return compile_fx(gm, list(example_inputs), inner_compile=inner_compile, config_patches=patches)  # type: ignore[return-value]


def _compile_aot(gm: fx.GraphModule, example_inputs: Sequence[Any], config: ChunkConfig) -> Callable[..., Any]:
    return _aot_graph(gm, example_inputs, compile_rewritten(_inner_compiler(config.inner), config), config)


def aot_graphs(look_at: Callable[..., Any], config: ChunkConfig) -> Callable[..., Any]:
    """A Dynamo backend that hands ``look_at`` the ATen graphs that the pass would get, and runs what it returns."""
    decompositions = None
    if config.inner == "inductor":
        from torch._inductor.decomposition import select_decomp_table

        decompositions = select_decomp_table()
    return lambda gm, example_inputs: _aot_graph(gm, example_inputs, look_at, config, decompositions)


def _aot_graph(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    compiler: Callable[..., Any],
    config: ChunkConfig,
    decompositions: dict[Any, Callable[..., Any]] | None = None,
) -> Callable[..., Any]:
    wants_gradients = torch.is_grad_enabled() and any(getattr(v, "requires_grad", False) for v in example_inputs)
    # As torch's own aot_eager: without these, whole and chunked would differ in what is saved and copied back.
    partition: Callable[..., Any] = min_cut_rematerialization_partition
    if config.recompute and wants_gradients:
        partition = RecomputePartitioner(config)
        decompositions = decompositions or loss_decompositions()
    return aot_autograd(
        fw_compiler=compiler,
        decompositions=decompositions,
        partition_fn=partition,
        keep_inference_input_mutations=True,
    )(gm, example_inputs)


def _inner_compiler(inner: str | Callable[..., Any]) -> Callable[..., Any]:
    """The compiler for an ATen graph. The graph comes out of AOT autograd, so ``aot_eager`` has only to run it."""
    if inner == "aot_eager":
        return boxed_nop
    compiler = inner if callable(inner) else _registered_backend(inner)
    # AOT autograd calls with one list that it clears, so that inputs can be freed early; a Dynamo backend's result
    # takes the inputs one by one, whatever its _boxed_call says.
    return lambda gm, example_inputs: make_boxed_func(compiler(gm, example_inputs))


def _registered_backend(name: str) -> Callable[..., Any]:
    try:
        return lookup_backend(name)
    except torch._dynamo.exc.InvalidBackend as error:
        names = ", ".join(map(repr, torch._dynamo.list_backends(None)))
        raise ConfigError(
            f"option 'inner' is {name!r}, which is no registered backend; choices are: {names}"
        ) from error


def _as_options(config: ChunkConfig) -> dict[str, Any]:
    return {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
