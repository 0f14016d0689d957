"""The shell of `wings sql`: statements typed at a terminal, each ended by `;`.

Enter runs a command that begins with a dot, or a statement that ends with `;`; otherwise it begins
a new line. Ctrl-C discards the input at the prompt, and cancels a running statement.
"""

import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.application import get_app
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.shortcuts import CompleteStyle

from wings_client import Client
from wings_client.cli.environment import state_directory
from wings_client.cli.output import Format, write_rows
from wings_client.cli.values import count_of
from wings_core.contracts.sql import SYSTEM, SYSTEM_TABLES, schema_of
from wings_core.errors import WingsError
from wings_core.names import DEFAULT_NAMESPACE, NamespaceName, TopicName

_PARTS = re.compile(
    r"""
    '(?:[^']|'')*(?:'|\Z) | "(?:[^"]|"")*(?:"|\Z)   # a text, a name
    | --[^\n]*(?:\n|\Z) | /\*.*?(?:\*/|\Z)          # comments
    | \$(?P<tag>\w*)\$.*?(?:\$(?P=tag)\$|\Z)        # a text between dollars
    | (?P<end>;) | .
    """,
    re.VERBOSE | re.DOTALL,
)

_COMMENTS = ("--", "/*")

_BARE = re.compile(r"[a-z_][a-z0-9_]*")

KEYWORDS = (
    "all", "and", "any", "as", "asc", "between", "by", "case", "cast", "count", "desc",
    "describe", "distinct", "else", "end", "except", "exists", "false", "from", "full", "group",
    "having", "in", "inner", "intersect", "is", "join", "left", "like", "limit", "max", "min",
    "not", "null", "offset", "on", "or", "order", "over", "partition", "qualify", "right",
    "select", "sum", "summarize", "then", "true", "union", "using", "values", "when", "where",
    "window", "with",
)  # fmt: skip
"""Keywords, which are completed, and quoted as names."""


def split_statements(text: str) -> tuple[list[str], str]:
    """Return the statements terminated by `;`, without it, and the rest of the text.

    A `;` in a text, a quoted name or a comment does not terminate. Blank statements, and those with
    only comments, are skipped.
    """
    statements: list[str] = []
    start, says = 0, False
    for part in _PARTS.finditer(text):
        if part["end"]:
            if says:
                statements.append(text[start : part.start()].strip())
            start, says = part.end(), False
        elif part[0].strip() and not part[0].startswith(_COMMENTS):
            says = True
    return statements, text[start:] if says else ""


def is_open(text: str) -> bool:
    """Return whether a text, a quoted name, a comment or a statement is unterminated."""
    return bool(split_statements(text + "\n")[1]) or split_statements(text + "\n;x")[1] != "x"


def name_in_sql(name: str) -> str:
    """Return a name for a statement, quoted if needed."""
    if _BARE.fullmatch(name) and name not in {*KEYWORDS, "default"}:
        return name
    return '"' + name.replace('"', '""') + '"'


OWN_COLUMNS = ("__partition", "__offset", "__timestamp")
"""System columns of every topic's table."""

LOOK_SECONDS = 30.0
"""Time for which names are cached."""

_WORDS = re.compile(r"""'[^']*(?:'|\Z)|(?:"[^"]*(?:"|\Z)|[\w./-])+|.""", re.DOTALL)
"""Pattern of tokens: texts, words (with quoted, maybe unfinished names), other characters."""

_NAMES_MAX = 1_000
"""Most completions shown."""


COMMANDS = (".format", ".help", ".quit", ".schema", ".tables")
"""The shell's own commands."""


class SqlCompleter(Completer):
    """Completion of tables, of columns of the statement's tables, and of SQL's keywords.

    The server's tables are read on first use.

    Args:
        client: Client of the server.
        namespace: Full name of the namespace of unqualified tables; None for the default one.
    """

    def __init__(self, client: Client, namespace: str | None) -> None:
        self._client = client
        self._bare = DEFAULT_NAMESPACE if namespace is None else NamespaceName.parse(namespace)
        self._columns: Mapping[str, Sequence[str]] = {}
        self._looked_at: float | None = None

    def look(self) -> None:
        """Read the tables and their columns.

        Raises:
            WingsError: The server cannot be reached, or rejects the query.
        """
        found: dict[str, Sequence[str]] = {}
        for topic in self._client.topics():
            name = TopicName.parse(topic.name)
            table = name_in_sql(name.topic)
            if name.namespace != self._bare:
                table = f"{name_in_sql(schema_of(name.namespace))}.{table}"
            found[table] = topic.schema.names
        for name in SYSTEM_TABLES:
            found[f"{SYSTEM}.{name}"] = ()
        self._columns, self._looked_at = found, time.monotonic()

    def columns(self) -> Mapping[str, Sequence[str]]:
        """Return the columns of each table by its name in SQL; cached ones if the server fails."""
        if self._looked_at is None or time.monotonic() > self._looked_at + LOOK_SECONDS:
            with suppress(WingsError):
                self.look()
        return self._columns

    def get_completions(
        self, document: Document, complete_event: CompleteEvent
    ) -> Iterable[Completion]:
        """Yield completions of the word before the cursor; may block for the server."""
        before = document.text_before_cursor
        if before.startswith(".") and not before.startswith(".schema "):
            yield from _completions(COMMANDS, before)
            return
        typed = (_WORDS.findall(before) or [""])[-1]
        if not typed.startswith("'"):
            yield from _completions(self._names(document.text), typed.lstrip())

    def _names(self, text: str) -> Iterator[str]:
        tables = self.columns()
        if not text.startswith("."):
            for table, columns in tables.items():
                if table in text:
                    yield from map(name_in_sql, columns)
            yield from OWN_COLUMNS
        yield from tables
        yield from KEYWORDS


def _completions(names: Iterable[str], typed: str) -> Iterator[Completion]:
    wanted = typed.replace('"', "").lower()
    near = (name for name in names if name.replace('"', "").lower().startswith(wanted))
    for name in list(dict.fromkeys(near))[:_NAMES_MAX]:
        yield Completion(name, start_position=-len(typed))


PROMPT, CONTINUED = "wings> ", "   ...> "

SHOWN_FORMATS: tuple[Format, ...] = ("table", "json", "csv")
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


class Shell:
    """The loop that reads statements from the terminal and runs them.

    Args:
        client: Client of the server.
        namespace: Full name of the namespace of unqualified tables; None for the default one.
        timeout: Seconds that a statement may take; None: as many as the server lets any.
        wanted: How rows are written at first.
    """

    def __init__(
        self, client: Client, namespace: str | None, timeout: float | None, wanted: Format
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._timeout = timeout
        self._format: Format = wanted
        self._tables = SqlCompleter(client, namespace)
        self._session: PromptSession[str] = PromptSession(
            message=PROMPT,
            multiline=Condition(_is_continued),
            prompt_continuation=CONTINUED,
            history=_history(state_directory() / "sql_history"),
            completer=self._tables,
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
            except EOFError:
                return

    def _do(self, typed: str) -> None:
        if typed.lstrip().startswith("."):
            name, _, rest = typed.strip().rstrip(";").partition(" ")
            self._guarded(lambda: self._command(name, rest.strip()))
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
        began = time.monotonic()
        rows = write_rows(
            lambda: self._client.sql(text, namespace=self._namespace, timeout=self._timeout),
            self._format,
        )
        sys.stdout.flush()
        _say(f"{count_of(rows, 'row')} in {time.monotonic() - began:.2f} s")

    def _command(self, name: str, argument: str) -> None:
        """Run one of `COMMANDS`; `.quit` is the end of the input."""
        match name:
            case ".format" if argument in SHOWN_FORMATS:
                self._format = argument
            case ".format" if argument:
                _say(f"formats are {', '.join(SHOWN_FORMATS)}; for others, use wings sql --format")
            case ".format":
                _say(self._format)
            case ".help":
                sys.stdout.write(f"{HELP}\n")
            case ".quit":
                raise EOFError
            case ".schema":
                self._schema(argument)
            case ".tables":
                self._tables.look()
                for table in self._tables.columns():
                    sys.stdout.write(f"{table}\n")
            case _:
                _say(f"there is no {name}: {' '.join(COMMANDS)}")

    def _schema(self, table: str) -> None:
        if not table:
            _say("usage: .schema TABLE")
            return
        name = f"wings.{table}" if table.startswith("system.") else table
        text = f"select column_name as column, column_type as type from (describe {name})"
        write_rows(lambda: self._client.sql(text, namespace=self._namespace), "table")


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
