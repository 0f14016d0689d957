"""Watches of topics at the metadata service: one stream for all readers of a topic on this node.

A stream has a thread of its own while it is watched. It begins with an empty message, from which
on no commit is missed; so watchers are told to look at everything then, also after a lost
connection.
"""

import logging
import random
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager

import grpc

from wings_core.errors import ResourceExhausted
from wings_core.metadata.remote.watches import RETRY_SECONDS
from wings_core.partitions import Partition
from wings_core.protocol.v1 import offset_registry_pb2 as pb
from wings_core.protocol.v1.stubs import OffsetRegistryServiceStub

TOPICS_MAX = 1_024
"""How many topics a node watches at once, at a thread each."""

Callback = Callable[[Mapping[Partition, int] | None], None]

_logger = logging.getLogger(__name__)


class TopicWatches:
    """The watched topics of this node; safe from many threads.

    Args:
        stub: The service.
    """

    def __init__(self, stub: OffsetRegistryServiceStub) -> None:
        self._stub = stub
        self._lock = threading.Lock()
        self._streams: dict[str, _Stream] = {}

    @contextmanager
    def watch(self, topic_uuid: str, callback: Callback) -> Generator[None]:
        """Call back during the block; see `OffsetRegistry.watch_topic`.

        Raises:
            ResourceExhausted: Too many topics are watched already, or threads run.
        """
        key = object()
        with self._lock:
            stream = self._streams.get(topic_uuid)
            if stream is None:
                if len(self._streams) >= TOPICS_MAX:
                    raise ResourceExhausted(f"{TOPICS_MAX} topics are watched already")
                stream = _Stream(self._stub, topic_uuid)
                stream.callbacks[key] = callback
                stream.start()
                self._streams[topic_uuid] = stream
            else:
                # Where it is open, what is committed from now on will be heard.
                stream.callbacks[key] = callback
        try:
            yield
        finally:
            with self._lock:
                del stream.callbacks[key]
                ended = not stream.callbacks
                if ended:
                    del self._streams[topic_uuid]
            if ended:
                stream.end()


class _Stream:
    """The stream of one topic; `callbacks` change under the lock of `TopicWatches`."""

    def __init__(self, stub: OffsetRegistryServiceStub, topic_uuid: str) -> None:
        self.callbacks: dict[object, Callback] = {}
        self._stub = stub
        self._request = pb.WatchTopicRequest(topic_uuid=topic_uuid)
        self._ended = threading.Event()
        self._call: grpc.Call | None = None

    def start(self) -> None:
        """Begin; takes no lock.

        Raises:
            ResourceExhausted: No thread can be started.
        """
        thread = threading.Thread(target=self._run, name="wings-topic-watch", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            raise ResourceExhausted(f"no thread can be started: {error}") from None

    def end(self) -> None:
        """End the stream; one callback may still be under way."""
        self._ended.set()
        call = self._call
        if call is not None:
            call.cancel()

    def _run(self) -> None:
        pause, pause_max = RETRY_SECONDS
        while not self._ended.is_set():
            try:
                changes = self._stub.WatchTopic(self._request)
                self._call = changes
                if self._ended.is_set():
                    changes.cancel()
                for change in changes:
                    pause = RETRY_SECONDS[0]
                    ends = {Partition(end.partition): end.next_offset for end in change.ends}
                    self._tell(ends or None)
            except grpc.RpcError:
                pass  # The service is not there, has no room, or stops.
            except ValueError:
                return  # So gRPC says that the channel is closed.
            # The pauses of many differ, or all of them would come back at one moment.
            self._ended.wait(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, pause_max)

    def _tell(self, ends: Mapping[Partition, int] | None) -> None:
        for callback in list(self.callbacks.values()):
            try:
                callback(ends)
            except Exception:
                _logger.exception("a waiter's callback failed")
