"""The commands, at sizes that take seconds."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from sortpass import console
from sortpass.__main__ import main
from sortpass.measure import own_code
from sortpass.samplers import SAMPLERS, TOP_P, TYPICAL_MASS, example_args, top_k_top_p

DEMO = ["demo", "--rows", "32", "--vocab", "2000", "--row-chunk", "8", "--inner", "aot_eager", "--rounds", "1"]
BENCH = ["bench", "--num-tokens", "32", "--vocab-size", "2000", "--inner", "aot_eager", "--rounds", "1"]


@pytest.fixture
def no_rich(monkeypatch: pytest.MonkeyPatch) -> None:
    _hide(monkeypatch, "rich")


def _hide(monkeypatch: pytest.MonkeyPatch, *modules: str) -> None:
    has = console.has
    monkeypatch.setattr(console, "has", lambda module: module not in modules and has(module))


def test_demo_rewrites_the_sort_and_keeps_the_tokens(capsys: pytest.CaptureFixture[str], no_rich: None) -> None:
    pytest.importorskip("transformers")
    assert main(DEMO) == 0
    out = capsys.readouterr().out
    assert "rewritten 1 of 1 sorts" in out
    whole, chunked = (re.split(r" {2,}", line) for line in out.splitlines() if line.startswith(("whole", "chunked,")))
    assert chunked[-1] == "yes"
    assert float(chunked[1]) < float(whole[1])


def test_demo_draws_its_plot(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("matplotlib")
    assert main([*DEMO, "--plot", str(tmp_path / "new" / "demo.png")]) == 0
    assert (tmp_path / "new" / "demo.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("module", "extra", "option"), [("transformers", "hf", []), ("matplotlib", "plot", ["--plot", "demo.png"])]
)
def test_demo_names_the_extra_it_misses(
    monkeypatch: pytest.MonkeyPatch, module: str, extra: str, option: list[str]
) -> None:
    _hide(monkeypatch, module)
    with pytest.raises(SystemExit, match=rf"needs {module}; pip install sortpass\[{extra}\]"):
        main([*DEMO, *option])


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_bench_stays_below_its_bound_with_equal_results(tmp_path: Path, sampler: str) -> None:
    options = ["--row-chunk", "8", "--sampler", sampler, "--check-accuracy"]
    assert main([*BENCH, *options, "--output-dir", str(tmp_path)]) == 0
    data = json.loads((tmp_path / "bench.json").read_text())
    rows = {row["variant"]: row for row in data["rows"]}
    assert list(rows) == ["eager", "whole", "region c=8", "sort-only c=8"]
    region = rows["region c=8"]
    assert region["rewritten"] == "1 of 1"
    if sampler == "sort":
        assert region["bound"] == pytest.approx(12 + 12 * 8 / 32 + 0.3)
        assert rows["sort-only c=8"]["within_bound"] is region["within_bound"] is True
    else:
        assert region["peak_bytes"] < rows["whole"]["peak_bytes"]
    if sampler == "top_p":
        assert region["bound"] == pytest.approx(4 + 22 * 8 / 32 + 0.3)
        assert region["bytes_per_logit"] <= region["bound"]
    assert region["equal_to_whole"] is True
    assert data["environment"]["torch"] == torch.__version__


def test_bench_peak_of_a_region_does_not_grow_with_the_rows(tmp_path: Path) -> None:
    assert main([*BENCH, "--row-chunk", "4", "--scaling", "--output-dir", str(tmp_path)]) == 0
    scaling = json.loads((tmp_path / "bench.json").read_text())["scaling"]
    assert (tmp_path / "scaling.png").read_bytes().startswith(b"\x89PNG")
    extra = {(row["variant"], row["rows"]): row["extra_bytes"] for row in scaling}
    assert extra["whole", 32] == pytest.approx(4 * extra["whole", 8], rel=0.05)
    assert extra["region c=4", 32] == pytest.approx(extra["region c=4", 8], rel=0.05)


def test_bench_fails_where_a_bound_is_broken(monkeypatch: pytest.MonkeyPatch, no_rich: None, tmp_path: Path) -> None:
    monkeypatch.setattr("sortpass.bench.OUTPUT_BYTES", 0)
    assert main([*BENCH, "--row-chunk", "4", "--output-dir", str(tmp_path)]) == 1


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "required: {demo,explain,compare,bench,doctor}"),
        (["demo", "--rows", "0"], "0 is less than 1"),
        (["demo", "--row-chunk", "many"], "invalid positive_int value: 'many'"),
        (["bench", "--inner", "inducto"], "'inducto' is no registered backend; choices are: "),
        (["bench", "--sampler", "top_q"], "invalid choice: 'top_q'"),
        (["bench", "--device", "gpu"], "'gpu' is no device the meter can read"),
    ],
)
def test_wrong_arguments_are_named(capsys: pytest.CaptureFixture[str], argv: list[str], message: str) -> None:
    with pytest.raises(SystemExit) as error:
        main(argv)
    assert error.value.code == 2
    assert message in capsys.readouterr().err


def test_help_works_in_a_fresh_process() -> None:
    command = [sys.executable, "-m", "sortpass", "demo", "--help"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "--row-chunk ROW_CHUNK" in result.stdout


def test_table_without_rich_is_aligned(capsys: pytest.CaptureFixture[str], no_rich: None) -> None:
    console.show(console.Table("Sizes", ("name", "MiB"), [("a", "1.5"), ("longer", "10.0")]))
    assert capsys.readouterr().out == "Sizes\nname     MiB\n------  ----\na        1.5\nlonger  10.0\n"


def test_variants_of_one_function_are_compiled_apart() -> None:
    compiled: list[str] = []

    def backend(name: str) -> Callable[..., Any]:
        return lambda gm, inputs: compiled.append(name) or gm.forward

    def fn(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    for name, size in (("first", 3), ("second", 3), ("third", 4)):
        assert torch.compile(own_code(fn), backend=backend(name), fullgraph=True)(torch.ones(size)).shape == (size,)
    assert compiled == ["first", "second", "third"]


@pytest.mark.parametrize(("name", "warper", "value"), [("top_p", "TopP", TOP_P), ("typical", "Typical", TYPICAL_MASS)])
def test_sampler_equals_the_one_of_transformers(name: str, warper: str, value: float) -> None:
    logits_process = pytest.importorskip("transformers.generation.logits_process")
    (logits,) = example_args(name, 8, 500, "cpu")
    expected = getattr(logits_process, f"{warper}LogitsWarper")(value)(None, logits)
    assert torch.equal(SAMPLERS[name](logits), expected)


def test_top_k_top_p_keeps_the_most_likely_of_each_row() -> None:
    logits, k, p = example_args("top_k_top_p", 8, 500, "cpu")
    result = top_k_top_p(logits, k, p)
    for row in range(8):
        top = logits[row].topk(int(k[row]))
        before = top.values.softmax(-1).cumsum(-1) - top.values.softmax(-1)
        expected = top.indices[before < p[row]].sort().values
        assert torch.equal(result[row].isfinite().nonzero().squeeze(1), expected)


SAMPLE = """
import torch

def step(logits):
    return logits.sort(-1)[0].softmax(-1).cumsum(-1).lt(0.5).sum(-1)

def by_value(logits):
    return step(logits) if logits.sum() > 0 else logits
"""


@pytest.fixture
def sample(tmp_path: Path) -> str:
    (tmp_path / "sample.py").write_text(SAMPLE)
    return str(tmp_path / "sample.py")


def test_explain_takes_a_function_of_a_file_and_a_shape(
    sample: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], no_rich: None
) -> None:
    target = f"{sample}:step"
    assert (
        main(["explain", target, "--shape", "8192x128256", "--dtype", "bf16", "--json", str(tmp_path / "e.json")]) == 0
    )
    out = capsys.readouterr().out
    assert re.search(r"graph 0: sort +sample.py:5 +bfloat16\[8192, 128256\] +loop, \d+ windows", out)
    assert json.loads((tmp_path / "e.json").read_text())["graphs"][0]["modified"]
    assert main(["explain", target, "--device", "cuda"]) == 0
    assert "windows of 256 rows" in capsys.readouterr().out


def test_compare_takes_a_function_of_a_module_and_proves_it(capsys: pytest.CaptureFixture[str], no_rich: None) -> None:
    target = "sortpass.samplers:top_p"
    options = ["--shape", "64x4000", "--inner", "aot_eager", "--row-chunk", "8", "--min-bytes", "1", "--rounds", "1"]
    assert main(["compare", target, *options]) == 0
    out = capsys.readouterr().out
    assert "equal: results" in out
    assert "predicted peak" in out


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("sortpass.samplers", "is not module:function or file.py:function"),
        ("sortpass.samplers:topp", "has no function 'topp'; it has"),
        ("no_such_module:f", "cannot import no_such_module"),
        ("no_such_file.py:f", "no such file"),
    ],
)
def test_a_target_that_is_not_there_is_named(target: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["explain", target])
    assert stopped.value.code == 2
    assert says in capsys.readouterr().err


def test_what_cannot_be_followed_or_asked_for_is_said_in_one_line(
    sample: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", f"{sample}:by_value"]) == 2
    assert "by_value cannot be followed without running it" in capsys.readouterr().out
    assert main(["explain", f"{sample}:step", "--memory-budget", "lots"]) == 2
    assert "option 'memory_budget' is 'lots'" in capsys.readouterr().out


def test_doctor_finds_everything_here(capsys: pytest.CaptureFixture[str], no_rich: None) -> None:
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert out.count("pass") >= 6
    assert "FAIL" not in out


def test_doctor_says_what_to_do_about_what_is_missing(
    capsys: pytest.CaptureFixture[str], no_rich: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> str:
        raise RuntimeError("no compiler at all")

    monkeypatch.setattr("torch._inductor.cpp_builder.get_cpp_compiler", broken)
    assert main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert re.search(r"C\+\+ compiler +FAIL +no compiler at all", out)
    assert "C++ compiler: install g++" in out
