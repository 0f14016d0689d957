"""Lives of a server on one data directory, recorded, of which syncs fail: forked when asked for."""

import gc
import json
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from power_loss import fail_calls, read_record
from power_loss_workload import LIMITS, Workload

from wings_core.errors import WingsError
from wings_server.testing import running_server

ENDED = "it ended with "
"""Begins what is said of a life that ended by a fault of the test's, or of the server's."""


@dataclass(frozen=True)
class Life:
    """What a life does, and where syncs fail in it.

    Attributes:
        rounds: Of its workload.
        ending: How the paths of files and directories end whose syncs fail, a pattern of the shell;
            empty: none fails.
        after: How many syncs of them are made before, counted from `at` on.
        count: How many fail.
        at: From when on they fail: `last` is before a last push to the topic `last`.
        end: How it ends.
        everything: Whether there are transactions of a Kafka client then, a backup that is
            restored, and some more rounds.
    """

    rounds: int
    ending: str = ""
    after: int = 0
    count: int = 1
    at: Literal["start", "run", "last", "stop"] = "run"
    last: Literal["keyed", "plain"] = "keyed"
    end: Literal["stop", "kill"] = "kill"
    everything: bool = False


class Lives:
    """Runs lives, one after another, each in a process that is forked; see `lives`."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def run(self, life: Life, root: Path, record: Path, workload: Path) -> list[str]:
        """Run a life to its end; return what it said of what failed at its start and its stop.

        Args:
            life: What it does.
            root: The directory that is recorded.
            record: The file of the record, which is appended to.
            workload: The pickled `Workload`, read and written.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        told = [str(each) for each in (root, record, workload)]
        self._process.stdin.write(f"{json.dumps([asdict(life), *told])}\n")
        self._process.stdin.flush()
        said: list[str] = []
        while (line := self._process.stdout.readline().rstrip()) != "ended":
            assert line, "the process of the lives is gone"
            said.append(line)
        os.truncate(record, read_record(record)[-1].end)
        return said


@contextmanager
def lives(environment: Mapping[str, str]) -> Generator[Lives]:
    """Have a process that forks lives.

    Args:
        environment: Of the recorder; see `power_loss.recorder`.
    """
    with subprocess.Popen(
        [sys.executable, __file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as process:
        yield Lives(process)


def main() -> None:
    """Fork a life for each line of standard input."""
    gc.collect()
    gc.freeze()
    for line in sys.stdin:
        told, *paths = json.loads(line)
        pid = os.fork()
        if pid == 0:
            live(Life(**told), *map(Path, paths))
        _, status = os.waitpid(pid, 0)
        ended = os.waitstatus_to_exitcode(status)
        if ended not in (0, -signal.SIGKILL):
            say(f"{ENDED}{ended}")
        say("ended")
    os._exit(0)


def live(life: Life, root: Path, record: Path, pickled: Path) -> None:
    """Run a life, and end the process."""
    failing = record.with_name("failing")
    os.environ.update(RECORDED=str(root), RECORD=str(record), FAILING=str(failing))
    workload: Workload = pickle.loads(pickled.read_bytes())
    try:
        _fail(life, "start", failing)
        server = running_server(
            root / "data", limits=LIMITS, remote=str(root / "remote"), kafka=life.everything
        )
        running = server.__enter__()
        client = running.client()
        workload.begin(client)
        _fail(life, "run", failing)
        workload.run(client, life.rounds)
        if life.everything:
            workload.transact(client, running.kafka)
            workload.back_up(running.flight, root)
            workload.run(client, life.rounds // 4)
        _fail(life, "last", failing)
        workload.push(client, life.last, 2, 1)
        pickled.write_bytes(pickle.dumps(workload))
        if life.end == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        _fail(life, "stop", failing)
        server.__exit__(None, None, None)
    except WingsError as error:
        say(f"{error.code}: {error.message}".replace("\n", " "))
    os._exit(0)


def _fail(life: Life, at: str, failing: Path) -> None:
    if life.at == at and life.ending:
        fail_calls(failing, life.ending, after=life.after, count=life.count)
    elif at == "start":
        failing.unlink(missing_ok=True)


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
