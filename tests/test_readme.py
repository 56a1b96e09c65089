"""The README is true: its snippets run, its commands parse, and its option table is what the config's docs say.

README_ACCEPT=1 pytest tests/test_readme.py    # writes the option table
"""

from __future__ import annotations

import ast
import inspect
import os
import re
import shlex
from pathlib import Path
from typing import Any

import hf_models
import pytest
import torch
from samplers import top_p

import sortpass
from sortpass.__main__ import _parser
from sortpass.config import ChunkConfig
from sortpass.rules import registry

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
ROWS, VOCAB = 300, 2_000


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def option_table() -> str:
    """The options of :class:`ChunkConfig` as Markdown, from the docstring under each field."""
    (body,) = (node for node in ast.parse(inspect.getsource(ChunkConfig)).body if isinstance(node, ast.ClassDef))
    lines = ["| option | default | what it does |", "| --- | --- | --- |"]
    for field, doc in zip(body.body, body.body[1:], strict=False):
        is_documented = isinstance(doc, ast.Expr) and isinstance(doc.value, ast.Constant)
        if isinstance(field, ast.AnnAssign) and is_documented and field.value is not None:
            text = re.sub(r":\w+:`~?([\w.]+)`", r"`\1`", " ".join(str(doc.value.value).split())).replace("``", "`")
            lines.append(f"| `{ast.unparse(field.target)}` | `{_default(field.value)}` | {text} |")
    return "\n".join(lines)


def _default(value: ast.expr) -> str:
    number = eval(ast.unparse(value))  # a literal or a product of such
    return f"{number:,}" if type(number) is int and number > 999 else repr(number).replace("'", '"')


def test_the_option_table_is_that_of_the_config() -> None:
    if os.environ.get("README_ACCEPT"):
        text = re.sub(
            r"@@OPTIONS@@|\| option \| default \|.*?(?=\n\n)", lambda _: option_table(), README, flags=re.DOTALL
        )
        (ROOT / "README.md").write_text(text)
    assert option_table() in (ROOT / "README.md").read_text()


def sample_step(logits: Any) -> Any:
    return top_p(None, logits).softmax(-1)


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setattr(registry, "_RULES", dict(registry._RULES))  # a snippet registers one
    with torch.library._scoped_library("mylib", "DEF") as library:
        library.define("row_norm(Tensor self, int dim) -> Tensor")
        logits = torch.randn(ROWS, VOCAB)
        yield {
            "torch": torch,
            "sortpass": sortpass,
            "Dim": torch.export.Dim,
            "sample_step": sample_step,
            "step": torch.compile(sample_step, backend="chunked_sort", options={"inner": "aot_eager"}),
            "module": _Step(),
            "logits": logits,
            "model": (model := hf_models.gpt2(2_000).eval()),
            "inputs": (inputs := hf_models.inputs_of("gpt2")),
            "input_ids": inputs["input_ids"],
        }
        assert "_get_logits_processor" not in model.__dict__


class _Step(torch.nn.Module):
    def forward(self, logits: Any) -> Any:
        return sample_step(logits)


@pytest.mark.parametrize("index", range(len(blocks("python"))))
def test_a_snippet_runs(index: int, names: dict[str, Any], capsys: Any) -> None:
    exec(blocks("python")[index], names)
    if "report" in names:
        assert names["report"].steps and names["report"].steps == names["report"].steps_below_threshold
    if "reports" in names:
        assert len(names["reports"]) == 1


def test_commands_are_there() -> None:
    makefile = (ROOT / "Makefile").read_text()
    commands = [shlex.split(line, comments=True) for block in blocks("sh") for line in block.splitlines()]
    commands += [shlex.split(text) for text in re.findall(r"`((?:python|make|sortpass) [^`]+)`", README)]
    assert len(commands) >= 10
    for program, *arguments in commands:
        if program == "make":
            assert f"\n{arguments[0]}:" in makefile
        elif program == "sortpass" or arguments[:2] == ["-m", "sortpass"]:
            arguments = arguments if program == "sortpass" else arguments[2:]
            _parser().parse_args(
                [text.replace("sampler.py:sample_step", "sortpass.samplers:top_p") for text in arguments]
            )
        else:
            assert (ROOT / arguments[0]).is_file()


def test_files_it_links_to_are_there() -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", README)
    assert len(links) >= 4
    assert all((ROOT / link).exists() for link in links)
