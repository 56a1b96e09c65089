"""Every example runs, from its file, as a user would run it."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

EXAMPLES = sorted(Path(__file__).parent.parent.joinpath("examples").glob("*.py"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_and_prints_what_it_did(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(path))["main"]()
    assert capsys.readouterr().out
    assert len(path.read_text().splitlines()) < 60
