"""Names of files with messages, as a data directory has them whose messages are all in it."""

import hashlib

from wings_core.storage.object_folios import FOLIO_SUFFIX
from wings_core.storage.parquet_file import PARQUET_SUFFIX
from wings_core.storage.segment_objects import (
    HOT_SEGMENT_SUFFIX,
    LOCAL_SEGMENT_SUFFIX,
    SEGMENT_SUFFIX,
    store_suffix,
)

_TIME_DIGITS = 16


def local_name(folio: str) -> str:
    """Return the name of a folio in a directory; that of one which is in an object store changes.

    A folio that was an object becomes a segment, whose name says when it was begun; no two get
    the same.
    """
    suffix = store_suffix(folio)
    if suffix == FOLIO_SUFFIX:
        stem = folio.rpartition("/")[2].removesuffix(FOLIO_SUFFIX)
        number = hashlib.sha256(folio.encode()).hexdigest()[:8]
        return f"{stem[:_TIME_DIGITS]}-{number}.segment"
    if suffix in {SEGMENT_SUFFIX, HOT_SEGMENT_SUFFIX}:
        parquet = PARQUET_SUFFIX if folio.endswith(PARQUET_SUFFIX) else ""
        return folio.removesuffix(parquet).removesuffix(suffix) + LOCAL_SEGMENT_SUFFIX + parquet
    return folio
