"""The first hour of someone from Celery: tasks, retries, countdowns, results, dead letters."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from fix_commands import Command

import wings_client
from wings_client import Client, Reject
from wings_server.testing import RunningServer

GROUP = ("mailer", "mails")
TASKS = """\
from dataclasses import dataclass
from datetime import datetime


@dataclass
class Mail:
    to: str
    template: str
    eta: datetime | None


def send(mail: Mail) -> None:
    print(mail.to, mail.template, flush=True)
"""


@dataclass
class Mail:
    """A task: the arguments of `send_mail.delay(to, template)`, and its `eta`."""

    to: str
    template: str
    eta: datetime | None = None


@dataclass
class Sent:
    """A result, in the place of Celery's result backend."""

    to: str
    length: int


@pytest.fixture
def wings(server: RunningServer) -> Iterator[Client]:
    with wings_client.connect(server.flight) as client:
        yield client


def tasks_and_results(wings: Client) -> None:
    """The broker: a topic of tasks with a group of workers, and a topic of results."""
    wings.create_topic("mails", Mail)
    wings.create_topic("sent", Sent)
    config = {"start": "earliest", "dlq_topic": "mails-dead", "deliver_at_column": "eta"}
    wings.create_share_group(*GROUP, {**config, "delivery_limit": 3})
    wings.push("mails", Mail("ada", "welcome"))  # delay()
    wings.push("mails", [Mail("bob", "welcome"), Mail("cyd", "wellcome"), Mail("dan", "bounces")])


def worked(wings: Client) -> None:
    """One task fails once, one always, and one has arguments that make no sense."""
    tried: list[tuple[str, str]] = []

    def send(mail: Mail) -> None:
        tried.append((mail.to, mail.template))
        if mail.template == "wellcome":
            raise Reject("no template wellcome")
        if mail.to == "dan" or (mail.to == "bob" and tried.count(("bob", "welcome")) == 1):
            raise ConnectionError("the relay does not answer")
        wings.push("sent", Sent(mail.to, len(mail.template)))

    stats = wings.worker(*GROUP, send, backoff=0.01, limit=7).run()
    assert [tried.count((to, "welcome")) for to in ("ada", "bob")] == [1, 2]
    assert tried.count(("dan", "bounces")) == 3
    assert (stats.accepted, stats.released, stats.rejected, stats.dead) == (2, 4, 1, 2)
    assert sorted(wings.read("sent").to_arrow()["to"].to_pylist()) == ["ada", "bob"]
    assert wings.share_group(*GROUP).partitions[0].lag == 0


def failures_understood(wings: Client) -> None:
    """A dead letter has its task's arguments and its last error."""
    letters = wings.dead_letters("mailer").to_arrow().to_pylist()
    found = {each["to"]: (each["reason"], each["delivery_count"]) for each in letters}
    assert found == {"cyd": ("rejected", 1), "dan": ("delivery_limit", 3)}
    assert any("no template wellcome" in each["error"] for each in letters)
    assert any("the relay does not answer" in each["error"] for each in letters)
    assert {each["template"] for each in letters} == {"wellcome", "bounces"}


def sent_back(
    server: RunningServer, wings: Client, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The handler is mended, in a module for a worker of the shell; its tasks come again."""
    monkeypatch.setenv("WINGS_ENDPOINT", server.flight)
    Path("tasks.py").write_text(TASKS)
    assert (
        "2 dead letters sent back" in command("share", "dlq", "redrive", "mails-dead", "--yes").out
    )
    work = command("share", "work", *GROUP, "--python", "tasks:send", "--limit", 2)
    assert work.status == 0, work
    assert sorted(re.findall(r"^\w+ \w+$", work.out, re.MULTILINE)) == [
        "cyd wellcome",
        "dan bounces",
    ]
    assert wings.redrive("mails-dead").already_redriven == 2
    eta = datetime.now(UTC) + timedelta(seconds=1)
    wings.push("mails", Mail("eve", "reminder", eta))  # apply_async(eta=)
    late = command("share", "work", *GROUP, "--python", "tasks:send", "--limit", 1)
    assert late.out.startswith("eve reminder")
    assert datetime.now(UTC) >= eta
    assert wings.share_group(*GROUP).partitions[0].lag == 0


def test_an_hour_from_celery(
    server: RunningServer,
    wings: Client,
    command: Command,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    tasks_and_results(wings)
    worked(wings)
    failures_understood(wings)
    sent_back(server, wings, command, monkeypatch)
