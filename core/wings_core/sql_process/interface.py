"""Types shared by the server and its statement processes; importing them loads no DuckDB."""

from dataclasses import dataclass

CATALOG = "wings"
"""The only catalog; it holds all tables."""

_OUT_OF_MEMORY = ("MemoryError", "OutOfMemoryException")

_HARMLESS = ("ParserException", "BinderException", "CatalogException")
"""Errors that DuckDB reports before a statement runs."""


@dataclass(frozen=True, slots=True)
class View:
    """A view to create for a statement."""

    create: str
    drop: str


@dataclass(frozen=True, slots=True)
class Parsed:
    """The result of DuckDB's parser."""

    tree: str
    """The statements as JSON, or an error."""
    kinds: tuple[str, ...]
    """Kinds of the statements, if the tree is the error about statements other than SELECT."""


class EngineFailed(Exception):  # noqa: N818 - internal: translated before it reaches callers.
    """A failure of DuckDB, or of Arrow within it.

    Attributes:
        message: The error's text; DuckDB's own includes JSON.
        kind: Name of the exception's class.
        shift: Bytes that precede the statement in the text sent to DuckDB.
    """

    def __init__(self, message: str, kind: str, shift: int = 0) -> None:
        super().__init__(message)
        self.message = message
        self.kind = kind
        self.shift = shift

    @classmethod
    def stopped(cls) -> "EngineFailed":
        """Return the failure of a cancelled or timed-out query."""
        return cls("the query was stopped", "InterruptException")

    @property
    def of_memory(self) -> bool:
        """Whether memory ran out, which may leave it fragmented."""
        return self.kind in _OUT_OF_MEMORY

    @property
    def harmless(self) -> bool:
        """Whether the engine is still usable."""
        return self.kind in _HARMLESS
