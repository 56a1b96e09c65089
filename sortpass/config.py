"""The options of the pass: parsed once, frozen, each with its unit and its cost.

>>> ChunkConfig.from_options({"row_chunk": 32}).row_chunk
32
>>> ChunkConfig.from_options({"row_chunks": 32})
Traceback (most recent call last):
...
sortpass.errors.ConfigError: unknown option 'row_chunks' (did you mean 'row_chunk'?); options are: row_chunk, ...
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Mapping
from typing import Any

from sortpass.errors import ConfigError

SCOPES = ("region", "sort")
FORMS = ("auto", "unroll", "loop")
ON_MISS = ("ignore", "warn", "raise")
EXACTNESS = ("any", "bitwise")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChunkConfig:
    """Options of ``torch.compile(..., backend="chunked_sort", options={...})``, ``rewrite`` and ``ChunkedSortPass``.

    Raises:
        ConfigError: a value has the wrong type, or is zero, negative or not one of the choices.
    """

    row_chunk: int = 64
    """Rows. The most rows (sorted sequences) one chunk works on. Fewer rows: lower peak, and below twice the number of
    CPU threads more time."""

    min_bytes: int = 16 * 2**20
    """Bytes. A sort whose values + indices are smaller is left alone, since a chunk loop would save little. 1 means
    every sort with more rows than ``row_chunk``."""

    scope: str = "region"
    """``"region"`` chunks the row-independent neighbourhood of the sort as one; ``"sort"`` the sort alone, which on CPU
    saves nothing (its outputs are all the memory it needs) and on CUDA only the sort's scratch."""

    form: str = "auto"
    """``"loop"``: one body in a ``while_loop`` that writes into preallocated outputs. ``"unroll"``: explicit
    ``split -> body -> cat`` nodes; nodes and compile time grow with the number of chunks, and ``cat`` holds results
    twice. ``"auto"``: the one with the lower predicted peak."""

    max_unroll: int = 64
    """Windows. ``form="unroll"`` declines a sort that needs more of them, since nodes and compile time grow with
    their number."""

    inner: str | Callable[..., Any] = "inductor"
    """The compiler that gets the rewritten graph: ``"inductor"``, ``"aot_eager"``, ``"eager"``, the name of any
    registered backend, or a callable ``(gm, example_inputs) -> callable``."""

    exactness: str = "any"
    """``"bitwise"`` declines a region whose results are not promised to be the same bits as whole, naming the op to
    blame; under ``inner="inductor"`` that is every softmax and sum. ``"any"`` rewrites it, and
    :attr:`SiteReport.exactness` says what is promised."""

    on_miss: str = "ignore"
    """What to do when a forward or inference graph has no sort that was rewritten: ``"ignore"``, ``"warn"`` or
    ``"raise"`` (:class:`~sortpass.errors.NothingRewritten`)."""

    def __post_init__(self) -> None:
        for name in ("row_chunk", "min_bytes", "max_unroll"):
            _check_positive_int(name, getattr(self, name))
        for name, choices in (("scope", SCOPES), ("form", FORMS), ("exactness", EXACTNESS), ("on_miss", ON_MISS)):
            _check_choice(name, getattr(self, name), choices)
        if not (isinstance(self.inner, str) and self.inner) and not callable(self.inner):
            raise ConfigError(
                f"option 'inner' is {self.inner!r} ({type(self.inner).__name__}); expected the name of a "
                "registered backend ('inductor', 'aot_eager', 'eager', ...) or a callable taking (gm, example_inputs)"
            )

    @classmethod
    def from_options(cls, options: Mapping[str, Any] | None) -> ChunkConfig:
        """Build a config from user-written options; an unknown key raises :class:`ConfigError` with a suggestion."""
        options = dict(options or {})
        for key in options:
            if key not in OPTION_NAMES:
                raise unknown_option(key)
        return cls(**options)

    def cache_key(self) -> str:
        """Text that differs whenever two configs could leave different graphs (or raise differently) for one input."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        if callable(self.inner):
            fields["inner"] = f"{getattr(self.inner, '__module__', '')}.{getattr(self.inner, '__qualname__', '')}"
        return repr(sorted(fields.items()))


OPTION_NAMES = tuple(f.name for f in dataclasses.fields(ChunkConfig))


def unknown_option(key: str, also: tuple[str, ...] = ()) -> ConfigError:
    """The error for an option nobody knows; ``also`` are other valid names to look for a near miss in."""
    near = difflib.get_close_matches(str(key), (*OPTION_NAMES, *also), n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    return ConfigError(f"unknown option {key!r}{hint}; options are: {', '.join(OPTION_NAMES)}")


def _check_positive_int(name: str, value: object) -> None:
    # bool is an int in Python; row_chunk=True would silently mean one row.
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"option {name!r} is {value!r} ({type(value).__name__}); expected an integer of at least 1")
    if value < 1:
        raise ConfigError(f"option {name!r} is {value}; expected an integer of at least 1")


def _check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value in choices:
        return
    near = difflib.get_close_matches(str(value), choices, n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    raise ConfigError(f"option {name!r} is {value!r}{hint}; choices are: {', '.join(map(repr, choices))}")
