"""The pass itself: find the sorts of a graph, grow a region around each, plan its windows, rewrite, check.

Before                                        After (row_chunk = 2)
  sort = aten.sort(logits)      f32[5, V]       rows 0:2 -> sort -+
  getitem = sort[0]                             rows 1:3 -> sort -+-> out   f32[5, V]
                                                rows 3:5 -> sort -+   (windows of equal size)
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import logging
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.fx as fx
from torch.export import ExportedProgram

from sortpass.config import ChunkConfig
from sortpass.emit import Applied, apply_plan
from sortpass.errors import NothingRewritten
from sortpass.exactness import judge_plan, weakest
from sortpass.graph_order import GraphOrder, is_item
from sortpass.plan import ChunkPlan, plan_chunks
from sortpass.region import grow_region
from sortpass.report import (
    Decline,
    DeclineCode,
    PassReport,
    SiteReport,
    is_capturing,
    op_name,
    publish,
)
from sortpass.rules import Exactness, declared_exactness, registered_rules
from sortpass.sites import GraphKind, SortSite, find_anchors, measure_site, num_rows_maybe
from sortpass.torch_compat import CustomGraphPass, fake_mode_of, is_exported, unbacked_ranges
from sortpass.verify import check_rewrite

log = logging.getLogger(__name__)


def rewrite(graph: fx.GraphModule | ExportedProgram, **options: Any) -> PassReport:
    """Rewrite the large sorts of an ATen-level graph in place.

    Args:
        graph: a graph module of ATen ops with ``meta["val"]`` on its nodes, as ``make_fx`` or functorch's
            ``aot_function`` leave it; or an exported program (``run_decompositions`` first, if its code writes in
            place), which stays valid, is right for every size of its dynamic dims, and needs no sortpass to run.
        options: see :class:`sortpass.ChunkConfig`; ``inner`` says who will compile the graph, which decides how exact
            the results are, and nothing else here.

    Returns:
        What was decided for each sort. Where nothing was rewritten the graph is untouched.

    Raises:
        ConfigError: an option is wrong.
        NothingRewritten: ``on_miss="raise"`` and no sort was rewritten.

    Example:
        >>> gm = make_fx(step, tracing_mode="fake")(logits)
        >>> rewrite(gm, row_chunk=64).num_rewritten
        1
    """
    config = ChunkConfig.from_options(options)
    if not isinstance(graph, ExportedProgram):
        return run_pass(graph, config, GraphKind.PROGRAM_GRAPH if is_exported(graph) else GraphKind.COMPILED)
    report = run_pass(graph.graph_module, config, GraphKind.PROGRAM)
    if report.modified:
        graph.range_constraints.update(unbacked_ranges(graph.graph))
        graph.validate()
    return report


class ChunkedSortPass(CustomGraphPass):
    """The pass as an Inductor hook, with a cache id.

    Example:
        >>> torch._inductor.config.post_grad_custom_pre_pass = ChunkedSortPass(row_chunk=64)
        >>> torch.compile(step)(logits)

    Args:
        options: see :class:`sortpass.ChunkConfig`.
    """

    def __init__(self, **options: Any) -> None:
        self.config = ChunkConfig.from_options(options)

    def __call__(self, graph: fx.Graph) -> None:
        assert graph.owning_module is not None  # Inductor's graphs have one
        run_pass(graph.owning_module, self.config)

    def uuid(self) -> str | None:
        """The cache id; None (no caching) while reports are captured, since a cache hit would have no report."""
        return None if is_capturing() else cache_id(self.config)


def cache_id(config: ChunkConfig) -> str:
    """Text that differs whenever this pass could leave a different graph: options, sources, rules, torch version."""
    parts = (_source_hash(), torch.__version__, config.cache_key(), *_foreign_rules())
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


@functools.cache
def _source_hash() -> str:
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _foreign_rules() -> list[str]:
    """Rules that users registered, by name and code: they change what is rewritten, and no file of ours shows it."""
    return sorted(
        f"{op}:{_code_id(rule)}:{level if isinstance(level, Exactness) else _code_id(level)}"
        for op, rule in registered_rules().items()
        if not rule.__module__.startswith("sortpass.") and (level := declared_exactness(op))
    )


def _code_id(function: Any) -> str:
    """Text that tells a function from any other. What has no code to show gets its address, so it is never cached."""
    if (code := getattr(function, "__code__", None)) is None:
        return repr(function)
    closed_over = [cell.cell_contents for cell in function.__closure__ or ()]
    return f"{function.__module__}.{function.__qualname__}:{code.co_code.hex()}:{code.co_consts!r}:{closed_over!r}"


def run_pass(gm: fx.GraphModule, config: ChunkConfig, kind: GraphKind = GraphKind.COMPILED) -> PassReport:
    """Rewrite one graph, publish and log its report, and apply ``on_miss``."""
    report = rewrite_graph(gm, config, kind)
    log.info("%s", report)
    publish(report)
    if not report.modified:
        _apply_on_miss(gm, report, config)
    return report


def rewrite_graph(gm: fx.GraphModule, config: ChunkConfig, kind: GraphKind = GraphKind.COMPILED) -> PassReport:
    """Rewrite one graph; tells nobody but the caller."""
    sorts, secondary = find_anchors(gm.graph)
    sites: dict[fx.Node, SiteReport] = {}
    for anchors, report_declines in ((sorts, True), (secondary, False)):
        for anchor in anchors:
            if anchor not in sites and not anchor._erased:
                outcome = _rewrite_anchor(gm, anchor, config, kind)
                if isinstance(outcome, Decline):
                    if report_declines or outcome.code in (DeclineCode.NO_GAIN, DeclineCode.NOT_BITWISE):
                        sites[anchor] = _declined(anchor, outcome)
                else:
                    sites.update(_rewritten(outcome, sorts, anchor))
    modified = any(site.status == "rewritten" for site in sites.values())
    if modified:
        gm.recompile()
    order = {node: i for i, node in enumerate([*sorts, *secondary])}
    return PassReport(tuple(sites[node] for node in sorted(sites, key=order.__getitem__)), modified)


def _rewrite_anchor(
    gm: fx.GraphModule,
    anchor: fx.Node,
    config: ChunkConfig,
    kind: GraphKind,
    already_cut: frozenset[int] = frozenset(),
) -> ChunkPlan | Decline:
    site = measure_site(anchor, config, kind, already_cut)
    if isinstance(site, Decline):
        return site
    mode = fake_mode_of(gm)
    if mode is None:
        return Decline(DeclineCode.NO_SHAPE, anchor.name, "the graph has no shape metadata; run FakeTensorProp first")
    order = GraphOrder(gm.graph)
    unfit: list[Decline] = []
    while True:
        plan = _plan_anchor(site, order, config, kind, unfit)
        if isinstance(plan, Decline):
            return plan
        applied = apply_plan(gm, plan, order, mode)
        if not isinstance(applied, Decline):
            break
        refused = next((node for node in plan.region.nodes if node.name == applied.node), anchor)
        owner = refused.args[0] if is_item(refused) else refused
        if owner is anchor:
            return applied
        assert isinstance(owner, fx.Node)
        unfit.append(dataclasses.replace(applied, node=owner.name))  # the region may do without it
    check_rewrite(gm, applied.replacements)
    if not plan.is_bounded:
        plan = _rewrite_inside(plan, applied, config, kind)
    return plan


def _plan_anchor(
    site: SortSite, order: GraphOrder, config: ChunkConfig, kind: GraphKind, unfit: list[Decline]
) -> ChunkPlan | Decline:
    region = grow_region(site, order, scope=config.scope, unfit=unfit)
    if isinstance(region, Decline):
        return region
    plan = plan_chunks(region, config, kind)
    if isinstance(plan, Decline):
        return plan
    verdict = judge_plan(plan, config)
    if config.exactness == "bitwise" and verdict.blamed is not None:
        return Decline(DeclineCode.NOT_BITWISE, verdict.blamed.name, verdict.why)
    return dataclasses.replace(plan, exactness=verdict.level)


def _rewrite_inside(plan: ChunkPlan, applied: Applied, config: ChunkConfig, kind: GraphKind) -> ChunkPlan:
    """Cut once more, along another dim, where one step along the row dim may hold more rows than a chunk.

    ``[B, T, V]`` cut along ``T``: with ``B`` above ``row_chunk``, the outer windows hold one position of ``T`` and the
    inner ones ``row_chunk`` rows of ``B``. A dynamic ``B`` may be either, in one graph: where it is below, the outer
    windows hold several positions, and there is one inner window.
    """
    already_cut = plan.region.site.already_cut | {plan.region.site.row_dim}
    inner = [_rewrite_anchor(gm, anchor, config, kind, already_cut) for gm, anchor in applied.anchors]
    if isinstance(inner[0], Decline):
        log.debug("windows of %s rows stay whole: %s", plan.window_rows, inner[0].detail)
        return plan
    num_windows = _times(plan.num_windows, inner[0].num_windows)
    exactness = weakest(plan.exactness, inner[0].exactness)
    return dataclasses.replace(plan, num_windows=num_windows, window_rows=inner[0].window_rows, exactness=exactness)


def _declined(anchor: fx.Node, decline: Decline) -> SiteReport:
    return SiteReport(
        node=anchor.name,
        op=op_name(anchor),
        status="declined",
        code=decline.code,
        reason=f"declined: {decline.detail}",
        rows=_plain(rows) if (rows := num_rows_maybe(anchor)) is not None else None,
    )


def _rewritten(plan: ChunkPlan, sorts: list[fx.Node], anchor: fx.Node) -> dict[fx.Node, SiteReport]:
    """One report for every sort that went into the region, its anchor first among them."""
    region = plan.region
    members = set(region.nodes)
    windows = f"{plan.num_windows} windows, at most {plan.window_rows} rows each"
    reason = f"{plan.form} of {windows}, {len(region.nodes)} ops in the region"
    return {
        node: SiteReport(
            node=node.name,
            op=op_name(node),
            status="rewritten",
            code=None,
            reason=reason,
            rows=_plain(region.site.rows),
            row_chunk=plan.window_rows,
            num_windows=_plain(plan.num_windows),
            form=plan.form,
            scope=plan.scope,
            exactness=plan.exactness,
            region_ops=tuple(op_name(member) for member in region.nodes),
            boundary=region.boundary,
        )
        for node in (anchor, *(sort for sort in sorts if sort in members))
    }


def _times(outer: int | torch.SymInt | str, inner: int | torch.SymInt | str) -> int | torch.SymInt | str:
    return f"{outer} * {inner}" if isinstance(outer, str) or isinstance(inner, str) else outer * inner


def _plain(size: int | torch.SymInt | str) -> int | str:
    return size if isinstance(size, int) else str(size)


def _apply_on_miss(gm: fx.GraphModule, report: PassReport, config: ChunkConfig) -> None:
    # A backward graph is not what the user wrote; AOT autograd names its gradient inputs "tangents_*".
    if config.on_miss == "ignore" or any(
        str(n.target).startswith("tangents") for n in gm.graph.find_nodes(op="placeholder")
    ):
        return
    if config.on_miss == "raise":
        raise NothingRewritten(f"on_miss='raise': no sort of this graph was rewritten; {report}")
    warnings.warn(f"sortpass: no sort of this graph was rewritten; {report}", stacklevel=2)
