"""Words of a server and of its process of statements, which load no DuckDB."""

from dataclasses import dataclass

CATALOG = "wings"
"""The one catalog in which tables are."""

_OUT_OF_MEMORY = ("MemoryError", "OutOfMemoryException")

_HARMLESS = ("ParserException", "BinderException", "CatalogException")
"""Errors in a statement that DuckDB finds before it runs."""


@dataclass(frozen=True, slots=True)
class View:
    """A view to be made for a statement."""

    create: str
    drop: str


@dataclass(frozen=True, slots=True)
class Parsed:
    """The result of DuckDB's parser."""

    tree: str
    """The statements as JSON, or an error."""
    kinds: tuple[str, ...]
    """Kinds of the statements, where the tree is the error of statements other than SELECT."""


class EngineFailed(Exception):  # noqa: N818 - callers see what it is translated into.
    """A failure of DuckDB, or of Arrow within it.

    Attributes:
        message: The error's text, with DuckDB's JSON in it where it is DuckDB's.
        kind: The exception's class.
        shift: Bytes that DuckDB got before the statement.
    """

    def __init__(self, message: str, kind: str, shift: int = 0) -> None:
        super().__init__(message)
        self.message = message
        self.kind = kind
        self.shift = shift

    @classmethod
    def stopped(cls) -> "EngineFailed":
        """Return the failure of a query that is to end."""
        return cls("the query was stopped", "InterruptException")

    @property
    def of_memory(self) -> bool:
        """Whether memory was short, of which the rest may be in pieces."""
        return self.kind in _OUT_OF_MEMORY

    @property
    def harmless(self) -> bool:
        """Whether the engine is as good as before."""
        return self.kind in _HARMLESS
