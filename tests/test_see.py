"""What the pass did can be seen: explain, compare, logs, the structured trace, a dump folder."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import compile_chunked
from samplers import top_p

import sortpass
from sortpass import compare, explain

IDS = torch.zeros(1, 1, dtype=torch.long)
BIG = torch.empty(8192, 128_256, device="meta")


def warp(logits: Any) -> Any:
    return top_p(IDS, logits)


def broken_in_two(logits: Any) -> Any:
    logits = logits * 2
    torch._dynamo.graph_break()
    return top_p(IDS, logits)


def in_place(logits: Any) -> Any:
    logits.mul_(0.5)
    noise = torch.rand(3)
    return logits.sort(-1)[0].cumsum(-1), noise


def test_explain_shows_each_sort_with_its_line_and_the_graph_before_and_after(capsys: Any) -> None:
    shown = explain(warp, BIG, inner="aot_eager", row_chunk=64)
    site = shown.graphs[0].report.sites[0]
    assert site.shape == "float32[8192, 128256]"
    assert site.source.startswith("logits_process.py:")
    assert "torch.sort(scores" in site.source
    text = capsys.readouterr().out
    assert "15.7 GiB -> 4.0 GiB" in text
    assert "loop, 128 windows of 64 rows" in text
    assert shown.diff in text
    assert "-        sort = torch.ops.aten.sort" in shown.diff
    assert "+        while_loop = torch.ops.higher_order.while_loop" in shown.diff


def test_an_explanation_as_json_names_the_codes() -> None:
    shown = explain(lambda x: x.sort(-1), BIG, inner="aot_eager")
    fields = json.loads(shown.to_json())
    assert fields["graphs"][0]["sites"][0]["code"] == "NO_GAIN"
    assert fields["diff"] == shown.diff == ""


def test_a_graph_break_is_shown_with_the_graph_that_has_the_sort() -> None:
    shown = explain(broken_in_two, BIG, inner="aot_eager")
    assert [len(graph.report.sites) for graph in shown.graphs] == [0, 1]
    assert len(shown.breaks) == 1
    assert "graph 0: none" in str(shown)
    assert f"graph break: {shown.breaks[0]}" in str(shown)


def test_explaining_a_batch_of_4_gigabytes_takes_less_than_a_gigabyte() -> None:
    # Not getrusage: a child's ru_maxrss starts with what its parent, the test process, had.
    code = (
        "import re, torch, sortpass, sortpass.samplers\n"
        "sortpass.explain(sortpass.samplers.top_p, torch.empty(8192, 128256, device='meta'), inner='aot_eager')\n"
        "high_water = re.search(r'VmHWM:\\s+(\\d+) kB', open('/proc/self/status').read())\n"
        "assert int(high_water[1]) < 2**20, high_water[0]\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_compare_measures_what_was_predicted_and_finds_results_equal(capsys: Any) -> None:
    seen = compare(warp, torch.randn(100, 4_000), rounds=1, inner="aot_eager", row_chunk=8, min_bytes=1)
    assert seen.equal
    assert seen.peak_bytes == pytest.approx(seen.predicted_bytes, rel=0.05)
    assert seen.peak_bytes[1] < seen.peak_bytes[0]
    assert "equal: results, strides, writes into arguments, random state" in capsys.readouterr().out


def test_compare_gives_each_run_its_own_arguments_and_random_state() -> None:
    logits = torch.randn(50, 400)
    before = logits.clone()
    state = torch.get_rng_state()
    seen = compare(in_place, logits, rounds=1, inner="aot_eager", row_chunk=8, min_bytes=1)
    assert seen.equal
    assert torch.equal(logits, before)
    assert torch.equal(torch.get_rng_state(), state)


def test_compare_times_each_run_on_fresh_arguments() -> None:
    was_fresh = []

    def mask_(x: Any) -> None:
        was_fresh.append(not x.isinf().any())
        x.fill_(-float("inf"))

    seen = compare(torch._dynamo.disable(mask_), torch.zeros(4, 5), rounds=2, inner="aot_eager")
    assert seen.equal and len(was_fresh) == 2 * (1 + 1 + 1 + 2) and all(was_fresh)


def test_compare_tells_what_differs() -> None:
    calls = []

    def unsteady(x: Any) -> Any:
        calls.append(len(calls))
        return x.sort(-1)[0] + len(calls)

    seen = compare(torch._dynamo.disable(unsteady), torch.zeros(4, 5), rounds=1, inner="aot_eager")
    assert not seen.equal
    assert seen.differences == ("value 0: 20 of 20 elements differ, by 1 at most",)
    assert seen.largest_difference == 1.0


def test_one_line_a_graph_is_logged_and_every_decision_in_detail(caplog: Any) -> None:
    with caplog.at_level(logging.DEBUG, logger="sortpass"):
        compile_chunked(warp)(torch.randn(10, 50))
    lines = [record for record in caplog.records if record.name.startswith("sortpass")]
    assert [record.levelname for record in lines] == ["INFO", "DEBUG"]
    assert "logits_process.py" in lines[1].getMessage()


def test_a_dump_folder_holds_the_graph_before_and_after(tmp_path: Path) -> None:
    compile_chunked(warp, dump_dir=str(tmp_path))(torch.randn(10, 50))
    (folder,) = tmp_path.iterdir()
    files = {path.name: path.read_text() for path in folder.iterdir()}
    assert set(files) == {"before.txt", "after.txt", "diff.txt", "report.json", "README.txt"}
    assert "while_loop" not in files["before.txt"]
    assert "while_loop" in files["after.txt"]
    assert all(name in files["README.txt"] for name in files if name != "README.txt")
    assert json.loads(files["report.json"])["modified"]


def test_the_structured_trace_has_the_graphs_and_the_report(tmp_path: Path) -> None:
    code = (
        "import torch\n"
        "step = torch.compile(lambda x: x.sort(-1)[0].cumsum(-1), backend='chunked_sort',"
        " options={'inner': 'aot_eager', 'row_chunk': 3, 'min_bytes': 1})\n"
        "step(torch.randn(10, 50))\n"
    )
    environment = {"TORCH_TRACE": str(tmp_path), "PATH": ""}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr
    (trace,) = tmp_path.iterdir()
    names = {name for name in ("before", "after", "diff", "report") if f'"sortpass_{name}"' in trace.read_text()}
    assert names == {"before", "after", "diff", "report"}


def test_an_error_says_where_explain_cannot_follow() -> None:
    with pytest.raises(sortpass.EstimateError, match="broken_by_value cannot be followed without running it"):
        explain(broken_by_value, BIG)


def broken_by_value(x: Any) -> Any:
    return x.sort(-1)[0] if x.sum() > 0 else x
