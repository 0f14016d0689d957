"""Versions of the tables of metadata: what this code reads, brings up to date, and refuses."""

from wings_core.errors import Internal

OLDEST_RELEASE = "0.1.0"
"""The release that brings all earlier versions to the oldest ones that are migrated here."""


def check_version(version: int, oldest: int, newest: int) -> None:
    """Check the version of tables.

    Args:
        version: Theirs.
        oldest: The oldest that will do: for reading alone, the newest.
        newest: The version of this code.

    Raises:
        Internal: It is newer than this code, or too old.
    """
    if version > newest:
        raise Internal(
            f"the metadata is of version {version}, newer than {newest}, which this code knows: "
            "it was written by a later Wings and needs one to be read"
        )
    if version >= oldest:
        return
    if oldest == newest:
        raise Internal(
            f"the metadata is of version {version}, this code reads {newest}: "
            "start the server once, which brings it up to date"
        )
    raise Internal(
        f"the metadata is of version {version}, older than {oldest}, that of {OLDEST_RELEASE}: "
        f"bring it over with that (`pip install 'wings-flight[server]=={OLDEST_RELEASE}'`, and "
        "start the server on it once)"
    )
