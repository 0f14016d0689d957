"""Work: files that one task reads and stages, each in a stage of its own."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast
from uuid import uuid4

import pyarrow as pa
from pydantic import BaseModel, ConfigDict

import wings_client
from wings_client import Client, Topic
from wings_core.errors import BatchTooLarge, InvalidArgument
from wings_core.queue.claims import Claim, ClaimedFile, FileResult
from wings_core.queue.commit import stage_prefix, writer_of
from wings_spark.ingest.read_file import FileError, FileReader, Reading, SupersededError
from wings_spark.ingest.settings import SourceSettings

STAGE_SECONDS_MAX = 24 * 3600.0
"""How long one file may take; a server sweeps what was left for as long, unless set otherwise."""


class Work(BaseModel):
    """What a task does; goes to it as JSON."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    claim: int
    token: str
    """The pipeline's."""
    files: tuple[ClaimedFile, ...]


@dataclass(frozen=True, slots=True)
class Done:
    """What a task did."""

    claim: int
    results: tuple[FileResult, ...]
    """None where the claim had been published before."""


def split(claim: Claim, token: str, tasks_max: int) -> list[Work]:
    """Share out a claim's files to tasks by size, the largest first; files keep their order."""
    loads = [0] * max(1, min(tasks_max, len(claim.files)))
    shares: list[list[int]] = [[] for _ in loads]
    by_size = sorted(range(len(claim.files)), key=lambda index: -(claim.files[index].size or 1))
    for index in by_size:
        lightest = loads.index(min(loads))
        loads[lightest] += claim.files[index].size or 1
        shares[lightest].append(index)
    return [
        Work(
            claim=claim.number,
            token=token,
            files=tuple(claim.files[index] for index in sorted(share)),
        )
        for share in shares
    ]


def carry_out(settings: SourceSettings, works: Sequence[Work]) -> list[Done]:
    """Read and stage the files of some works, unless their claim is published already.

    A file that cannot be read is a result with an error, and leaves the others alone.

    Raises:
        WingsError: The server failed: the task is to be tried again.
    """
    with wings_client.connect(settings.target.endpoint) as client:
        done: list[Done] = []
        for work in works:
            writer = writer_of(settings.name, work.token)
            if client.abort(writer, (), work.claim).published is True:
                done.append(Done(work.claim, ()))
                continue
            topic = client.topic(settings.target.topic)
            reader = FileReader(settings, topic.schema, topic.partition_key)
            results = tuple(_stage(client, topic, reader, work, file) for file in work.files)
            done.append(Done(work.claim, results))
        return done


def _stage(
    client: Client, topic: Topic, reader: FileReader, work: Work, file: ClaimedFile
) -> FileResult:
    """Read and stage one file; what is wrong with it is in the result."""
    if file.problem is not None:
        return FileResult(file.shard, error=file.problem, permanent=True)
    try:
        return _staged(client, topic, reader, work, file)
    except SupersededError as error:
        if file.position == 0:
            return FileResult(file.shard, None, 0, finished=True)
        return FileResult(file.shard, error=str(error), permanent=True)
    except FileError as error:
        return FileResult(file.shard, error=str(error))
    except (InvalidArgument, BatchTooLarge) as error:
        # What the server refuses rows with.
        return FileResult(file.shard, error=error.message)


def _staged(
    client: Client, topic: Topic, reader: FileReader, work: Work, file: ClaimedFile
) -> FileResult:
    reading = Reading(file.position)
    batches = reader.batches(file, reading)
    first = next(batches, None)
    if first is None:
        return FileResult(file.shard, None, reading.next_position, reading.finished)
    # Left by an error, the stage is deleted.
    stage_id = f"{stage_prefix(work.token, work.claim)}{uuid4()}"
    with client.stage(topic, stage_id, seconds_max=STAGE_SECONDS_MAX) as stage:
        stage.write(first)
        for batch in batches:
            stage.write(batch)
    staged = stage.close()
    return FileResult(
        file.shard,
        staged.stage,
        reading.next_position,
        reading.finished,
        reading.rescued,
        staged.bytes,
    )


def works_of(batches: Iterator[pa.RecordBatch]) -> list[Work]:
    """Return the works that a task was handed, as rows of one column of JSON."""
    texts: list[Any] = []
    for batch in batches:
        texts += cast("Any", batch).column(0).to_pylist()
    return [Work.model_validate_json(text) for text in texts]
