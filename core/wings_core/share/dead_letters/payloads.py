"""Payloads of dead letters: rows as Arrow IPC RecordBatch messages that tell their columns apart.

Such a message has no schema, and Arrow reads it by any that it is given. So its metadata has a
fingerprint of its schema, which readers that do not know of it pass over.
"""

import hashlib
from collections.abc import Sequence

import pyarrow as pa

from wings_core.errors import InvalidArgument

_FINGERPRINT = b"wings.schema"


def payload_of(row: pa.RecordBatch) -> bytes:
    """Return a batch as a payload."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, row.schema) as writer:
        writer.write_batch(row, custom_metadata={_FINGERPRINT: _fingerprint(row.schema)})
    messages = pa.ipc.MessageReader.open_stream(sink.getvalue())
    messages.read_next_message()  # The schema.
    return messages.read_next_message().serialize().to_pybytes()


def read_payload(
    payload: pa.Buffer, schemas: Sequence[pa.Schema], *, unmarked: bool
) -> tuple[pa.RecordBatch, int]:
    """Return the batch of a payload, and the number of its schema, from 1 on.

    Args:
        payload: A result of `payload_of`, or one without a fingerprint.
        schemas: The versions of its schema: it has the last that fits.
        unmarked: Whether one without a fingerprint has the first.

    Raises:
        InvalidArgument: It has none of them, or is damaged.
    """
    failure: InvalidArgument | None = None
    for version in range(len(schemas), 0, -1):
        try:
            batch = _read(payload, schemas[version - 1], unmarked=unmarked and version == 1)
        except InvalidArgument as error:
            failure = failure or error
        else:
            return batch, version
    assert failure is not None
    raise failure


def _read(payload: pa.Buffer, schema: pa.Schema, *, unmarked: bool) -> pa.RecordBatch:
    stream = pa.BufferOutputStream()
    stream.write(schema.serialize())
    stream.write(payload)
    try:
        with pa.ipc.open_stream(stream.getvalue()) as reader:
            found = reader.read_next_batch_with_custom_metadata()
    except (pa.ArrowInvalid, OSError, StopIteration) as error:
        raise InvalidArgument(f"its payload is damaged or has other columns: {error}") from None
    metadata = found.custom_metadata or {}
    fingerprint = metadata.get(_FINGERPRINT)
    fits = unmarked if fingerprint is None else fingerprint == _fingerprint(schema)
    if not fits:
        raise InvalidArgument("its payload has other columns, of a topic of the same name")
    return found.batch


def _fingerprint(schema: pa.Schema) -> bytes:
    columns = "\n".join(f"{field.name!r}: {field.type}" for field in schema)
    return hashlib.sha256(columns.encode()).hexdigest()[:32].encode()
