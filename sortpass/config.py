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
import re
from collections.abc import Callable, Mapping
from typing import Any

from sortpass.errors import ConfigError

SCOPES = ("auto", "region", "sort")
FORMS = ("auto", "unroll", "loop")
ON_MISS = ("ignore", "warn", "raise")
ON_OOM = ("raise", "shrink")
EXACTNESS = ("any", "bitwise")
ANCHORS = ("sort", "rowwise")
EAGER_INNERS = ("aot_eager", "eager")
"""Compilers that run a graph node by node, in its order."""

CHOICES = {"scope": SCOPES, "form": FORMS, "exactness": EXACTNESS, "on_miss": ON_MISS, "on_oom": ON_OOM}


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChunkConfig:
    """Options of ``torch.compile(..., backend="chunked_sort", options={...})``, ``rewrite`` and ``ChunkedSortPass``.

    Raises:
        ConfigError: a value has the wrong type, or is zero, negative or not one of the choices.
    """

    memory_budget: int | float | str | None = None
    """What one chunk may hold above inputs and outputs: ``"512MiB"``, a number of bytes, or a fraction below 1 of the
    device's free memory when the graph is compiled. None: 64 MiB on CPU, 1 GiB elsewhere. Of the row counts that fit,
    a good one for the device is chosen; a budget below one row's need gives one row and a warning."""

    row_chunk: int | None = None
    """Rows. The most rows (sorted sequences) one chunk works on; given, it decides and ``memory_budget`` does not.
    Fewer rows: lower peak, and below twice the number of CPU threads more time."""

    min_bytes: int = 16 * 2**20
    """Bytes. A sort whose values + indices are smaller is left alone, since a chunk loop would save little. 1 means
    every sort with more rows than ``row_chunk``."""

    scope: str = "auto"
    """``"region"`` chunks the row-independent neighbourhood of the sort as one; ``"sort"`` the sort alone, which on CPU
    saves nothing (its outputs are all the memory it needs) and on CUDA only the sort's scratch. ``"auto"``: the region,
    or the sort alone where its predicted peak is lower."""

    anchors: tuple[str, ...] | str = ("sort",)
    """What a region may start from. ``"sort"``: sorts, and ``topk`` where no sort is near. ``"rowwise"``: these, and
    ops that work inside of the rows of a large tensor (softmax, sum, argmax, cumsum, logsumexp) where that lowers the
    peak by ``min_bytes`` or more, as in a log-prob pass without a sort."""

    through_matmul: bool = False
    """Let a region take in the matrix product that makes its logits (``mm``, ``addmm``, ``bmm``; an ``lm_head``), or
    one that uses them up, so that they exist one window at a time. Results are ``close`` then: its last bits depend
    on the number of rows. Each window reads the weight again, so a window of few rows costs time."""

    recompute: bool = False
    """Compute the row-wise values of ``min_bytes`` or more that a forward makes (log-softmax, masks) once more in the
    backward, in windows, instead of keeping them for it, where that lowers the peak at the sizes it is compiled for.
    Their inputs (the logits) are kept, and autograd refuses a backward after a write into them. Costs the time of
    these ops. Needs ``anchors="rowwise"``; without gradients it changes nothing."""

    allow_rng: bool = False
    """Let a region take in ops that draw random numbers (``multinomial``, ``exponential_``, ``rand_like``, dropout), so
    that of a sampler only token ids leave it. Its exactness is ``"distribution"`` then: each window draws its own
    numbers, which have the same distribution, and other values for the same seed. Not so what Inductor computes from a
    seed (all but ``multinomial`` and a few): those are the same bits."""

    form: str = "auto"
    """``"loop"``: one body in a ``while_loop`` that writes into preallocated outputs. ``"unroll"``: explicit
    ``split -> body -> cat`` nodes; nodes and compile time grow with the number of chunks, and ``cat`` holds results
    twice. ``"auto"``: the one with the lower predicted peak."""

    force: bool = False
    """Rewrite also where the predicted peak is not lower than without. For a device whose sort takes scratch the
    model does not know (measure it: :func:`sortpass.probe_sort`), and for looking at the graph."""

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

    dump_dir: str | None = None
    """Folder. Each graph's text before and after, their diff and the report are written there, with a README that names
    the files."""

    on_miss: str = "ignore"
    """What to do when a forward or inference graph has no sort that was rewritten: ``"ignore"``, ``"warn"`` or
    ``"raise"`` (:class:`~sortpass.errors.NothingRewritten`)."""

    on_oom: str = "raise"
    """What to do when a compiled call runs out of memory. ``"raise"``: raise the error, naming the option to lower.
    ``"shrink"``: compile the graph again with half the rows a chunk, log a warning, and run the call again, down to one
    row; later calls start there, and from then on ``row_chunk`` decides. Only a graph that draws no random numbers,
    writes into none of its inputs and has no other effects is run again. For the backend only, since ``rewrite`` and
    ``ChunkedSortPass`` have no call to run again; and for inference and forward only: running out of memory in a
    backward is an error."""

    def __post_init__(self) -> None:
        for name in ("row_chunk", "min_bytes", "max_unroll"):
            if not (name == "row_chunk" and self.row_chunk is None):
                _check_positive_int(name, getattr(self, name))
        _check_budget(self.memory_budget)
        object.__setattr__(self, "anchors", _as_names("anchors", self.anchors, ANCHORS))
        for name in ("force", "through_matmul", "allow_rng", "recompute"):
            _check_bool(name, getattr(self, name))
        if self.recompute and "rowwise" not in self.anchors:
            raise ConfigError(
                f"option 'recompute' is True with anchors={self.anchors!r}; a backward has no sort to start from: add "
                "anchors='rowwise'"
            )
        for name, choices in CHOICES.items():
            _check_choice(name, getattr(self, name), choices)
        if not isinstance(self.dump_dir, (str, type(None))):
            raise ConfigError(
                f"option 'dump_dir' is {self.dump_dir!r} ({type(self.dump_dir).__name__}); expected a path"
            )
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
        """Text that differs whenever two configs could leave different graphs (or raise differently) for one input.

        ``on_oom`` is not in it: what a shrunk graph is compiled with differs in ``row_chunk``.
        """
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "on_oom"}
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


def _check_bool(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise ConfigError(f"option {name!r} is {value!r} ({type(value).__name__}); expected True or False")


def _as_names(name: str, value: object, choices: tuple[str, ...]) -> tuple[str, ...]:
    names = (value,) if isinstance(value, str) else value
    if not isinstance(names, (tuple, list)) or not names:
        expected = f"expected one or more of {', '.join(map(repr, choices))}"
        raise ConfigError(f"option {name!r} is {value!r} ({type(value).__name__}); {expected}")
    for item in names:
        _check_choice(name, item, choices)
    return tuple(names)


def _check_budget(value: object) -> None:
    expected = "expected bytes (an integer of at least 1, or text such as '512MiB') or a fraction between 0 and 1"
    if isinstance(value, str):
        if parse_bytes_maybe(value) is None:
            raise ConfigError(f"option 'memory_budget' is {value!r}; {expected}; units are {', '.join(UNITS)}")
    elif isinstance(value, bool) or not isinstance(value, (int, float, type(None))):
        raise ConfigError(f"option 'memory_budget' is {value!r} ({type(value).__name__}); {expected}")
    elif isinstance(value, int) and value < 1 or isinstance(value, float) and not 0 < value < 1:
        raise ConfigError(f"option 'memory_budget' is {value}; {expected}")


UNITS = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "KB": 10**3, "MB": 10**6, "GB": 10**9, "B": 1}


def parse_bytes_maybe(text: str) -> int | None:
    """Bytes of text such as ``"512MiB"`` or ``"1.5 GB"``; None where it is no such text, or less than a byte.

    >>> parse_bytes_maybe("1.5 KiB")
    1536
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]+)\s*", text)
    unit = None if match is None else {name.lower(): size for name, size in UNITS.items()}.get(match[2].lower())
    return None if match is None or unit is None else int(float(match[1]) * unit) or None


def format_bytes(count: int) -> str:
    """Bytes for people: ``"64.0 MiB"``."""
    for unit in ("GiB", "MiB", "KiB"):
        if abs(count) >= UNITS[unit]:
            return f"{count / UNITS[unit]:.1f} {unit}"
    return f"{count} B"


def _check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value in choices:
        return
    near = difflib.get_close_matches(str(value), choices, n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    raise ConfigError(f"option {name!r} is {value!r}{hint}; choices are: {', '.join(map(repr, choices))}")
