"""One DoPut stream: batches are written on one thread, responses read on another."""

from typing import Any

import pyarrow as pa

from wings_client._errors import call_errors, typed_errors
from wings_client._model import Topic
from wings_client._transport import Transport
from wings_core.contracts.put import PutCommand, put_answer
from wings_core.errors import WingsError, error_from_json


class PutStream:
    """An open DoPut. `write` and `finish` belong to one thread, `read` to another.

    Args:
        transport: To the server.
        command: The descriptor.
        topic: The topic that it is meant for.
        seconds: The gRPC deadline: after so many the stream fails.

    Attributes:
        endpoint: The address of the node that serves it.

    Raises:
        WingsError: `Unavailable` where no server was reached.
    """

    def __init__(
        self, transport: Transport, command: PutCommand, topic: Topic, seconds: float
    ) -> None:
        self._transport = transport
        self._writer, self._reader, self.endpoint = transport.put(command, topic, seconds)

    def write(self, batch: pa.RecordBatch, metadata: bytes | None) -> bool:
        """Send a batch; blocks while the server does not read.

        Returns:
            False if the stream has ended; `close` returns why.
        """
        try:
            if metadata is None:
                self._writer.write_batch(batch)
            else:
                self._writer.write_with_metadata(batch, pa.py_buffer(metadata))
        except call_errors():
            return False
        return True

    def read(self) -> dict[str, Any] | None:
        """Return the next answer, with key `committed` or `staged`; blocks until it is there.

        Returns:
            None if the stream has ended; `close` returns why.

        Raises:
            WingsError: What the batch was refused with.
        """
        try:
            raw = self._reader.read()
        except call_errors():
            return None
        if raw is None:
            return None
        answer = put_answer(raw)
        if "error" in answer:
            raise error_from_json(answer["error"])
        return answer

    def finish(self) -> None:
        """Half-close: the server responds to the batches it has and ends the stream."""
        try:
            self._writer.done_writing()
        except call_errors():
            return  # `close` returns it.

    def close(self) -> WingsError | None:
        """Close the stream, once no thread writes or reads.

        Returns:
            The error that ended it; None where it ended cleanly.
        """
        try:
            with typed_errors(self.endpoint):
                self._writer.close()
        except WingsError as error:
            self._transport.addresses.note(error, self.endpoint)
            return error
        return None
