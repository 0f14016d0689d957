"""Archiving or deletion of completely published files, if a source asks for it.

Only the version that was read is affected: a file overwritten since is kept. A file can still be
overwritten between the check of its version and its move or deletion.
"""

import errno
import logging
from collections.abc import Sequence
from pathlib import Path

from wings_core.errors import InvalidArgument
from wings_core.queue.journal import ClaimedFile
from wings_core.queue.notifications import bucket_and_key, is_object
from wings_spark.ingest.files import FileError, RefusedError
from wings_spark.ingest.settings import SourceSettings

_logger = logging.getLogger(__name__)


class Disposal:
    """A function that archives or deletes files of a source.

    Args:
        settings: Settings of the source, with `archive` or `delete`.

    Raises:
        InvalidArgument: The source reads from the archive, or the archive is in another bucket.
    """

    def __init__(self, settings: SourceSettings) -> None:
        self._settings = settings
        self._places = settings.places
        self._archive = settings.files.archive
        if self._archive is not None:
            _check_archive(self._archive, self._places.prefixes)

    def __call__(self, files: Sequence[tuple[ClaimedFile, str]]) -> None:
        """Archive or delete files, each in the version that was read; missing files are skipped.

        Raises:
            Unavailable: The object store or this machine's disk is temporarily unusable.
            Unauthenticated: The object store rejects the credentials.
        """
        for file, version in files:
            if file.payload is not None:
                continue
            try:
                if is_object(file.uri):
                    self._dispose_of_object(file.uri, version)
                else:
                    self._dispose_of_path(file.uri, version)
            except (FileError, RefusedError, OSError) as error:
                _logger.warning("%s stays where it is: %s", file.uri, error)

    def _dispose_of_path(self, uri: str, version: str) -> None:
        from wings_spark.ingest.fetch import version_of

        if not Path(uri).exists():
            return
        with self._places.opened(uri) as opened:
            if version_of(opened, uri) != version:
                raise FileError("it was overwritten since it was read")
        if self._archive is None:
            Path(uri).unlink(missing_ok=True)
            return
        target = Path(self._archive) / self._below(uri)
        if target.exists():
            target = target.with_name(f"{target.name}.{version}")
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            Path(uri).rename(target)
        except OSError as error:
            if error.errno == errno.EXDEV:
                raise FileError(f"{self._archive} is on another file system") from None
            raise

    def _dispose_of_object(self, uri: str, version: str) -> None:
        import obstore

        from wings_spark.ingest.stores import seen_version, store_errors, store_of

        bucket, key = bucket_and_key(uri)
        with store_errors(uri, None):
            store = store_of(bucket, self._settings.files)
            try:
                about = obstore.head(store, key)
            except FileNotFoundError:
                return
            if seen_version(about) != version:
                raise FileError("it was overwritten since it was read")
            if self._archive is not None:
                folder = self._archive.removeprefix(bucket).strip("/")
                obstore.copy(store, key, f"{folder}/{self._below(uri)}")
            obstore.delete(store, key)

    def _below(self, uri: str) -> str:
        """Return the path of a file below the nearest place that the source may read."""
        places = [f"{each.rstrip('/')}/" for each in self._places.prefixes]
        place = max((each for each in places if uri.startswith(each)), key=len, default="/")
        return uri.removeprefix(place)


def disposal_of(settings: SourceSettings) -> Disposal | None:
    """Return the disposal in a source's settings, if any.

    Raises:
        InvalidArgument: As `Disposal`.
    """
    files = settings.files
    return Disposal(settings) if files.delete or files.archive is not None else None


def _check_archive(archive: str, places: Sequence[str]) -> None:
    bucket = _bucket_of(archive)
    for place in places:
        if f"{archive.rstrip('/')}/".startswith(f"{place.rstrip('/')}/"):
            raise InvalidArgument(
                f"'files.archive' is in {place!r:.80}, which the source reads: name a place outside"
            )
        if _bucket_of(place) != bucket:
            where = "on this machine" if bucket is None else f"in the bucket {bucket:.80}"
            raise InvalidArgument(f"'files.archive' is {where}, and {place!r:.80} is not")


def _bucket_of(place: str) -> str | None:
    return bucket_and_key(place)[0] if is_object(place) else None
