"""Put the bridge on a model, and take it off again.

``generate`` asks ``model._get_logits_processor`` for the list it applies at each step; continuous batching asks
``model.init_continuous_batching`` for its manager. These two are replaced, on the instance: no class and no other model
is touched.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import types
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import transformers
from transformers.generation.logits_process import LogitsProcessorList

from sortpass.hf.options import read_options
from sortpass.hf.processors import Bridge, ChunkedProcessorList
from sortpass.hf.report import BridgeError, GenerationReport

# Private, yet the same in every version from the oldest supported on, and what subclasses override. If a version lacks
# it, enable says so; look for what `generate` calls to build its `prepared_logits_processor`.
HOOK = "_get_logits_processor"
BATCHING_HOOK = "init_continuous_batching"  # public
OLDEST = 5  # major version; before, `generate` calls its own pieces in other ways
TRIED = "5.0.0 and 5.24.0"


@dataclasses.dataclass
class _Hooked:
    """A model's bridges, the last of which serves; and what stood in its ``__dict__`` under the hooks' names."""

    bridges: list[Bridge]
    previous: dict[str, Any]


_hooked: weakref.WeakKeyDictionary[torch.nn.Module, _Hooked] = weakref.WeakKeyDictionary()
_enabled: weakref.WeakKeyDictionary[torch.nn.Module, list[Bridge]] = weakref.WeakKeyDictionary()
_lock = threading.RLock()


def enable(model: Any, **options: Any) -> GenerationReport:
    """Run the logits processors of a model's ``generate`` calls in row chunks, until :func:`disable`.

    Args:
        model: a model that can ``generate``, one that wraps such models (PEFT, ``torch.compile``), or a ``pipeline``.
        options: the fields of :class:`sortpass.ChunkConfig`, and with ``inner="inductor"`` also Inductor's. Here
            ``inner`` is ``"aot_eager"`` where not given, and ``exactness`` then ``"bitwise"``: tokens and scores are
            those of the same call without the bridge.

    Returns:
        A report that fills as ``generate`` runs.

    Raises:
        ConfigError: an option is wrong.
        BridgeError: there is nothing in ``model`` that generates, or transformers is too old, or lacks the hook.

    Example:
        >>> report = sortpass.hf.enable(model, memory_budget="256MiB")
        >>> model.generate(**inputs, do_sample=True, top_p=0.9)
        >>> sortpass.hf.disable(model)
    """
    module = _module_of(model)
    bridge = _new_bridge(options)
    with _lock:
        _attach(module, bridge)
        _enabled.setdefault(module, []).append(bridge)
    return bridge.report


def disable(model: Any) -> None:
    """Undo the last :func:`enable` of a model or pipeline.

    Raises:
        BridgeError: it is not enabled.
    """
    module = _module_of(model)
    with _lock:
        bridges = _enabled.get(module)
        if not bridges:
            raise BridgeError(f"disable: {type(model).__name__} is not enabled; call sortpass.hf.enable(model) first")
        _detach(module, bridges.pop())


@contextlib.contextmanager
def chunked_generation(model: Any, **options: Any) -> Iterator[GenerationReport]:
    """:func:`enable` for a ``with`` block; everything is as before at its end, after an error too.

    Other threads that use the same model meanwhile are chunked as well; their results are the same. Blocks of several
    threads may overlap: the model is restored when the last one ends.

    Example:
        >>> with sortpass.hf.chunked_generation(model, row_chunk=64) as report:
        ...     model.generate(**inputs, do_sample=True, top_p=0.9)
        >>> print(report)
    """
    module = _module_of(model)
    bridge = _new_bridge(options)
    _attach(module, bridge)
    try:
        yield bridge.report
    finally:
        _detach(module, bridge)


def generate(model: Any, *args: Any, chunk_options: Mapping[str, Any] | None = None, **kwargs: Any) -> Any:
    """One ``model.generate(*args, **kwargs)``, or one call of a pipeline, with the options of :func:`enable`.

    Example:
        >>> sortpass.hf.generate(model, input_ids, do_sample=True, top_p=0.9, chunk_options={"row_chunk": 64})
    """
    with chunked_generation(model, **(chunk_options or {})):
        return (model if isinstance(model, transformers.Pipeline) else model.generate)(*args, **kwargs)


def _new_bridge(options: Mapping[str, Any]) -> Bridge:
    config, given = read_options(options)
    return Bridge(config, given, GenerationReport())


def _module_of(model: Any) -> torch.nn.Module:
    module = model.model if isinstance(model, transformers.Pipeline) else model
    if int(transformers.__version__.split(".")[0]) < OLDEST:
        raise BridgeError(
            f"transformers {transformers.__version__} is too old; expected {OLDEST}.0 or newer (tried with {TRIED})"
        )
    if not isinstance(module, torch.nn.Module):
        raise BridgeError(f"expected a model or a pipeline, got {type(model).__name__}")
    if not _generators(module):
        raise BridgeError(
            f"{type(module).__name__} has no module with `generate` and `{HOOK}`, which the bridge needs "
            f"(transformers {transformers.__version__}; tried with {TRIED})"
        )
    return module


def _generators(module: torch.nn.Module) -> list[torch.nn.Module]:
    """Every module that generates: the model itself, or models inside of it that it delegates to."""
    return [m for m in module.modules() if isinstance(m, transformers.GenerationMixin) and hasattr(m, HOOK)]


def _attach(module: torch.nn.Module, bridge: Bridge) -> None:
    with _lock:
        for generator in _generators(module):
            if generator not in _hooked:
                previous = {name: generator.__dict__[name] for name in _HOOKS if name in generator.__dict__}
                _hooked[generator] = _Hooked([], previous)
                for name, hook in _HOOKS.items():
                    # A bound method, not a closure: a deep copy of the model gets one bound to itself.
                    generator.__dict__[name] = types.MethodType(hook, generator)
            _hooked[generator].bridges.append(bridge)


def _detach(module: torch.nn.Module, bridge: Bridge) -> None:
    with _lock:
        bridge.active = False
        for generator in [m for m in module.modules() if m in _hooked]:
            hooked = _hooked[generator]
            hooked.bridges = [other for other in hooked.bridges if other is not bridge]
            if not hooked.bridges:
                del _hooked[generator]
                for name in _HOOKS:
                    generator.__dict__.pop(name, None)
                generator.__dict__.update(hooked.previous)


def _processors_of(self: torch.nn.Module, *args: Any, **kwargs: Any) -> LogitsProcessorList:
    """Stands in for the hook: the model's own list, as a chunked one."""
    original, bridge = _original(self, HOOK)
    processors = original(*args, **kwargs)
    return processors if bridge is None else ChunkedProcessorList(processors, bridge)


def _manager_of(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Stands in for ``init_continuous_batching``."""
    original, bridge = _original(self, BATCHING_HOOK)
    manager = original(*args, **kwargs)
    if bridge is not None:
        # Imported here: the oldest versions have no such list, and their continuous batching runs as it is.
        with contextlib.suppress(ImportError):
            from sortpass.hf.batching import chunk_manager

            chunk_manager(manager, bridge)
    return manager


_HOOKS = {HOOK: _processors_of, BATCHING_HOOK: _manager_of}


def _original(module: torch.nn.Module, name: str) -> tuple[Callable[..., Any], Bridge | None]:
    """What the hook stands in for, and the bridge in use; None in a copy of the model, which nobody enabled."""
    with _lock:
        hooked = _hooked.get(module)
        if hooked is not None and name in hooked.previous:
            return hooked.previous[name], hooked.bridges[-1]
        return types.MethodType(getattr(type(module), name), module), None if hooked is None else hooked.bridges[-1]
