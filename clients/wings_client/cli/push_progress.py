"""The progress bar of a push, on standard error if it is a terminal."""

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.table import Column
from rich.text import Text

if TYPE_CHECKING:
    from wings_client.files import OpenFile


class PushBar:
    """A progress bar.

    Args:
        progress: Display of the bar.
        file: The file being read.
        rows: Returns the number of rows that the server has so far.
    """

    def __init__(self, progress: Progress, file: "OpenFile", rows: Callable[[], int]) -> None:
        self._progress = progress
        self._file = file
        self._rows = rows
        self._started = time.monotonic()
        self._task = progress.add_task("", total=file.total, rows=0, rate=0.0)

    @property
    def is_shown(self) -> bool:
        """Whether standard error is a terminal."""
        return not self._progress.disable

    def update(self) -> None:
        """Update the progress."""
        rows = self._rows()
        seconds = max(time.monotonic() - self._started, 1e-3)
        self._progress.update(
            self._task, completed=self._file.position, rows=rows, rate=rows / seconds
        )


@contextmanager
def shown(file: "OpenFile", rows: Callable[[], int]) -> Generator[PushBar]:
    """Show a bar with rows per second on standard error, if it is a terminal."""
    console = Console(stderr=True)
    columns = (
        TextColumn("pushing"),
        BarColumn(bar_width=20),
        # In a narrow terminal, the bar shrinks, not this.
        _Amount(table_column=Column(no_wrap=True)),
        TimeRemainingColumn(),
    )
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as progress:
        yield PushBar(progress, file, rows)


class _Amount(ProgressColumn):
    """Rows, and rows a second."""

    def render(self, task: "Task") -> Text:
        """Return the text for a task."""
        fields = task.fields
        return Text(f"{fields['rows']:,} rows, {fields['rate']:,.0f} rows/s")
