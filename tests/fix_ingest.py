"""Pipelines without Spark: the same parts, called in the order in which Spark calls them."""

import json
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from wings_client import Client
from wings_core.queue.claims import Claim, FileResult, Outcome
from wings_core.queue.coordinator import QueueCoordinator
from wings_core.queue.interfaces import Queue
from wings_spark.ingest.connections import Connections
from wings_spark.ingest.dead_letters import DeadLetters
from wings_spark.ingest.plan import planned
from wings_spark.ingest.settings import SourceSettings
from wings_spark.ingest.work import carry_out

if TYPE_CHECKING:
    from wings_server.testing import RunningServer

CLAIMS_MAX = 1_000


class Pipeline:
    """One pipeline in this process.

    Args:
        settings: Of the source.
    """

    def __init__(self, settings: SourceSettings) -> None:
        self.settings = settings
        self.connections = Connections(settings)
        self.coordinator: QueueCoordinator = self.connections.coordinator()
        dead_letters = DeadLetters(settings, self.connections.client)
        self.committer = self.connections.committer(dead_letters.stage)

    @property
    def queue(self) -> Queue:
        return self.connections.queue

    @property
    def last_done(self) -> int:
        return self.connections.journal.last_done

    def claim(self) -> Claim | None:
        """Claim what one batch reads; what was claimed and is not done comes first."""
        return self.coordinator.claim(self.last_done + 1)

    def read(self, claim: Claim) -> list[FileResult]:
        """Read and stage, as the tasks do."""
        works = planned(claim, self.connections.journal.token, 2, self.settings)
        done = [each for work in works for each in carry_out(self.settings, [work])]
        return [result for each in done for result in each.results]

    def step(self) -> Outcome | None:
        """Do one batch; None where there is nothing to do."""
        claim = self.claim()
        if claim is None:
            return None
        return self.committer.commit(claim, self.read(claim))

    def drain(self) -> list[Outcome]:
        """Do batches until there is nothing to do."""
        outcomes: list[Outcome] = []
        while (outcome := self.step()) is not None:
            outcomes.append(outcome)
            assert len(outcomes) < CLAIMS_MAX
        self.coordinator.settle()
        return outcomes

    def close(self) -> None:
        self.connections.close()


MakeSource = Callable[..., SourceSettings]


Start = Callable[[SourceSettings], Pipeline]


@pytest.fixture
def start() -> Generator[Start]:
    """Start pipelines; all are closed at the end."""
    started: list[Pipeline] = []

    def run(settings: SourceSettings) -> Pipeline:
        started.append(Pipeline(settings))
        return started[-1]

    yield run
    for pipeline in started:
        pipeline.close()


@pytest.fixture
def source(server: "RunningServer", tmp_path: Path, new_topic_id: str) -> MakeSource:
    """Make settings of a source of the module's server and the test's directory."""

    def make(**changes: Any) -> SourceSettings:
        found: dict[str, Any] = {
            "name": new_topic_id,
            "checkpoint": changes.pop("checkpoint", "checkpoint"),
            "queue": {"kind": "sqlite", "path": "queue.sqlite", "wait_seconds": 0},
            "target": {"endpoint": server.flight, "topic": new_topic_id},
        }
        for section, keys in changes.items():
            found[section] = {**found.get(section, {}), **keys}
        return SourceSettings.parse(found, "test").at(tmp_path)

    return make


def write_jsonl(path: Path, rows: range) -> Path:
    """Write a file with a number on each line."""
    path.write_text("".join(json.dumps({"n": n}) + "\n" for n in rows))
    return path


def numbers(client: Client, topic: str) -> list[Any]:
    """Return the numbers in a topic, in order."""
    found: list[Any] = client.scan(topic).read_all()["n"].to_pylist()
    return sorted(found)
