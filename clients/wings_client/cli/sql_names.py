"""The tables and columns that the SQL shell knows, and their completion."""

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
"""Of every topic's table."""

LOOK_SECONDS = 30.0
"""How long names are held before they are asked for again."""

_WORDS = re.compile(r"""'[^']*(?:'|\Z)|(?:"[^"]*(?:"|\Z)|[\w./-])+|.""", re.DOTALL)
"""Texts, words (with names in quotes, the last one maybe half typed), and what is between."""

_NAMES_MAX = 1_000
"""Most completions shown."""


class Tables:
    """The tables of a server, asked for when they are first needed.

    Args:
        client: Of the server.
        namespace: Of tables without a schema, by its full name; None: the default one.
    """

    def __init__(self, client: Client, namespace: str | None) -> None:
        self._client = client
        self._bare = DEFAULT_NAMESPACE if namespace is None else NamespaceName.parse(namespace)
        self._columns: Mapping[str, Sequence[str]] = {}
        self._looked_at: float | None = None

    def look(self) -> None:
        """Ask for the tables and their columns.

        Raises:
            WingsError: They cannot be told.
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
        """Return the columns of each table, by its name in SQL; without a server, as before."""
        if self._looked_at is None or time.monotonic() > self._looked_at + LOOK_SECONDS:
            with suppress(WingsError):
                self.look()
        return self._columns


class SqlCompleter(Completer):
    """Completes tables, the columns of those that the statement names, and words of SQL.

    Args:
        columns: Returns the columns of each table.
        commands: The shell's own, such as `.tables`.
    """

    def __init__(
        self, columns: Callable[[], Mapping[str, Sequence[str]]], commands: Sequence[str]
    ) -> None:
        self._columns = columns
        self._commands = commands

    def get_completions(
        self, document: Document, complete_event: CompleteEvent
    ) -> Iterable[Completion]:
        """Yield what the word before the cursor may become; may block for an answer."""
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
