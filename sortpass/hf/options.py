"""The options of the bridge: those of the backend, with defaults that leave eager results as they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from sortpass.config import EAGER_INNERS, OPTION_NAMES, ChunkConfig, unknown_option
from sortpass.sites import INDEX_BYTES

# transformers runs its processors eagerly: eager kernels, in regions that promise the same bits, leave tokens as they
# are without the bridge.
EAGER_DEFAULTS = {"inner": "aot_eager", "exactness": "bitwise"}


def read_options(given: Mapping[str, Any]) -> tuple[ChunkConfig, dict[str, Any]]:
    """The config, and the options for the backend: ours, and with ``inner="inductor"`` Inductor's.

    Raises:
        ConfigError: an option is wrong. One of Inductor's is looked at when it compiles.
    """
    options = dict(given)
    if options.get("inner", "aot_eager") in EAGER_INNERS:
        options = {**EAGER_DEFAULTS, **options}
    config = ChunkConfig.from_options({key: value for key, value in options.items() if key in OPTION_NAMES})
    for key in options:
        if key not in OPTION_NAMES and config.inner != "inductor":
            raise unknown_option(key)
    return config, options


def is_small(logits: torch.Tensor, config: ChunkConfig) -> bool:
    """Whether a sort of these would be left alone, so that a graph had nothing to offer."""
    return logits.numel() * (logits.element_size() + INDEX_BYTES) < config.min_bytes
