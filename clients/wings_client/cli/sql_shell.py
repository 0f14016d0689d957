"""The shell of `wings sql`: statements typed at a terminal, each ended by `;`.

Enter runs a command that begins with a dot, or a statement that ends with `;`; otherwise it begins
a
new line. Ctrl-C discards the input at the prompt, and cancels a running statement.
"""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from prompt_toolkit import PromptSession
from prompt_toolkit.application import get_app
from prompt_toolkit.filters import Condition
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.shortcuts import CompleteStyle

from wings_client import Client
from wings_client.cli.sql_names import SqlCompleter, Tables
from wings_client.cli.sql_run import SqlFormat, count_of, progress, write_rows
from wings_client.cli.sql_text import is_open, split_statements
from wings_client.cli.state import state_directory
from wings_core.errors import WingsError

PROMPT, CONTINUED = "wings> ", "   ...> "

SHOWN_FORMATS = (SqlFormat.TABLE, SqlFormat.JSON, SqlFormat.CSV)
"""Formats for a terminal."""

HELP = """\
A statement ends with `;` and may take several lines; topics are its tables:

    select origin, count(*), max(delay) from flights group by origin;

.tables           the tables: topics, and system tables
.schema TABLE     the columns of a table, with their types
.format [NAME]    how rows are written: table, json or csv
.help             this
.quit             end; so does Ctrl-D

Tab completes tables, columns and words; Up shows what was typed before; Ctrl-C cancels."""


class _Quit(Exception):  # noqa: N818 - not an error
    """Ends the shell."""


class Shell:
    """The loop that reads statements from the terminal and runs them.

    Args:
        client: Client of the server.
        namespace: Full name of the namespace of unqualified tables; None for the default one.
        timeout: Timeout of a statement in seconds; None for the server's.
        wanted: Initial format of rows.
    """

    def __init__(
        self, client: Client, namespace: str | None, timeout: float | None, wanted: SqlFormat
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._timeout = timeout
        self._format = wanted
        self._tables = Tables(client, namespace)
        self._commands: Mapping[str, Callable[[str], None]] = {
            ".format": self._set_format,
            ".help": self._help,
            ".quit": self._quit,
            ".schema": self._schema,
            ".tables": self._show_tables,
        }
        self._session: PromptSession[str] = PromptSession(
            message=PROMPT,
            multiline=Condition(_is_continued),
            prompt_continuation=CONTINUED,
            history=_history(state_directory() / "sql_history"),
            completer=SqlCompleter(self._tables.columns, list(self._commands)),
            complete_while_typing=False,
            complete_style=CompleteStyle.READLINE_LIKE,
        )

    def run(self) -> None:
        """Run typed statements and commands until the end of input or `.quit`."""
        _say("SQL over topics; .help for help, Ctrl-D to end")
        while True:
            try:
                self._do(self._session.prompt())
            except KeyboardInterrupt:
                continue
            except (EOFError, _Quit):
                return

    def _do(self, typed: str) -> None:
        if typed.lstrip().startswith("."):
            name, _, rest = typed.strip().rstrip(";").partition(" ")
            command = self._commands.get(name)
            if command is None:
                _say(f"there is no {name}: {' '.join(self._commands)}")
            else:
                self._guarded(lambda: command(rest.strip()))
            return
        for statement in split_statements(typed)[0]:
            if not self._guarded(lambda text=statement: self._execute(text)):
                return

    def _guarded(self, run: Callable[[], None]) -> bool:
        """Run a function; returns whether it succeeded, and prints its error otherwise."""
        try:
            run()
        except WingsError as error:
            _say(f"wings: {' '.join(error.message.split())}")
        except KeyboardInterrupt:
            _say("cancelled")
        else:
            return True
        return False

    def _execute(self, text: str) -> None:
        with progress() as shown:
            options: dict[str, Any] = {"namespace": self._namespace, "timeout": self._timeout}
            with self._client.sql(text, **options) as reader:
                write_rows(reader, self._format, shown)
        sys.stdout.flush()
        _say(f"{count_of(shown.rows)} in {shown.seconds:.2f} s")

    def _set_format(self, name: str) -> None:
        if name in SHOWN_FORMATS:
            self._format = SqlFormat(name)
        elif name:
            _say(f"formats are {', '.join(SHOWN_FORMATS)}; for others, use wings sql --format")
        else:
            _say(self._format)

    def _show_tables(self, _: str) -> None:
        self._tables.look()
        for name in self._tables.columns():
            sys.stdout.write(f"{name}\n")

    def _schema(self, table: str) -> None:
        if not table:
            _say("usage: .schema TABLE")
            return
        name = f"wings.{table}" if table.startswith("system.") else table
        described = self._client.sql(
            f"select column_name as column, column_type as type from (describe {name})",
            namespace=self._namespace,
        )
        with progress() as shown, described as reader:
            write_rows(reader, SqlFormat.TABLE, shown)

    def _help(self, _: str) -> None:
        sys.stdout.write(f"{HELP}\n")

    def _quit(self, _: str) -> None:
        raise _Quit


def _is_continued() -> bool:
    """Return whether Enter begins a new line of the input."""
    text = get_app().current_buffer.text
    return not text.lstrip().startswith(".") and is_open(text)


def _history(path: Path) -> History:
    """Return a history in a file, readable only by its owner; in memory if that fails."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.touch(mode=0o600)
    except OSError:
        return InMemoryHistory()
    return FileHistory(str(path))


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
