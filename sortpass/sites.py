"""Find the sorts of a graph and measure them: which dim is sorted, which dim is cut, how many rows there are.

Every spelling (``sort``, ``argsort``, ``msort``, methods, ``dim=`` in any form) reaches an ATen graph as
``aten.sort.default`` or ``aten.sort.stable``. ``aten.topk`` is a secondary anchor: a sampler built on it alone (HF's
min-p, eta and epsilon warpers) holds the same big intermediates, so it starts a region where no sort did. With
``anchors="rowwise"`` so does whatever else works inside of rows: a softmax, a sum, a cumsum.

A row is one sorted sequence, or what a row-wise op takes as one. Logits ``[B, T, V]`` sorted along ``V`` have ``B * T``
rows; they are cut along the larger of ``B`` and ``T``, and one step along it holds the other's number of rows.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import Any

import torch
import torch.fx as fx

from sortpass.config import ChunkConfig
from sortpass.report import Decline, DeclineCode
from sortpass.rules import Call, value_of
from sortpass.torch_compat import guard_all, may_guard, size_hint_maybe, upper_bound_maybe

aten = torch.ops.aten

SORT_OPS = (aten.sort.default, aten.sort.stable)
SECONDARY_OPS = (aten.topk.default,)
ROWWISE_OPS = (
    aten._log_softmax.default,
    aten._softmax.default,
    aten.logsumexp.default,
    aten.amax.default,  # softmax, as Inductor decomposes it
    aten.argmax.default,
    aten.cumsum.default,
    aten.sum.dim_IntList,
)

INDEX_BYTES = 8  # sort returns int64 indices


class GraphKind(enum.Enum):
    """Whose graph it is, and so what may be done to it."""

    COMPILED = "compiled"
    """A compiler's, or nobody's: guards may be added, and it is thrown away with the process."""

    PROGRAM = "program"
    """An ``ExportedProgram``'s: it is there once for every size it will meet, must stay functional, and is saved."""

    PROGRAM_GRAPH = "program graph"
    """The same, but only its graph module is at hand: the program cannot be told of new symbols."""

    @property
    def is_exported(self) -> bool:
        return self is not GraphKind.COMPILED


@dataclasses.dataclass(frozen=True)
class SortSite:
    """A sort that is large enough to be cut.

    Attributes:
        node: the anchor.
        row_dim: the dim of its input to cut.
        steps: size of that dim.
        rows_per_step: sorted sequences at one position of ``row_dim`` (the other batch dims multiplied).
        by_bound: sizes are judged by the largest they can be, and no guard is added on them.
        already_cut: the dims that the windows around it are cut along.
        keys: what is sorted, as text: ``"float32[512, 128256]"``.
    """

    node: fx.Node
    row_dim: int
    steps: int | torch.SymInt
    rows_per_step: int | torch.SymInt
    by_bound: bool = False
    already_cut: frozenset[int] = frozenset()
    keys: str = ""

    @property
    def is_last_dim(self) -> bool:
        """Whether no batch dim is left to cut."""
        return len(self.already_cut) + 2 == Call(self.node).ndim("self")

    @property
    def out_dim(self) -> int:
        """The dim to cut in what the anchor returns, which a reduction has a dim less of."""
        call = Call(self.node)
        kept = call.out.ndim == call.ndim("self")
        return self.row_dim if kept else self.row_dim - (axis_of(call) < self.row_dim)

    @property
    def rows(self) -> int | torch.SymInt:
        return self.steps * self.rows_per_step

    @property
    def row_length(self) -> int | torch.SymInt:
        call = Call(self.node)
        return call.shape("self")[axis_of(call)] if call.ndim("self") else 1


def find_anchors(graph: fx.Graph, *, rowwise: bool = False) -> tuple[list[fx.Node], list[fx.Node]]:
    """The sort nodes and the secondary anchors of a graph, each in graph order; row-wise ops last, if wanted."""
    calls = [node for node in graph.nodes if node.op == "call_function"]
    others = [node for node in calls if node.target in ROWWISE_OPS and axis_maybe(Call(node)) is not None]
    return (
        [node for node in calls if node.target in SORT_OPS],
        [node for node in calls if node.target in SECONDARY_OPS] + (others if rowwise else []),
    )


def axis_maybe(call: Call) -> int | None:
    """The one dim an anchor works along, whose elements make a row; None where there is more than one."""
    dims = call.dims("dim") if call.is_tensor("self") else None
    return dims[0] if dims is not None and len(dims) == 1 else None


def axis_of(call: Call) -> int:
    """The same of a call that is an anchor."""
    axis = axis_maybe(call)
    assert axis is not None, call.node.format_node()
    return axis


def keys_text(node: fx.Node) -> str:
    """Dtype and shape of what an anchor sorts; empty where it has no shape."""
    keys = value_of(Call(node)["self"])
    return f"{str(keys.dtype).removeprefix('torch.')}{list(keys.shape)}" if isinstance(keys, torch.Tensor) else ""


def num_rows_maybe(node: fx.Node) -> int | torch.SymInt | None:
    """Sorted sequences of an anchor, whatever its size; None where its input has no shape."""
    call = Call(node)
    if not call.is_tensor("self"):
        return None
    rows: Any = 1
    for dim, size in enumerate(call.shape("self")):
        rows = rows if dim == axis_of(call) else rows * size
    return rows


def measure_site(
    node: fx.Node,
    config: ChunkConfig,
    kind: GraphKind = GraphKind.COMPILED,
    already_cut: frozenset[int] = frozenset(),
) -> SortSite | Decline:
    """Measure one anchor; a :class:`Decline` where it has no rows, or is known to be small (:func:`decline_small`)."""
    call = Call(node)
    if not isinstance(call["self"], fx.Node) or "val" not in call["self"].meta:
        return Decline(DeclineCode.NO_SHAPE, node.name, "its input has no shape metadata; run FakeTensorProp first")
    keys = call["self"].meta["val"]
    if keys.ndim < 2:
        return Decline(DeclineCode.NO_ROW_DIM, node.name, f"takes a {keys.ndim}-D tensor, which has a single row")
    batch_dims = [dim for dim in range(keys.ndim) if dim != axis_of(call)]
    by_bound = kind.is_exported or bool(already_cut) or not may_guard(*keys.shape)
    at_most = upper_bound_maybe if by_bound else size_hint_maybe
    to_cut = [dim for dim in batch_dims if dim not in already_cut]
    row_dim = max(to_cut, key=lambda dim: 2**62 if (size := at_most(keys.shape[dim])) is None else size)
    rows_per_step: Any = 1
    for dim in batch_dims:
        if dim != row_dim:
            rows_per_step = rows_per_step * keys.shape[dim]
    site = SortSite(node, row_dim, keys.shape[row_dim], rows_per_step, by_bound, already_cut, keys_text(node))
    is_static = all(isinstance(size, int) for size in keys.shape)
    # With dynamic sizes the question is a guard, and waits for the number of rows in a window.
    return (decline_small(site, config.row_chunk or 1, config) if is_static else None) or site


def decline_small(site: SortSite, row_chunk: int, config: ChunkConfig) -> Decline | None:
    """Why a site is not large, if it is not; with dynamic sizes a guard.

    Large means: more rows than ``row_chunk``, and values + indices of at least ``min_bytes``. With dynamic sizes this
    is the one question that is asked on purpose, as a single guard, so that small and large batches get one compile
    each. Not so in an exported program, which is there once for every size it will meet, nor on a dim that
    ``mark_dynamic`` gave a range, nor in a window (which has dims that are ``already_cut``): these are large if their
    largest sizes are, however few rows they were traced with.
    """
    keys = value_of(Call(site.node)["self"])
    num_bytes = keys.numel() * (keys.element_size() + INDEX_BYTES)
    at_most = upper_bound_maybe if site.by_bound else size_hint_maybe
    rows, size = at_most(site.rows), at_most(num_bytes)
    if rows is None or size is None:
        return None  # an unbacked size cannot be asked, one without a bound may be large
    if site.by_bound:
        more_rows, enough_bytes = rows > row_chunk, size >= config.min_bytes
    else:
        more_rows, enough_bytes = site.rows > row_chunk, num_bytes >= config.min_bytes
    if guard_all(more_rows, enough_bytes):
        return None
    if rows <= row_chunk:
        limit = (
            f"row_chunk={row_chunk}" if config.row_chunk or rows <= 1 else f"the {row_chunk} that memory_budget allows"
        )
        return Decline(DeclineCode.FEW_ROWS, site.node.name, f"has {rows} rows, no more than {limit}")
    return Decline(
        DeclineCode.BELOW_MIN_BYTES,
        site.node.name,
        f"its values + indices take {size:,} bytes, below min_bytes={config.min_bytes:,}",
    )
