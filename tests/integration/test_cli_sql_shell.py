"""The shell of `wings sql`, at a terminal."""

import os
import pty
import re
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fix_client import NewTopic

import wings_client
from wings_client import Client
from wings_server.testing import RunningServer

_CONTROLS = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]|\x1b[()].|\x1b[=>]|\r")

SLOW = "select count(*) from range(100000) a, range(100000) b where a.range * b.range % 7 = 3;"


class Terminal:
    """A terminal in which the shell runs."""

    def __init__(self, endpoint: str, state: Path) -> None:
        self._end, given = pty.openpty()
        termios.tcsetwinsize(given, (40, 200))
        environment = {
            **os.environ,
            "WINGS_ENDPOINT": endpoint,
            "XDG_STATE_HOME": str(state),
            "TERM": "xterm",
            "PROMPT_TOOLKIT_NO_CPR": "1",  # It asks the terminal nothing.
        }
        self.child = subprocess.Popen(
            [sys.executable, "-m", "wings_client.cli", "sql"],
            env=environment,
            stdin=given,
            stdout=given,
            stderr=given,
            start_new_session=True,
        )
        os.close(given)

    def type(self, text: str) -> None:
        os.write(self._end, text.encode())

    def until(self, pattern: str) -> str:
        """Return what is shown from now on, until it matches."""
        shown = b""
        while not re.search(pattern, text := _CONTROLS.sub(b"", shown).decode(errors="replace")):
            try:
                part = os.read(self._end, 65_536)
            except OSError:  # How a terminal ends on Linux.
                part = b""
            assert part, f"the shell ended: {text}"
            shown += part
        return text

    def close(self) -> None:
        self.child.kill()
        self.child.wait()
        os.close(self._end)


@pytest.fixture
def wings(server: RunningServer) -> Iterator[Client]:
    """A client of the module's server: the shell has no async one."""
    with wings_client.connect(server.flight) as connected:
        yield connected


@pytest.fixture
def terminal(server: RunningServer, tmp_path: Path) -> Iterator[Terminal]:
    opened = Terminal(server.flight, tmp_path)
    yield opened
    opened.close()


def test_statements_and_commands_are_typed_at_a_terminal(
    wings: Client, new_topic: NewTopic, terminal: Terminal, tmp_path: Path
) -> None:
    # Imported by tests, as it takes a while, and each process that shares them collects them all.
    from wings_client.cli.sql_shell import name_in_sql

    topic = new_topic("origin: string", "delay: int64")
    wings.push(topic, [{"origin": f"from-{n}", "delay": n} for n in range(3)])
    table = name_in_sql(topic.name.rpartition("/")[2])
    terminal.until("wings>")
    terminal.type(".tables\r")
    assert table in terminal.until(r"system\.nodes")
    terminal.type(f".schema {table}\r")
    assert re.search(r"delay\W+BIGINT", terminal.until(r"__timestamp .*\n"))
    terminal.type("select max(origin), sum(delay)\r")
    terminal.until(r"\.\.\.>")
    terminal.type(f"from {table};\r")
    assert re.search(r"from-2\W+3", terminal.until(r"1 row in \d"))
    terminal.type(".format json\r")
    terminal.until(r"json\s+wings>")
    # A table, typed without its quotes, and a column of it are completed.
    terminal.type(f"select 7 * sum(delay) answer from {table[1:-1]}\t;\r")
    assert '[{"answer":"21"}]' in terminal.until(r"1 row in \d.*\s+wings>")
    terminal.type(f'select origin from {table} where "dela\t = 2;\r')
    assert '[{"origin":"from-2"}]' in terminal.until(r"1 row in \d")
    terminal.type("selec 1;\r")
    terminal.until(r"wings: .*syntax error.*\s+wings>")
    terminal.type(".quit\r")
    assert terminal.child.wait(50) == 0
    history = (tmp_path / "wings" / "sql_history").read_text()
    assert f"+from {table};" in history
    assert (tmp_path / "wings" / "sql_history").stat().st_mode & 0o077 == 0


def test_ctrl_c_cancels_a_statement_and_the_shell_stays(
    server: RunningServer, terminal: Terminal
) -> None:
    terminal.until("wings>")
    terminal.type(f"{SLOW}\r")
    terminal.until(r"[1-9]\d* s, 0 rows so far")
    assert server.server.log.sql.running == 1
    os.killpg(terminal.child.pid, signal.SIGINT)
    terminal.until(r"cancelled\s+wings>")
    terminal.type("select 40 + 2 as answer;\r")
    terminal.until(r"42[^;]*1 row in \d.*\s+wings>")
    while server.server.log.sql.running:  # Until pytest's own limit.
        time.sleep(0.01)
    terminal.type("\x04")
    assert terminal.child.wait(50) == 0


def test_a_statement_ends_where_no_quote_or_comment_is_open() -> None:
    from wings_client.cli.sql_shell import is_open, split_statements

    assert split_statements("select 1; -- two; here\n ;;") == (["select 1"], "")
    assert split_statements("select ';', \";\", $a$;$a$ /* ; */; x") == (
        ["select ';', \";\", $a$;$a$ /* ; */"], " x",
    )  # fmt: skip
    for text in ("select 1", "select 'a;", 'select "a;', "select 1; /* a", "select $$;", "; x"):
        assert is_open(text), text
    for text in ("", ";", "select 1;", "select 1; -- done", "select 'it''s';"):
        assert not is_open(text), text
