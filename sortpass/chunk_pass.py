"""The pass itself: find the sorts of a graph, grow a region around each, plan its windows, rewrite, check.

Before                                        After (row_chunk = 2)
  sort = aten.sort(logits)      f32[5, V]       rows 0:2 -> sort -+
  getitem = sort[0]                             rows 1:3 -> sort -+-> out   f32[5, V]
                                                rows 3:5 -> sort -+   (windows of equal size)
"""

from __future__ import annotations

import logging
import warnings
from typing import Any

import torch.fx as fx
from torch.export import ExportedProgram

from sortpass.anchor import rewrite_anchor
from sortpass.cache import cache_id
from sortpass.config import ChunkConfig
from sortpass.describe import report_decline, report_plans, report_rewrite
from sortpass.errors import NothingRewritten
from sortpass.observe import readable_if_recorded, record
from sortpass.plan import ChunkPlan
from sortpass.report import Decline, DeclineCode, PassReport, SiteReport, is_capturing, publish
from sortpass.sites import GraphKind, find_anchors
from sortpass.torch_compat import CustomGraphPass, is_exported, unbacked_ranges

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
        """The cache id; None (no caching) while reports are captured or dumped: a cache hit would have none."""
        return None if is_capturing() or self.config.dump_dir is not None else cache_id(self.config)


def run_pass(gm: fx.GraphModule, config: ChunkConfig, kind: GraphKind = GraphKind.COMPILED) -> PassReport:
    """Rewrite one graph, publish, log and record its report, and apply ``on_miss``."""
    before = readable_if_recorded(gm, config)
    report = rewrite_graph(gm, config, kind)
    log.info("%s", report)
    for site in report.sites:
        log.debug("%s at %s: %s; outside: %s", site.node, site.source or "?", site.reason, site.boundary or "nothing")
    record(before, gm, report, config)
    publish(report)
    if not report.modified:
        _apply_on_miss(gm, report, config)
    return report


def rewrite_graph(gm: fx.GraphModule, config: ChunkConfig, kind: GraphKind = GraphKind.COMPILED) -> PassReport:
    """Rewrite one graph; tells nobody but the caller."""
    sorts, secondary = find_anchors(gm.graph, rowwise="rowwise" in config.anchors)
    sites: dict[fx.Node, SiteReport] = {}
    plans: list[ChunkPlan] = []
    for anchors, report_declines in ((sorts, True), (secondary, False)):
        for anchor in anchors:
            if anchor not in sites and not anchor._erased:
                outcome = rewrite_anchor(gm, anchor, config, kind)
                if isinstance(outcome, Decline):
                    if report_declines or outcome.code in (DeclineCode.NO_GAIN, DeclineCode.NOT_BITWISE):
                        sites[anchor] = report_decline(anchor, outcome)
                else:
                    plans.append(outcome)
                    sites.update(report_rewrite(outcome, sorts, anchor))
    if plans:
        gm.recompile()
    order = {node: i for i, node in enumerate([*sorts, *secondary])}
    in_order = tuple(sites[node] for node in sorted(sites, key=order.__getitem__))
    return report_plans(in_order, plans)


def _apply_on_miss(gm: fx.GraphModule, report: PassReport, config: ChunkConfig) -> None:
    # A backward graph is not what the user wrote; AOT autograd names its gradient inputs "tangents_*".
    if config.on_miss == "ignore" or any(
        str(n.target).startswith("tangents") for n in gm.graph.find_nodes(op="placeholder")
    ):
        return
    if config.on_miss == "raise":
        raise NothingRewritten(f"on_miss='raise': no sort of this graph was rewritten; {report}")
    warnings.warn(f"sortpass: no sort of this graph was rewritten; {report}", stacklevel=2)
