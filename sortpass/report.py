"""What the pass decided, as data: one :class:`PassReport` per graph, one :class:`SiteReport` per sort in it."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
from collections.abc import Iterator
from contextvars import ContextVar

import torch.fx as fx


class DeclineCode(enum.Enum):
    """Why a site was left alone."""

    BELOW_MIN_BYTES = "below min_bytes"
    FEW_ROWS = "no more rows than a chunk"
    NO_ROW_DIM = "no row dim"
    NO_SHAPE = "no shape metadata"
    DYNAMIC_ROWS = "dynamic rows"
    TOO_MANY_WINDOWS = "too many windows"
    NO_GAIN = "no gain"
    NOT_DENSE = "output not dense"
    NOT_FUNCTIONAL = "no loop may write here"
    COUPLED = "rows are coupled"
    UNKNOWN_OP = "no rule"
    MATMUL = "through_matmul is off"
    RANDOM = "allow_rng is off"
    COPIED_BACK = "not written in place"
    NOT_BITWISE = "an op is not promised to be exact"
    REBUILD_FAILED = "chunk cannot be built"


@dataclasses.dataclass(frozen=True)
class Decline:
    """A "no" as a value: a code tests can match, the node to blame, and one sentence a user understands."""

    code: DeclineCode
    node: str
    detail: str


@dataclasses.dataclass(frozen=True)
class SiteReport:
    """One sort the pass considered, whatever it decided.

    Attributes:
        node: name of the sort node in the graph before the pass.
        op: e.g. ``"aten.sort.stable"``.
        status: ``"rewritten"`` or ``"declined"``.
        code: why it was declined; None where it was rewritten.
        reason: one sentence: why it was declined, or what was done.
        source: the user's line that made it, ``"file.py:12: values, index = x.sort()"``; empty where not known.
        shape: what is sorted, ``"float32[512, 128256]"``; empty where not known.
        rows: sorted sequences; an int, or the expression of a dynamic size as text.
        row_chunk: the most rows a window holds; None where declined.
        rows_why: what decided that: an option and its value; None where declined.
        peak_bytes_whole: predicted bytes above the graph's inputs while the region runs as written, whatever else is
            alive then; None where declined.
        peak_bytes_chunked: the same in windows.
        window_bytes: predicted bytes that one window holds.
        num_windows: windows; an int, or an expression as text; None where declined.
        form: ``"loop"`` or ``"unroll"``; None where declined.
        scope: ``"region"`` or ``"sort"``; None where declined.
        exactness: what the results of the region are promised to be, given the same inputs; None where declined.
            ``"bitwise"``: the same bits as whole. ``"indices-exact"``: the sorts have the same order and indices, while
            something computed from them may differ in its last bits. ``"close"``: what is sorted may differ in its last
            bits, as it does for another batch size. ``"distribution"``: it draws random numbers, which are other ones
            than whole, of the same distribution.
        written_over: names of the graph inputs, and of nodes nobody reads later, that results of the region are written
            over window by window, without a tensor of their own.
        region_ops: the ops that now run per window, in graph order.
        boundary: what kept neighbours out of the region, each naming its node.
    """

    node: str
    op: str
    status: str
    code: DeclineCode | None
    reason: str
    source: str = ""
    shape: str = ""
    rows: int | str | None = None
    row_chunk: int | None = None
    rows_why: str | None = None
    peak_bytes_whole: int | None = None
    peak_bytes_chunked: int | None = None
    window_bytes: int | None = None
    num_windows: int | str | None = None
    form: str | None = None
    scope: str | None = None
    exactness: str | None = None
    written_over: tuple[str, ...] = ()
    region_ops: tuple[str, ...] = ()
    boundary: tuple[Decline, ...] = ()


@dataclasses.dataclass(frozen=True)
class PassReport:
    """What the pass did to one graph.

    Attributes:
        sites: one entry per sort considered, in graph order.
        modified: whether the graph was changed at all.
        peak_bytes_whole: predicted bytes above its inputs of the graph as it was, at compile-time sizes; None where
            nothing was rewritten.
        peak_bytes_chunked: the same of the graph as it is now.
        peak_expr: both as text, for any number of rows: ``N`` steps along the row dim, ``c`` of them in a window, rows
            of ``V`` elements. What the model takes no row dim from (nodes outside the regions of a graph with static
            sizes) is a number in it. Empty where nothing was rewritten.
    """

    sites: tuple[SiteReport, ...] = ()
    modified: bool = False
    peak_bytes_whole: int | None = None
    peak_bytes_chunked: int | None = None
    peak_expr: str = ""

    @property
    def num_rewritten(self) -> int:
        """Number of sites that were rewritten."""
        return sum(site.status == "rewritten" for site in self.sites)

    def __str__(self) -> str:
        if not self.sites:
            return "chunked 0 of 0 sorts: the graph has no sort"
        lines = "; ".join(f"{site.node}: {site.reason}" for site in self.sites)
        are_sorts = all(site.op.startswith(("aten.sort.", "aten.topk.")) for site in self.sites)
        return f"chunked {self.num_rewritten} of {len(self.sites)} {'sorts' if are_sorts else 'ops'}: {lines}"


_capturing: ContextVar[list[PassReport] | None] = ContextVar("sortpass_reports", default=None)
_listening: ContextVar[list[PassReport] | None] = ContextVar("sortpass_reports_of_one_graph", default=None)


@contextlib.contextmanager
def capture_reports() -> Iterator[list[PassReport]]:
    """Collect the report of every graph compiled inside the ``with`` block.

    While capturing, Inductor's FX-graph and AOT caches are bypassed: a graph loaded from a cache was rewritten when it
    was stored, so the pass does not run again and there would be nothing to report.

    Yields:
        A list that receives one :class:`PassReport` per compiled graph (forward, backward, each graph of a function
        with graph breaks), in compile order.

    Example:
        >>> with capture_reports() as reports:
        ...     torch.compile(step, backend="chunked_sort")(logits)
        >>> print(reports[0].num_rewritten)
        1
    """
    with _collect_into(_capturing) as reports:
        yield reports


@contextlib.contextmanager
def reports_of() -> Iterator[list[PassReport]]:
    """Collect reports for the package's own use: caches stay on, so a graph that one of them had has no report."""
    with _collect_into(_listening) as reports:
        yield reports


@contextlib.contextmanager
def _collect_into(variable: ContextVar[list[PassReport] | None]) -> Iterator[list[PassReport]]:
    reports: list[PassReport] = []
    token = variable.set(reports)
    try:
        yield reports
    finally:
        variable.reset(token)


def is_capturing() -> bool:
    """Whether a :func:`capture_reports` block is active."""
    return _capturing.get() is not None


def publish(report: PassReport) -> None:
    """Hand a finished report to the active :func:`capture_reports` block, if any, and to :func:`reports_of`."""
    for reports in (_capturing.get(), _listening.get()):
        if reports is not None:
            reports.append(report)


def op_name(node: fx.Node) -> str:
    """``aten.sort.default`` for an overload, the plain name for anything else."""
    target = node.target
    if isinstance(target, str):
        return target
    return str(target) if hasattr(target, "_schema") else getattr(target, "__name__", str(target))
