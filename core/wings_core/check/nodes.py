"""Check the log of nodes without data directories: all that they share."""

from collections.abc import Callable
from contextlib import closing

from wings_core.check.log import check_log
from wings_core.check.report import CheckReport
from wings_core.limits import Limits
from wings_core.metadata.open import open_postgres
from wings_core.storage.inline_folios import InlineFolios
from wings_core.storage.open import open_shared_storage


def check_nodes(
    metadata_url: str,
    hot_url: str | None = None,
    remote_url: str | None = None,
    progress: Callable[[int], None] | None = None,
) -> CheckReport:
    """Check every page of the log of nodes without data directories; see `check_log`.

    Nothing is written, and nodes may run. PostgreSQL checks its own files.

    Args:
        metadata_url: Where PostgreSQL is.
        hot_url: The object store of new messages; None for that which the nodes noted.
        remote_url: That of old ones; as `hot_url`.
        progress: Called after each page with the number of pages done.

    Raises:
        InvalidArgument: The metadata is of other servers, or the nodes have other object stores.
        WingsError: PostgreSQL or an object store cannot be read at all.
    """
    with closing(open_postgres(metadata_url, read_only=True)) as metadata:
        metadata.check_claim_for_nodes()
        storage = open_shared_storage(
            metadata,
            Limits(),
            hot_url=hot_url,
            remote_url=remote_url,
            inline=InlineFolios(metadata.registry.read_inline),
            store_id=None,
        )
        with closing(storage.store) as store:
            return check_log(metadata, store, progress)
