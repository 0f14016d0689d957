"""What `wings holds rebuild` does."""

from contextlib import closing
from pathlib import Path

from wings_core.data_directory import DataDirectory
from wings_core.metadata.open import has_metadata, open_metadata
from wings_core.model import ShareGroup
from wings_core.share.open import all_groups
from wings_core.share.replica.rebuild import Rebuilt, rebuild_holds


def rebuild_directory(path: Path, metadata_url: str | None) -> Rebuilt:
    """Rebuild the holds of a data directory; see `rebuild_holds`.

    Raises:
        Unavailable: A server has the directory open.
        InvalidArgument: It is none of Wings, or its metadata is somewhere else.
        AlreadyExists: The holds are sound.
        Internal: The metadata cannot be read.
    """
    DataDirectory.open_read_only(path).close()  # Which makes none where there is none.
    with DataDirectory.open(path, "metadata") as directory:
        groups: list[ShareGroup] = []
        if has_metadata(directory):
            with closing(open_metadata(directory, metadata_url, read_only=True)) as metadata:
                groups = all_groups(metadata.admin, metadata.groups)
        return rebuild_holds(directory.holds, groups)
