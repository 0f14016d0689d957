"""ShareStreams: the share streams of a server, from their opening to its stop."""

import threading

import pyarrow.flight as flight

from wings_core.contracts.share import ShareEnd
from wings_core.errors import WingsError
from wings_core.log import Log
from wings_core.times import Deadline
from wings_server.flight.share_loop import GroupLoops
from wings_server.flight.share_opening import Admission, messages_of, open_stream, refuse
from wings_server.flight.share_stream import ServedStream
from wings_server.metrics import Metrics

DRAIN_SECONDS_MAX = 2.0
"""How long a stop waits for members to acknowledge what they hold."""


class ShareStreams:
    """The share streams of a server; all methods from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: set[ServedStream] = set()
        self._loops = GroupLoops()

    def serve(
        self,
        log: Log,
        descriptor: flight.FlightDescriptor,
        reader: flight.MetadataRecordBatchReader,
        writer: flight.MetadataRecordBatchWriter,
        metrics: Metrics,
        admission: Admission,
    ) -> None:
        """Serve a stream until its client has ended its side; blocks for as long as that takes."""
        try:
            opened = open_stream(log, descriptor, admission)
        except WingsError as error:
            metrics.failed("flight", error.code)
            refuse(writer, error)
        else:
            with self._loops.joined(log.shares.coordinator, opened.group) as loop:
                stream = ServedStream(log, opened, writer, metrics, admission, loop)
                with self._lock:
                    self._open.add(stream)
                try:
                    stream.run(reader)
                finally:
                    with self._lock:
                        self._open.discard(stream)
        for _ in messages_of(reader):
            pass  # It waits for the client to end its side.

    def stop(self, drain_seconds: float) -> None:
        """End all streams in order; their clients are told, and what they hold is released.

        Before that nothing more is delivered, and their members have `drain_seconds`, at most
        `DRAIN_SECONDS_MAX`, to acknowledge what they hold. Blocks meanwhile.
        """
        with self._lock:
            streams = list(self._open)
        for stream in streams:
            stream.drain()
        deadline = Deadline.after(min(drain_seconds, DRAIN_SECONDS_MAX))
        for stream in streams:
            stream.wait_until_free(deadline)
        for stream in streams:
            stream.end(ShareEnd(None, "the server is stopping"))
