"""A token reaches Spark's tasks, and stands in nothing that Spark writes, logs or shows."""

import runpy
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import wings_client
from wings_core.errors import InvalidArgument
from wings_core.security.tokens import new_secret
from wings_server.testing import running_server, server_process
from wings_spark.connection import ServerAccess
from wings_spark.options import SparkReadOptions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

JOBS = Path(__file__).with_name("secret_jobs.py")


def files_below(directory: Path) -> list[Path]:
    return [path for path in directory.rglob("*") if path.is_file()]


def test_plans_tables_and_progress_show_no_token(spark: "SparkSession", tmp_path: Path) -> None:
    token = new_secret()
    (tmp_path / "token").write_text(token)
    with (
        running_server(tmp_path / "data", root_token=token) as server,
        wings_client.connect(server.flight, token=token) as root,
    ):
        for topic in ("there", "copy"):
            root.create_topic(topic, {"n": "int64"})
        root.push("there", {"n": range(10)})
        given = {"endpoint": server.flight, "token": token}
        jobs = runpy.run_path(str(JOBS))["jobs"]
        shown = "\n".join(map(str, jobs(spark, tmp_path, tmp_path / "token", given)))
        copied: list[Any] = root.scan("copy").read_all().column("n").to_pylist()
    assert sorted(copied) == sorted([*range(4, 10), *range(10)])
    assert len(shown) > 1_000
    for wrong in (token.removeprefix("wings_"), "a table kept a token"):
        assert wrong not in shown


@pytest.mark.soak  # It takes a start of Spark, and what Spark shows has the test before.
def test_tasks_present_a_token_that_stands_nowhere(
    tmp_path: Path, quick_spark: dict[str, str]
) -> None:
    certificates, written = tmp_path / "certificates", tmp_path / "written"
    written.mkdir()
    token = new_secret()
    command = [sys.executable, "-m", "wings_client.cli", "cert", "dev", "--out"]
    subprocess.run([*command, str(certificates)], check=True, capture_output=True, timeout=120)
    key = (certificates / "client-key.pem").read_text().splitlines()[1]
    flags = ("--tls-cert", f"{certificates}/server.pem", "--tls-key")
    flags += (f"{certificates}/server-key.pem", "--tls-client-ca", f"{certificates}/ca.pem")
    with server_process(
        tmp_path / "log", flags=flags, environment={"WINGS_ROOT_TOKEN": token}
    ) as server:
        files = {name: (certificates / f"{file}.pem").read_bytes() for name, file in
                 (("tls_ca", "ca"), ("tls_cert", "client"), ("tls_key", "client-key"))}  # fmt: skip
        with wings_client.connect(
            server.flight, token=token, tls_ca=files["tls_ca"], tls_cert=files["tls_cert"],
            tls_key=files["tls_key"],
        ) as root:  # fmt: skip
            for topic in ("there", "copy"):
                root.create_topic(topic, {"n": "int64"})
            root.push("there", {"n": range(10)})
            (tmp_path / "token").write_text(token)
            ran = subprocess.run(
                [
                    *(sys.executable, str(JOBS), str(written), server.flight),
                    *(str(certificates), str(tmp_path / "token")),
                ],
                env=quick_spark,
                cwd=written,
                capture_output=True,
                text=True,
                timeout=350,
                check=False,
            )
            assert ran.returncode == 0, ran.stderr[-4_000:]
            copied: list[Any] = root.scan("copy").read_all().column("n").to_pylist()
    assert sorted(copied) == sorted([*range(4, 10), *range(10), 7])
    (tmp_path / "written" / "log").write_text(ran.stderr + ran.stdout)
    looked_at = {path: path.read_bytes() for path in files_below(written)}
    everything = b"".join(looked_at.values())
    # The places that could show it are those that are looked at.
    for name in ("shown", "log", "a.jsonl", "metadata"):
        assert any(path.name == name for path in looked_at), name
    assert any("events" in path.parts for path in looked_at)
    assert everything.count(server.flight.encode()) > 10
    for secret in (token, token.removeprefix("wings_"), key):
        assert [path for path, held in looked_at.items() if secret.encode() in held] == []


def test_options_and_servers_show_no_secrets(tmp_path: Path) -> None:
    token = "wings_planted"
    (tmp_path / "token").write_text(f"{token}\n")
    plain = {"endpoint": "grpc://h:1", "topic": "t"}
    for given in ({"token": token}, {"TOKENFILE": str(tmp_path / "token")}):
        options = SparkReadOptions.parse(plain | given)
        assert options.server.token == token
        for shown in (repr(options), str(options), repr(options.server), options.model_dump_json()):
            assert token not in shown
    with pytest.raises(InvalidArgument) as raised:
        ServerAccess("grpc://h:1", "plan\nted").connect()
    assert "plan" not in str(raised.value)
    with pytest.raises(InvalidArgument, match="nowhere"):
        _ = SparkReadOptions.parse(plain | {"tlsCa": str(tmp_path / "nowhere")}).server


def test_a_driver_without_a_token_presents_that_of_its_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WINGS_TOKEN", "wings_of_the_environment")
    options = SparkReadOptions.parse({"endpoint": "grpc://h:1", "topic": "t"})
    assert options.server.token == "wings_of_the_environment"
