"""The tables and columns for the SQL shell, and their completion."""

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document

from wings_client import Client
from wings_client.cli.sql_text import KEYWORDS, name_in_sql
from wings_core.contracts.sql import SYSTEM, SYSTEM_TABLES, schema_of
from wings_core.errors import WingsError
from wings_core.names import DEFAULT_NAMESPACE, NamespaceName, TopicName

OWN_COLUMNS = ("__partition", "__offset", "__timestamp")
"""System columns of every topic's table."""

LOOK_SECONDS = 30.0
"""Time for which names are cached."""

_WORDS = re.compile(r"""'[^']*(?:'|\Z)|(?:"[^"]*(?:"|\Z)|[\w./-])+|.""", re.DOTALL)
"""Pattern of tokens: texts, words (with quoted, maybe unfinished names), other characters."""

_NAMES_MAX = 1_000
"""Most completions shown."""


class Tables:
    """The tables of a server, read on first use.

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


class SqlCompleter(Completer):
    """Completion of tables, of columns of the statement's tables, and of SQL's keywords.

    Args:
        columns: Returns the columns of each table.
        commands: The shell's commands, such as `.tables`.
    """

    def __init__(
        self, columns: Callable[[], Mapping[str, Sequence[str]]], commands: Sequence[str]
    ) -> None:
        self._columns = columns
        self._commands = commands

    def get_completions(
        self, document: Document, complete_event: CompleteEvent
    ) -> Iterable[Completion]:
        """Yield completions of the word before the cursor; may block for the server."""
        before = document.text_before_cursor
        if before.startswith(".") and not before.startswith(".schema "):
            yield from _completions(self._commands, before)
            return
        typed = (_WORDS.findall(before) or [""])[-1]
        if not typed.startswith("'"):
            yield from _completions(self._names(document.text), typed.lstrip())

    def _names(self, text: str) -> Iterator[str]:
        tables = self._columns()
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
