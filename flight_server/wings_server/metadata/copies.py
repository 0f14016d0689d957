"""Copies of the metadata, which the nodes read; see `handlers`."""

# ruff: noqa: D102 - the `.proto` file describes each RPC.
import secrets
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from wings_core.errors import InvalidArgument, ResourceExhausted
from wings_core.metadata.interfaces import Metadata
from wings_core.protocol.v1 import copies_pb2 as copies_pb

COPIES_MAX = 4
"""Copies at a time; each is a file as large as the metadata."""

SILENT_SECONDS_MAX = 600.0
"""A copy of which nothing was read for so long is deleted: its node is gone."""

READ_BYTES_MAX = 8 * 1024 * 1024
"""The most bytes of one answer."""


@dataclass(slots=True)
class _OpenCopy:
    directory: "tempfile.TemporaryDirectory[str]"
    used_at: float

    @property
    def path(self) -> Path:
        return Path(self.directory.name) / "metadata.sqlite"


class CopyHandlers:
    """Handles the methods of `wings.v1.CopyService`."""

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata
        self._lock = threading.Lock()
        """Guards the table; no other lock is taken under it."""
        self._copies: dict[str, _OpenCopy] = {}

    def begin_copy(self, _: copies_pb.BeginCopyRequest) -> copies_pb.BeginCopyResponse:
        self._end_silent()
        with self._lock:
            if len(self._copies) >= COPIES_MAX:
                raise ResourceExhausted(f"{COPIES_MAX} copies of the metadata are being read")
        copy_id = secrets.token_hex(16)
        copy = _OpenCopy(tempfile.TemporaryDirectory(prefix="wings-copy-"), time.monotonic())
        try:
            with self._metadata.copying() as write:
                write(copy.path)
        except BaseException:
            copy.directory.cleanup()
            raise
        with self._lock:
            copy.used_at = time.monotonic()
            self._copies[copy_id] = copy
        return copies_pb.BeginCopyResponse(copy_id=copy_id)

    def read_copy(self, request: copies_pb.ReadCopyRequest) -> copies_pb.ReadCopyResponse:
        with self._lock:
            copy = self._copies.get(request.copy_id)
            if copy is not None:
                copy.used_at = time.monotonic()
        try:
            if copy is not None:
                with copy.path.open("rb") as file:
                    file.seek(request.start)
                    return copies_pb.ReadCopyResponse(data=file.read(READ_BYTES_MAX))
        except FileNotFoundError:
            pass  # It was ended meanwhile.
        raise InvalidArgument("there is no such copy of the metadata, or not any more")

    def end_copy(self, request: copies_pb.EndCopyRequest) -> copies_pb.EndCopyResponse:
        with self._lock:
            copy = self._copies.pop(request.copy_id, None)
        if copy is not None:
            copy.directory.cleanup()
        return copies_pb.EndCopyResponse()

    def _end_silent(self) -> None:
        oldest = time.monotonic() - SILENT_SECONDS_MAX
        with self._lock:
            silent = [each for each, copy in self._copies.items() if copy.used_at < oldest]
            ended = [self._copies.pop(each) for each in silent]
        for copy in ended:
            copy.directory.cleanup()
