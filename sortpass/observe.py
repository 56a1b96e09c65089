"""Leave a record of each graph: artifacts in torch's structured trace, for ``tlparse``, and files in ``dump_dir``."""

from __future__ import annotations

import dataclasses
import difflib
import enum
import itertools
import json
from pathlib import Path
from typing import Any

import torch.fx as fx

from sortpass.config import ChunkConfig
from sortpass.report import PassReport
from sortpass.torch_compat import is_tracing_structured, trace_artifact

_serial = itertools.count()

README = """\
What sortpass did to one graph:

before.txt   the graph as the pass got it
after.txt    the graph as it left it (absent where nothing was rewritten)
diff.txt     the two as a unified diff (absent where nothing was rewritten)
report.json  what was decided for each sort, why, and the predicted peaks
"""


def readable_if_recorded(gm: fx.GraphModule, config: ChunkConfig) -> str:
    """The graph as text where somebody will look at it, else empty: printing a large graph takes a while."""
    wanted = config.dump_dir is not None or is_tracing_structured()
    return gm.print_readable(print_output=False) if wanted else ""


def record(before: str, gm: fx.GraphModule, report: PassReport, config: ChunkConfig) -> None:
    """Write what :func:`readable_if_recorded` saw, what became of it, and the report."""
    if not before:
        return
    files = {"before.txt": before, "report.json": report_json(report)}
    if report.modified:
        files["after.txt"] = gm.print_readable(print_output=False)
        files["diff.txt"] = text_diff(before, files["after.txt"], "graph")
    for name, text in files.items():
        trace_artifact(f"sortpass_{Path(name).stem}", text)
    if config.dump_dir is not None:
        folder = Path(config.dump_dir) / f"graph_{next(_serial)}"
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in {**files, "README.txt": README}.items():
            (folder / name).write_text(text)


def report_json(report: PassReport) -> str:
    """A report as JSON text; codes by name."""
    return json.dumps(dataclasses.asdict(report), indent=1, default=as_json)


def text_diff(before: str, after: str, name: str) -> str:
    """Unified diff of two graphs as text."""
    old, new = (text.splitlines(keepends=True) for text in (before, after))
    return "".join(difflib.unified_diff(old, new, fromfile=f"{name}, before", tofile=f"{name}, after", n=2))


def as_json(value: Any) -> str:
    return value.name if isinstance(value, enum.Enum) else str(value)
