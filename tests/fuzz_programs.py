"""Random programs around a sort or two, valid by construction, printable as code.

A program is drawn as a list of *genes*: a line with holes and a few bytes that say how to fill them. The lines are run
one by one on real tensors while the program is written, so a line that fails is simply left out, and a shrunk list of
genes is a program again. Every value nobody uses is returned, so nothing is dead code.
"""

from __future__ import annotations

import dataclasses
import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from fuzz_ops import CONSTANTS, COUNTS, DIMS, KINDS, LAYOUTS, SIDES, SORTS, VALUES, WEIGHTS
from hypothesis import strategies as st

MAX_ELEMENTS = 2000
MAX_DIMS = 4
MAX_ITEMS = 9  # of a split or unbind


@dataclasses.dataclass(frozen=True)
class Line:
    """One line of a program.

    Attributes:
        text: the code.
        kind: a key of ``KINDS``.
        pattern: the line with holes that it came from.
        exact: names of the values that must add up without rounding where it runs.
    """

    text: str
    kind: str
    pattern: str
    exact: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Functions:
    """What is checked: a function, and its inputs for a number of rows.

    Attributes:
        inputs: makes the inputs.
        program: returns a list of tensors.
        rows: the row count to trace and run with.
        other_rows: another to try where row counts are dynamic.
        exact_for: whether all sums are exact for given inputs; where not, they may round differently in chunks.
    """

    inputs: Callable[[int], list[Any]]
    program: Callable[..., list[Any]]
    rows: int
    other_rows: int
    exact_for: Callable[[list[Any]], bool] = lambda args: True


@dataclasses.dataclass(frozen=True)
class Program:
    """A function of tensors with ``n`` rows.

    Attributes:
        inputs: name -> expression in ``n``.
        lines: the body.
        outputs: names of the values returned.
        rows: the ``n`` it was written with.
        other_rows: another ``n`` to try where row counts are dynamic.
    """

    inputs: dict[str, str]
    lines: tuple[Line, ...]
    outputs: tuple[str, ...]
    rows: int
    other_rows: int

    def source(self) -> str:
        """The program and its inputs as two functions."""
        makers = "".join(f"    {name} = {text}\n" for name, text in self.inputs.items())
        body = "".join(f"    {line.text}\n" for line in self.lines)
        names = ", ".join(self.inputs)
        return (
            f"def inputs(n):\n    torch.default_generator.manual_seed(0)\n{makers}    return [{names}]\n\n\n"
            f"def program({names}):\n{body}    return [{', '.join(self.outputs)}]\n"
        )

    def functions(self) -> Functions:
        """The program as it runs."""
        namespace: dict[str, Any] = {"torch": torch, "F": F}
        exec(self.source(), namespace)
        return Functions(
            namespace["inputs"], namespace["program"], self.rows, self.other_rows, exact_for=self.sums_are_exact
        )

    def sums_are_exact(self, args: list[Any]) -> bool:
        """Whether all sums are exact for these inputs too, as far as the program runs with them."""
        env = {"torch": torch, "F": F, **dict(zip(self.inputs, args, strict=True))}
        torch.default_generator.manual_seed(1)
        for line in self.lines:
            if not all(is_exact(env[name]) for name in line.exact):
                return False
            try:
                exec(line.text, env)
            except Exception:
                return True
        return True


def is_exact(tensor: torch.Tensor) -> bool:
    """Whether sums of the elements, and of their products, come out the same in any order."""
    if not tensor.dtype.is_floating_point:
        return True
    quarters = tensor.double() * 4
    digits = {torch.bfloat16: 2**6, torch.float16: 2**9}.get(tensor.dtype, 2**11)
    return bool((quarters == quarters.round()).all()) and float(quarters.abs().sum()) < digits


class Writer:
    """Writes a program line by line, running each; lives only while one is drawn."""

    def __init__(self, inputs: dict[str, str], rows: int) -> None:
        self.env: dict[str, Any] = {"torch": torch, "F": F, "n": rows}
        torch.default_generator.manual_seed(0)
        for name, text in inputs.items():
            self.env[name] = eval(text, self.env)
        torch.default_generator.manual_seed(1)
        self.pool: list[str] = list(inputs)
        self.inputs = set(inputs)
        self.used: set[str] = set(inputs)  # inputs are not returned unless asked for
        self.lines: list[Line] = []

    def add(self, kind: str, pattern: str, genes: bytes) -> None:
        """Fill a line and run it; where it does not work nothing happens."""
        filled = self._fill(pattern, iter(genes * 4))
        if filled is None:
            return
        text, operands, exact = filled
        try:
            if kind == "write":
                exec(text, self.env)
                names: list[str] = []
            else:
                text, names = self._assign(text, eval(text, self.env))
        except _Unfit:
            return
        except Exception:  # a line that does not fit is no program's
            return
        self.used |= set(operands)
        if kind == "write":
            self.used -= {operands[0]} - self.inputs  # so that what was written is returned
        self.pool += names
        self.lines.append(Line(text, kind, pattern, exact))

    def _assign(self, text: str, result: Any) -> tuple[str, list[str]]:
        items = [result] if isinstance(result, torch.Tensor) else list(result)
        if not 1 <= len(items) <= MAX_ITEMS or any(t.ndim > MAX_DIMS or t.numel() > MAX_ELEMENTS for t in items):
            raise _Unfit
        first = len(self.pool)
        names = [f"v{first + i}" for i in range(len(items))]
        self.env.update(zip(names, items, strict=True))
        return f"{', '.join(names)}{',' if not isinstance(result, torch.Tensor) else ''} = {text}", names

    def _fill(self, pattern: str, genes: Iterator[int]) -> tuple[str, list[str], tuple[str, ...]] | None:
        holes: dict[str, str] = {}
        exact: list[str] = []
        operands: list[str] = []
        like: torch.Tensor | None = None
        for hole in dict.fromkeys(re.findall(r"\{(\w)\}", pattern)):
            gene = next(genes)
            if hole in "dkc":
                choices: tuple[Any, ...] = {"d": DIMS, "k": COUNTS, "c": CONSTANTS}[hole]
                holes[hole] = str(choices[gene % len(choices)])
                continue
            name = self._pick(hole, gene, like)
            if name is None:
                return None
            holes[hole] = name
            like = self.env[name] if like is None else like
            operands.append(name)
            exact += [name] if hole in "eh" else []
        return re.sub(r"\{(\w)\}", lambda match: holes[match[1]], pattern), operands, tuple(exact)

    def _pick(self, hole: str, gene: int, like: torch.Tensor | None) -> str | None:
        """A value for a hole: often one of the latest, often of the shape of the line's first operand."""
        fits = [name for name in self.pool if HOLES[hole](self.env[name])]
        if hole == "s" and not fits:
            return self._pick("x", gene, like)
        if like is not None and gene % 3:
            fits = [name for name in fits if self.env[name].shape == like.shape] or fits
        if not fits:
            return None
        return fits[-1 - gene % min(len(fits), 4)] if gene < 160 else fits[gene % len(fits)]


class _Unfit(Exception):
    """A result that no program should have."""


HOLES: dict[str, Callable[[torch.Tensor], bool]] = {
    **dict.fromkeys("xyz", lambda t: True),
    **dict.fromkeys("fg", lambda t: t.dtype.is_floating_point),
    **dict.fromkeys("eh", is_exact),
    "i": lambda t: t.dtype is torch.int64,
    "b": lambda t: t.dtype is torch.bool,
    "m": lambda t: t.ndim >= 2,
    "s": lambda t: t.ndim >= 2 and t.numel() >= 4 * t.shape[-1] > 0,
}


def _patterns() -> list[tuple[str, str]]:
    """Every line, as often as its kind's weight says."""
    scale = {kind: weight * 30 // len(KINDS[kind]) for kind, weight in WEIGHTS.items()}
    return [(kind, line) for kind in WEIGHTS for line in KINDS[kind] for _ in range(max(1, scale[kind]))]


_GENES = st.binary(min_size=6, max_size=6)
_LINE = st.tuples(st.sampled_from(_patterns()), _GENES)
_SORT = st.tuples(st.sampled_from([("sort", line) for line in SORTS]), _GENES)


@st.composite
def programs(draw: Any) -> Program:
    """A program of up to about 20 lines with one or two sorts."""
    rows = draw(st.sampled_from([5, 4, 6, 7, 9, 8, 5, 6, 7, 3, 2, 1]))
    sizes = {
        "v": draw(st.sampled_from([rows, 4, 5, 3, 7, 9, 2, 1, rows, 6, 4, 0])),
        "t": draw(st.sampled_from([2, 3, rows, 1])),
    }
    shape, view = draw(st.sampled_from(LAYOUTS))
    values = draw(st.sampled_from(VALUES))
    inputs = {"a": (values.format(shape=shape) + view).format(**sizes)}
    for name, side in zip("bcd", draw(st.lists(st.sampled_from(SIDES), max_size=3)), strict=False):
        inputs[name] = side.format(**sizes)
    parts = [draw(st.lists(_LINE, max_size=6)), [draw(_SORT)], draw(st.lists(_LINE, max_size=12))]
    if draw(st.booleans()):
        parts += [[draw(_SORT)], draw(st.lists(_LINE, max_size=6))]
    also_returned = draw(st.binary(max_size=2))
    other_rows = draw(st.sampled_from([rows + 1, 8, 11, rows + 2, 6, 3, 2, 1, 0]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        writer = Writer(inputs, rows)
        for (kind, pattern), genes in (line for part in parts for line in part):
            writer.add(kind, pattern, genes)
    sinks = [name for name in writer.pool if name not in writer.used]
    extra = [writer.pool[byte % len(writer.pool)] for byte in also_returned]
    outputs = tuple(dict.fromkeys([*sinks, *extra])) or (writer.pool[-1],)
    return Program(inputs, tuple(writer.lines), outputs, rows, other_rows)
