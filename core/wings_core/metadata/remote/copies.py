"""Copies of the metadata that a service keeps."""

import os
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from wings_core.errors import WingsError
from wings_core.metadata.remote.channel import ServiceChannel
from wings_core.protocol.v1 import copies_pb2 as pb
from wings_core.protocol.v1.stubs import CopyServiceStub

BEGIN_SECONDS_MAX = 3_600.0
"""How long the service may take to write a copy."""


@contextmanager
def copying(channel: ServiceChannel) -> Generator[Callable[[Path], None]]:
    """Have the service fix its state; see `Metadata.copying`. Blocks while it writes it down."""
    stub = CopyServiceStub(channel.channel)
    copy_id = channel.call(
        stub.BeginCopy, pb.BeginCopyRequest(), BEGIN_SECONDS_MAX, changes=False
    ).copy_id
    try:
        yield partial(_read, channel, stub, copy_id)
    finally:
        with suppress(WingsError):  # The service ends it by itself, later.
            channel.look(stub.EndCopy, pb.EndCopyRequest(copy_id=copy_id))


def _read(channel: ServiceChannel, stub: CopyServiceStub, copy_id: str, into: Path) -> None:
    at = 0
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    with os.fdopen(os.open(into, flags, 0o600), "wb") as file:
        while True:
            request = pb.ReadCopyRequest(copy_id=copy_id, start=at)
            data = channel.look(stub.ReadCopy, request).data
            if not data:
                return
            file.write(data)
            at += len(data)
