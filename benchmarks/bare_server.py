"""The baseline: a bare pyarrow Flight server that streams from memory and discards what it gets."""

import json
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue

import pyarrow as pa
import pyarrow.flight as flight


class BareServer(flight.FlightServerBase):
    """Keeps one table per name, all in memory, and serves its batches again and again."""

    def __init__(self, certificate: Path | None = None, key: Path | None = None) -> None:
        if certificate is None or key is None:
            super().__init__("grpc://127.0.0.1:0")
        else:
            pair = flight.CertKeyPair(certificate.read_text(), key.read_text())
            super().__init__("grpc+tls://127.0.0.1:0", tls_certificates=[pair])
        self._tables: dict[str, pa.Table] = {}
        self._waiting: dict[str, list[SimpleQueue[pa.RecordBatch]]] = {}
        """The streams that wait to be handed a batch, by name."""

    def do_get(
        self, context: flight.ServerCallContext, ticket: flight.Ticket
    ) -> flight.FlightDataStream:
        """Stream a table's batches, those of files in a directory, or those handed to a name."""
        name = ticket.ticket.decode()
        if name.startswith("hand "):
            name = name.removeprefix("hand ")
            return flight.GeneratorStream(self._tables[name].schema, self._handed(name))
        if name not in self._tables:
            return _files_stream(sorted(Path(name).iterdir()))
        return flight.RecordBatchStream(self._tables[name])

    def do_action(
        self, context: flight.ServerCallContext, action: flight.Action
    ) -> Iterator[bytes]:
        """Tell the process's id, or its port."""
        yield str(self.port if action.type == "port" else os.getpid()).encode()

    def do_put(
        self,
        context: flight.ServerCallContext,
        descriptor: flight.FlightDescriptor,
        reader: flight.MetadataRecordBatchReader,
        writer: flight.FlightMetadataWriter,
    ) -> None:
        """Keep copies of a batch, `times` of them, under a name, or answer each and forget it."""
        assert descriptor.command is not None
        command = json.loads(descriptor.command)
        while True:
            try:
                batch = reader.read_chunk().data
            except StopIteration:
                return
            assert batch is not None
            if "keep" in command:
                copies = [_copy(batch) for _ in range(command["times"])]
                self._tables[command["keep"]] = pa.Table.from_batches(copies)
            for waiting in self._waiting.get(command.get("hand"), ()):
                waiting.put(batch)
            writer.write(pa.py_buffer(b"{}"))

    def _handed(self, name: str) -> Iterator[pa.RecordBatch]:
        waiting: SimpleQueue[pa.RecordBatch] = SimpleQueue()
        self._waiting.setdefault(name, []).append(waiting)
        while True:
            yield waiting.get()


def _files_stream(paths: list[Path]) -> flight.FlightDataStream:
    def batches() -> Iterator[pa.RecordBatch]:
        for path in paths:
            with pa.OSFile(str(path), "rb") as source:
                file = pa.ipc.open_file(source)
                for number in range(file.num_record_batches):
                    yield file.get_batch(number)

    with pa.OSFile(str(paths[0]), "rb") as source:
        schema = pa.ipc.open_file(source).schema
    return flight.GeneratorStream(schema, batches())


def _copy(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the same rows in memory of their own, as a log's batches have.

    One batch streamed over and over would stay in the processor's cache.
    """
    return pa.ipc.read_record_batch(batch.serialize(), batch.schema)


def main() -> None:
    """Serve until terminated; the first line on standard output is the port."""
    server = BareServer(*map(Path, sys.argv[1:]))
    print(server.port, flush=True)  # noqa: T201 - told to the parent process
    threading.Event().wait()


if __name__ == "__main__":
    main()
