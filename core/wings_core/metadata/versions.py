"""Versions of the tables of metadata: what this code makes, brings up to date, and refuses.

A new database gets the tables of one text. Those of the last release, and of commits after it,
become these by migrations; older ones are refused. From release to release formats are frozen.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from wings_core.errors import Internal

OLDEST_RELEASE = "0.1.0"
"""The release that brings all earlier versions to the oldest ones that are migrated here."""


@dataclass(frozen=True, slots=True)
class Versions:
    """The tables of a database, and the versions of them that become these.

    Attributes:
        schema: The statements that make the tables; the time is bound in those that name it.
        oldest: The oldest version that is migrated: that of `OLDEST_RELEASE`.
        migrations: The statements that bring each version, from the oldest on, to the next.
    """

    schema: Sequence[str]
    oldest: int
    migrations: Sequence[Sequence[str]] = ()

    @property
    def newest(self) -> int:
        """The version of the schema."""
        return self.oldest + len(self.migrations)

    def step(self, version: int) -> tuple[Sequence[str], int]:
        """Return the statements that lead on from a version (0: none), and where they lead."""
        if version == 0:
            return self.schema, self.newest
        return self.migrations[version - self.oldest], version + 1

    def check(self, version: int, *, read_only: bool = False) -> None:
        """Check the version of tables.

        Args:
            version: Theirs.
            read_only: Whether they cannot be migrated.

        Raises:
            Internal: It is newer than this code, or too old.
        """
        if version > self.newest:
            raise Internal(
                f"the metadata is of version {version}, newer than {self.newest}, which this code "
                "knows: it was written by a later Wings and needs one to be read"
            )
        if version < self.oldest:
            raise Internal(
                f"the metadata is of version {version}, older than {self.oldest}, that of "
                f"{OLDEST_RELEASE}: bring it over with that (`pip install "
                f"'wings-flight[server]=={OLDEST_RELEASE}'`, and start the server on it once)"
            )
        if read_only and version < self.newest:
            raise Internal(
                f"the metadata is of version {version}, this code reads {self.newest}: "
                "start the server once, which brings it up to date"
            )
