"""What the commands show: tables, lines and progress; through rich where it is installed, as plain text where not."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from types import ModuleType

TABLE_WIDTH = 160  # columns, at most; left to itself rich cuts numbers off on a narrow terminal


@dataclasses.dataclass(frozen=True)
class Table:
    """Cells as text, ready to be shown."""

    title: str
    headers: Sequence[str]
    rows: Sequence[Sequence[str]]


def say(text: str = "") -> None:
    """Write one line."""
    sys.stdout.write(text + "\n")


def show(table: Table) -> None:
    """Write a table: first column to the left, the others to the right."""
    if has("rich"):
        _show_rich(table)
    else:
        say(plain(table))


def plain(table: Table) -> str:
    """The table as aligned text."""
    lines = [list(table.headers), *(list(row) for row in table.rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(table.headers))]
    lines.insert(1, ["-" * width for width in widths])
    text = ("  ".join(_align(cell, widths[i], i) for i, cell in enumerate(line)).rstrip() for line in lines)
    return "\n".join((table.title, *text))


def _align(cell: str, width: int, column: int) -> str:
    return cell.ljust(width) if column == 0 else cell.rjust(width)


def _show_rich(table: Table) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table as RichTable

    shown = RichTable(title=escape(table.title), title_justify="left")
    for column, header in enumerate(table.headers):
        shown.add_column(escape(header), justify="left" if column == 0 else "right", no_wrap=True)
    for row in table.rows:
        shown.add_row(*map(escape, row))
    Console(file=sys.stdout, width=TABLE_WIDTH).print(shown)


class Progress:
    """Progress as lines on stderr, one per stage."""

    def stage(self, text: str) -> None:
        """Say what starts now."""
        sys.stderr.write(f"  {text}\n")
        sys.stderr.flush()

    def tick(self) -> None:
        """One unit of work is done."""


@contextlib.contextmanager
def progress(total: int) -> Iterator[Progress]:
    """Show progress on stderr: a bar on a terminal with rich installed, else a line per stage.

    Args:
        total: calls of ``tick`` that will come.
    """
    if not (sys.stderr.isatty() and has("rich")):
        yield Progress()
        return
    from rich.console import Console
    from rich.progress import Progress as RichBar

    # No refresh thread: it would run beside what is being timed.
    with RichBar(console=Console(stderr=True), auto_refresh=False, transient=True) as bar:
        task = bar.add_task("starting", total=total)

        class RichProgress(Progress):
            def stage(self, text: str) -> None:
                bar.update(task, description=text, refresh=True)

            def tick(self) -> None:
                bar.update(task, advance=1, refresh=True)

        yield RichProgress()


def has(module: str) -> bool:
    """Whether an optional dependency is installed."""
    return importlib.util.find_spec(module) is not None


def require(module: str, extra: str) -> ModuleType:
    """Import an optional dependency, or leave with the command that installs it."""
    if not has(module.partition(".")[0]):
        raise SystemExit(f"sortpass: this needs {module.partition('.')[0]}; pip install sortpass[{extra}]")
    return importlib.import_module(module)
