"""Turn plans and declines into reports."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.fx as fx

from sortpass.config import format_bytes
from sortpass.plan import ChunkPlan
from sortpass.report import Decline, PassReport, SiteReport, op_name
from sortpass.sites import keys_text, num_rows_maybe
from sortpass.sizes import text_of


def report_decline(anchor: fx.Node, decline: Decline) -> SiteReport:
    return SiteReport(
        node=anchor.name,
        op=op_name(anchor),
        status="declined",
        code=decline.code,
        reason=f"declined: {decline.detail}",
        source=source_line(anchor),
        shape=keys_text(anchor),
        rows=_plain(rows) if (rows := num_rows_maybe(anchor)) is not None else None,
    )


def report_rewrite(plan: ChunkPlan, sorts: list[fx.Node], anchor: fx.Node) -> dict[fx.Node, SiteReport]:
    """One report for every sort that went into the region, its anchor first among them."""
    region, prediction = plan.region, plan.prediction
    members = set(region.nodes)
    whole, chunked = (prediction.bytes_of(span.region) for span in (prediction.whole, prediction.chunked(plan.form)))
    return {
        node: SiteReport(
            node=node.name,
            op=op_name(node),
            status="rewritten",
            code=None,
            reason=_reason(plan, whole, chunked),
            source=source_line(node),
            shape=region.site.keys,
            rows=_plain(region.site.rows),
            row_chunk=plan.window_rows,
            rows_why=plan.rows.why,
            peak_bytes_whole=whole,
            peak_bytes_chunked=chunked,
            window_bytes=prediction.bytes_of(prediction.window),
            num_windows=_plain(plan.num_windows),
            form=plan.form,
            scope=plan.scope,
            exactness=plan.exactness,
            written_over=written_over(plan),
            region_ops=tuple(op_name(member) for member in region.nodes),
            boundary=region.boundary,
        )
        for node in (anchor, *(sort for sort in sorts if sort in members))
    }


def source_line(node: fx.Node) -> str:
    """The innermost line of the user's code behind a node, from the stack trace Dynamo keeps; empty without one."""
    frames = re.findall(r'File "([^"]+)", line (\d+), in [^\n]*\n\s*([^\n]*)', node.meta.get("stack_trace") or "")
    if not frames:
        return ""
    path, number, code = frames[-1]
    return f"{Path(path).name}:{number}: {code.strip()}"


def written_over(plan: ChunkPlan) -> tuple[str, ...]:
    """Names of what results are written over; a loop does so, pieces are joined in new memory."""
    overwrites = plan.region.overwrites.values() if plan.form == "loop" else ()
    return tuple(overwrite.target.name for overwrite in overwrites)


def _reason(plan: ChunkPlan, whole: int, chunked: int) -> str:
    prediction = plan.prediction
    per_element = [f"{count / prediction.elements:.1f}" for count in (whole, chunked)]
    held = format_bytes(prediction.bytes_of(prediction.window))
    over = f", written over {', '.join(names)}" if (names := written_over(plan)) else ""
    return (
        f"{plan.form} of {plan.num_windows} windows, at most {plan.window_rows} rows each ({plan.rows.why}; a window "
        f"holds {held}), {len(plan.region.nodes)} ops in the region{over}; predicted peak {format_bytes(whole)} -> "
        f"{format_bytes(chunked)} ({per_element[0]} -> {per_element[1]} bytes per element)"
    )


def report_plans(sites: tuple[SiteReport, ...], plans: Sequence[ChunkPlan]) -> PassReport:
    """The report of a graph: the first plan saw it as it was, the last one as it is now."""
    if not plans:
        return PassReport(sites, modified=False)
    first, last = plans[0].prediction, plans[-1].prediction
    whole, chunked = first.whole.graph, last.chunked(plans[-1].form).graph
    length = plans[0].row_length
    return PassReport(
        sites,
        modified=True,
        peak_bytes_whole=first.bytes_of(whole),
        peak_bytes_chunked=last.bytes_of(chunked),
        peak_expr=f"whole {text_of(whole, length, first.sizes)}; chunked {text_of(chunked, length, last.sizes)}",
    )


def _plain(size: int | torch.SymInt | str) -> int | str:
    return size if isinstance(size, int) else str(size)
