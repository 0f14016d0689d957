"""An operator's hour at a shell: nothing but the `wings` command, over TLS, with tokens."""

import json
import os
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from token_calls import ROOT

COMMAND = (sys.executable, "-m", "wings_client.cli")
SECONDS = 120
PROFILES = """
[default]
endpoint = "{endpoint}"
token_file = "root.token"
tls_ca = "certs/ca.pem"

[shop]
endpoint = "{endpoint}"
token_file = "shop.token"
tls_ca = "certs/ca.pem"
"""


class Shell:
    """A shell in a directory, with the file of profiles there."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.environment = {"PATH": os.environ["PATH"], "XDG_CONFIG_HOME": str(directory)}

    def ran(self, *arguments: object, given: str = "", status: int = 0) -> str:
        """Run a command, which is to end with a status; returns its output and its errors."""
        done = subprocess.run(
            [*COMMAND, *map(str, arguments)],
            env=self.environment,
            input=given,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert done.returncode == status, (arguments, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def rows(self, *arguments: object) -> list[dict[str, Any]]:
        """Return what a command lists."""
        return json.loads(self.ran(*arguments, "--format", "json").partition("]\n")[0] + "]")

    @contextmanager
    def serving(self, data: Path) -> Generator[None]:
        """Serve a data directory over TLS, and write its address to the profiles."""
        certs = self.directory / "certs"
        tls = ("--tls-cert", certs / "server.pem", "--tls-key", certs / "server-key.pem")
        addresses = ("--flight", "127.0.0.1:0", "--http", "127.0.0.1:0")
        with subprocess.Popen(
            [*COMMAND, "serve", "--data-dir", str(data), *addresses, *map(str, tls)],
            env={**self.environment, "WINGS_ROOT_TOKEN": ROOT},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        ) as server:
            assert server.stdout is not None
            words = server.stdout.readline().split()
            try:
                endpoint = words[2].removeprefix("flight=")
                profiles = PROFILES.format(endpoint=endpoint)
                (self.directory / "wings.toml").write_text(profiles)
                yield
            finally:
                server.terminate()
        assert server.returncode == 0


def begun(shell: Shell) -> None:
    """Certificates, and the tokens of the operator and, later, of the shop."""
    shell.ran("cert", "dev", "--out", shell.directory / "certs")
    token = shell.directory / "root.token"
    token.touch(0o600)
    token.write_text(ROOT)


def a_topic_with_orders(shell: Shell) -> None:
    """A token that may write and share; what it pushes is fetched and consumed."""
    rights = [f"--grant={right}=orders*" for right in ("read", "write", "share")]
    token = shell.ran("token", "create", "shop", *rights, "--expires", "1.5h")
    (shell.directory / "shop.token").touch(0o600)
    (shell.directory / "shop.token").write_text(token.splitlines()[0])
    assert [each["name"] for each in shell.rows("token", "list")] == ["shop"]
    shell.ran("topic", "create", "orders", "--field", "id:int64", "--field", "euros:double")
    orders = "id,euros\n1,2.5\n2,10\n3,7\n"
    shell.ran("push", "orders", "-", "--format", "csv", "--profile", "shop", given=orders)
    fetched = shell.rows("fetch", "orders", "--from", "earliest", "--timeout", "2ms")
    assert [each["id"] for each in fetched] == [1, 2, 3]
    consume = ("consume", "books", "orders", "--format", "csv", "--timeout", "100ms")
    assert "1,2.5\n2,10\n3,7\n" in shell.ran(*consume)
    assert [each["lag"] for each in shell.rows("consumer", "list")] == [0]


def a_handler_that_fails(shell: Shell) -> None:
    """Dead letters that the status names; once the handler is mended they are sent back."""
    group = ("billing", "orders")
    shell.ran("share", "create", *group, "--from", "earliest", "--dlq", "orders-dead")
    work = ("share", "work", *group, "--limit", 3, "--profile", "shop", "--exec")
    assert "3 rejected, 3 dead" in shell.ran(*work, "echo no bank >&2; exit 65")
    status = shell.ran("status")
    assert "1 thing needs you:\n- 3 dead letters of billing of orders in orders-dead" in status
    assert "`wings share dlq redrive orders-dead`" in status
    letters = shell.rows("share", "dlq", "show", "orders-dead")
    assert {each["error"] for each in letters} == {"no bank"}
    redrive = ("share", "dlq", "redrive", "orders-dead")
    assert "at most 3 dead letters" in shell.ran(*redrive, "--dry-run")
    assert "--yes" in shell.ran(*redrive, status=2)
    assert "3 dead letters sent back" in shell.ran(*redrive, "--yes")
    assert '"id":2' in shell.ran(*work, "cat").replace(" ", "")
    assert [each["lag"] for each in shell.rows("share", "describe", *group)] == [0]


def test_an_hour_of_an_operator(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    kept, restored = tmp_path / "kept", tmp_path / "restored"
    begun(shell)
    with shell.serving(tmp_path / "data"):
        status = shell.ran("status")
        assert "over TLS" in status
        assert "admin=*" in status
        assert "nothing needs you" in status
        a_topic_with_orders(shell)
        a_handler_that_fails(shell)
        shell.ran("backup", kept, "--verify")
        shell.ran("topic", "delete", "orders", "--yes")  # The mistake.
        shell.ran("topic", "describe", "orders", status=1)
    (backup,) = shell.rows("backup", "list", kept)
    assert shell.ran("backup", "verify", kept, backup["backup"]) == "all right\n"
    shell.ran("restore", kept, "--data-dir", restored)
    shell.ran("check", restored)
    with shell.serving(restored):
        orders = ("fetch", "orders", "--from", "earliest", "--timeout", "2ms", "--profile", "shop")
        assert len(shell.rows(*orders)) == 6, "those that were sent back too"
        shell.ran("token", "revoke", "shop", "--yes")
        assert "token is not valid" in shell.ran(*orders, status=1)
        assert len(shell.rows(*orders, "--profile", "default")) == 6
