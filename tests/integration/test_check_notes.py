"""What metadata has lost without a word, and its notes speak of, a check finds."""

import shutil
from pathlib import Path

import pyarrow as pa

from wings_core.check import check_directory
from wings_core.data_directory import DataDirectory
from wings_core.deployments import OneDirectory
from wings_core.ingest.pending import PushStream
from wings_core.ingest.prepare import Preparer, PushOptions
from wings_core.limits import Limits
from wings_core.log import Log
from wings_core.model import Topic
from wings_core.names import TopicName

LIMITS = Limits(maintenance_seconds=1e6, inline_bytes_max=0)
SCHEMA = pa.schema([("k", pa.string()), ("n", pa.int64())])
NAME = TopicName.parse("t")


def push(log: Log, topic: Topic, keys: str) -> None:
    rows = pa.record_batch([pa.array(list(keys)), pa.array(range(len(keys)))], schema=SCHEMA)
    prepared = Preparer(topic, log.limits).prepare(rows, PushOptions())
    log.group_commit.submit(PushStream(), prepared, awaited=True).accepted()


def test_transactions_that_are_gone_with_the_log_of_metadata_are_found(tmp_path: Path) -> None:
    path, before = tmp_path / "data", tmp_path / "before"
    with DataDirectory.open(path) as directory:
        log = Log.open(OneDirectory(directory), LIMITS)
        topic = log.admin.create_topic(NAME, SCHEMA, "k")
        push(log, topic, "aab")
        log.close()
        shutil.copy(directory.metadata, before)
        log = Log.open(OneDirectory(directory), LIMITS)
        push(log, topic, "acc")
        assert check_directory(path).ok, "its notes come after what they are of"
        log.close()
        assert check_directory(path).ok
        shutil.copy(before, directory.metadata)  # As it is without its log.
        problems = check_directory(path).problems
    found = [(each.partition, each.start_offset, each.end_offset) for each in problems]
    assert found == [('"a"', 2, 2), ('"c"', 0, 1)]
    assert all("in NOTES, but not in metadata" in str(each) for each in problems)


def test_notes_of_a_topic_that_was_deleted_are_none_of_the_next_one(tmp_path: Path) -> None:
    path = tmp_path / "data"
    with DataDirectory.open(path) as directory:
        log = Log.open(OneDirectory(directory), LIMITS)
        for keys in ("aaabbb", "a"):
            topic = log.admin.create_topic(NAME, SCHEMA, "k")
            push(log, topic, keys)
            if keys != "a":
                log.delete_topic(NAME)
                log.reclaimer.run()
        log.close()
        assert check_directory(path).ok
