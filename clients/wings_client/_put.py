"""One DoPut stream: batches out, answers in, each on a thread of its own."""

import pyarrow as pa

from wings_client._errors import typed_errors
from wings_client._transport import Transport
from wings_core.contracts.put import PutCommand, PutResult, result_from_json
from wings_core.errors import WingsError


class PutStream:
    """An open DoPut. `write` and `finish` belong to one thread, `read` to another.

    Args:
        transport: To the server.
        command: The descriptor.
        schema: Of the batches.
        seconds: After which the stream ends with an error, wherever it is.

    Attributes:
        endpoint: Who serves it.

    Raises:
        WingsError: `Unavailable` where nobody is there.
    """

    def __init__(
        self, transport: Transport, command: PutCommand, schema: pa.Schema, seconds: float
    ) -> None:
        self._transport = transport
        self._writer, self._reader, self.endpoint = transport.put(command, schema, seconds)

    def write(self, batch: pa.RecordBatch, metadata: bytes | None) -> bool:
        """Send a batch; blocks while the server does not read.

        Returns:
            False where the stream has ended, which `close` tells more about.
        """
        try:
            if metadata is None:
                self._writer.write_batch(batch)
            else:
                self._writer.write_with_metadata(batch, pa.py_buffer(metadata))
        except (pa.ArrowException, OSError):
            return False
        return True

    def read(self) -> PutResult | None:
        """Return the next answer; blocks until it is there.

        Returns:
            None where the stream has ended, which `close` tells more about.
        """
        try:
            raw = self._reader.read()
        except (pa.ArrowException, OSError):
            return None
        return None if raw is None else result_from_json(raw)

    def finish(self) -> None:
        """Say that no more batches come; the server answers those it has and ends the stream."""
        try:
            self._writer.done_writing()
        except (pa.ArrowException, OSError):
            return  # `close` tells.

    def close(self) -> WingsError | None:
        """Let go of the stream, once no thread writes or reads.

        Returns:
            What the server, or the connection, ended it with; None where it ended well.
        """
        try:
            with typed_errors(self.endpoint):
                self._writer.close()
        except WingsError as error:
            self._transport.addresses.note(error, self.endpoint)
            return error
        return None
