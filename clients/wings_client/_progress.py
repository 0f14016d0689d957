"""The progress of long pushes and scans in a notebook, displayed by its kernel.

No package is needed for it: outside of a kernel of Jupyter batches pass as they are.
"""

import os
import sys
import time
from collections.abc import Generator, Iterable
from html import escape
from typing import Any

from wings_client.arrow import RecordBatch
from wings_core.errors import InvalidArgument

SHOWN_AFTER_SECONDS = 2.0
"""Seconds below which nothing is displayed, unless the variable says otherwise."""

VARIABLE = "WINGS_PROGRESS_SECONDS"
"""Variable of the environment: seconds after which progress is displayed; `inf`: never."""

SECONDS_BETWEEN = 0.25
"""Seconds between two updates."""


def in_notebook() -> bool:
    """Tell whether a kernel of Jupyter runs this."""
    shell: Any = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(shell, "kernel", None) is not None


def rows_known(data: Any) -> int | None:
    """Return how many rows a table or a data frame has; None: only its end tells."""
    found = getattr(data, "num_rows", None)
    if found is None:
        found = (getattr(data, "shape", None) or (None,))[0]
    return found if isinstance(found, int) else None


def counted(batches: Iterable[RecordBatch], what: str, total: int | None) -> Generator[RecordBatch]:
    """Yield batches, and display in a notebook how many of their rows have passed.

    The display is updated as batches are asked for, and removed at the end.

    Args:
        batches: Rows that are sent or read.
        what: Name of the work, like `push to orders`.
        total: Rows in all; None: not known.
    """
    from IPython.display import display  # pyright: ignore[reportMissingModuleSource]

    started = time.monotonic()
    due = started + _shown_after()
    place: Any = None
    rows = 0
    try:
        for batch in batches:
            yield batch
            rows += batch.num_rows
            now = time.monotonic()
            if now >= due:
                shown = _shown(what, rows, total, now - started)
                if place is None:
                    place = display(shown, raw=True, display_id=True)
                else:
                    place.update(shown, raw=True)
                due = now + SECONDS_BETWEEN
    finally:
        if place is not None:
            place.update({"text/plain": "", "text/html": ""}, raw=True)


def _shown_after() -> float:
    text = os.environ.get(VARIABLE)
    try:
        return SHOWN_AFTER_SECONDS if text is None else float(text)
    except ValueError:
        raise InvalidArgument(f"{VARIABLE} is no number of seconds: {text!r:.80}") from None


def _shown(what: str, rows: int, total: int | None, seconds: float) -> dict[str, str]:
    """Return the progress as text and as HTML."""
    of = "" if total is None else f" of {total:,}"
    text = f"{what}: {rows:,}{of} rows, {rows / max(seconds, 1e-3):,.0f} rows/s"
    bar = "" if total is None else f'<progress value="{rows}" max="{total}"></progress> '
    return {"text/plain": text, "text/html": f"{bar}{escape(text)}"}
