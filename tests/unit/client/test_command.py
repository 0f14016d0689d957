"""The `wings` command, as a real process with real entry points."""

import inspect
import json
import os
import signal
import subprocess
import sys
import textwrap
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from fix_calls import Calls

from wings_client.cli.app import LISTED, OWN, PANEL_OF, PluginGroup

pytestmark = pytest.mark.programs

PLUGINS = """
import signal

import pyarrow as pa
import typer

from wings_core.errors import TopicNotFound

several = typer.Typer()


@several.command()
def one() -> None:
    "Say one."
    typer.echo("one")


@several.command()
def two(number: int) -> None:
    "Say two."
    typer.echo(f"two {number}")


def plain(name: str = "nobody") -> None:
    "Greet somebody."
    typer.echo(f"hello {name}")


def arrow() -> None:
    "Fail in Arrow."
    pa.array([1]).cast(pa.list_(pa.date32()))


def refused() -> None:
    "Fail."
    raise TopicNotFound("there is no topic\\n'x'", topic="x")


def waits() -> None:
    "Wait for a signal."
    typer.echo("waiting")
    signal.pause()


number = 3
"""

ENTRY_POINTS = """
[wings.commands]
arrow = wings_test_plugins:arrow
broken = wings_test_plugins_missing:command
number = wings_test_plugins:number
plain = wings_test_plugins:plain
refused = wings_test_plugins:refused
several = wings_test_plugins:several
waits = wings_test_plugins:waits
"""

BLOCK = """
import sys

class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Block())
"""

SEVERAL = """
import json
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO

from wings_client.cli import main

said = []
for arguments in {asked}:
    sys.argv[1:] = arguments
    status = None
    with redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as error:
        try:
            main()
        except SystemExit as ended:
            status = ended.code or None
    said.append([status, out.getvalue(), error.getvalue()])
print(json.dumps(said))
"""
"""Commands in one process: their statuses, None for that of success, and what they wrote."""

NOT_OF_THE_CLIENT = (
    "click",
    "duckdb",
    "fastapi",
    "grpc",
    "prometheus_client",
    "rich",
    "structlog",
    "typer",
    "uvicorn",
    "wings_server",
    "wings_spark",
    "xxhash",
)


COMMAND = (sys.executable, "-u", "-m", "wings_client.cli")


@pytest.fixture(scope="module")
def plugins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with an installed distribution of plugins."""
    path = tmp_path_factory.mktemp("plugins")
    (path / "wings_test_plugins.py").write_text(PLUGINS)
    installed = path / "wings_test_plugins-1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: wings-test-plugins\nVersion: 1.0\n"
    )
    (installed / "entry_points.txt").write_text(ENTRY_POINTS)
    return path


def environment(plugins: Path | None = None) -> dict[str, str]:
    variables = {**os.environ, "COLUMNS": "100", "NO_COLOR": "1"}
    if plugins is not None:
        variables["PYTHONPATH"] = str(plugins)
    return variables


def wings(*arguments: str, plugins: Path | None = None) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "wings_client.cli", *arguments],
        env=environment(plugins),
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )


def python(code: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )


def test_the_version_is_the_distribution_s() -> None:
    result = wings("--version")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith("wings 0.")


def test_help_names_every_command_and_what_it_does() -> None:
    result = wings("--help")
    assert (result.returncode, result.stderr) == (0, "")
    shown = " ".join(result.stdout.split())
    assert "serve Serve a data directory over Arrow Flight" in shown
    assert "check Read every message of a log" in shown
    assert "push Push the rows of files" in shown
    assert "wings COMMAND --help" in result.stdout


def test_an_unknown_command_is_a_mistake_in_the_arguments() -> None:
    result = wings("flurb")
    assert (result.returncode, result.stdout) == (2, "")
    shown = " ".join(result.stderr.replace("│", " ").split())
    assert "No such command 'flurb'; there are backup, bench, " in shown
    shown = " ".join(wings("topc", "list").stderr.replace("│", " ").split())
    assert "No such command 'topc'; did you mean 'topic'? There are backup, " in shown


def test_a_plain_function_is_a_command(plugins: Path) -> None:
    result = wings("plain", "--name", "Ada", plugins=plugins)
    assert (result.returncode, result.stdout, result.stderr) == (0, "hello Ada\n", "")


def test_a_typer_application_is_a_group_of_commands(plugins: Path) -> None:
    assert wings("several", "one", plugins=plugins).stdout == "one\n"
    assert wings("several", "two", "7", plugins=plugins).stdout == "two 7\n"


def test_broken_plugins_are_named_and_leave_the_others_alone(plugins: Path) -> None:
    result = wings("--help", plugins=plugins)
    assert result.returncode == 0
    for name in ("check", "plain", "serve", "several"):
        assert f" {name} " in result.stdout
    broken, number = sorted(result.stderr.splitlines())
    assert "'broken' (wings_test_plugins_missing:command) cannot be loaded" in broken
    assert "ModuleNotFoundError" in broken
    assert "'number' (wings_test_plugins:number) cannot be loaded" in number


def test_calling_a_broken_plugin_fails_with_its_reason(plugins: Path) -> None:
    result = wings("broken", "--flag", plugins=plugins)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.count("\n") == 1
    assert "No module named 'wings_test_plugins_missing'" in result.stderr


def test_an_error_of_wings_is_one_line_on_standard_error(plugins: Path) -> None:
    result = wings("refused", plugins=plugins)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == "wings: there is no topic 'x'\n"


def test_an_error_of_arrow_is_one_too(plugins: Path) -> None:
    result = wings("arrow", plugins=plugins)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith("wings: Arrow: Unsupported cast from int64 to list")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("before", ["", "trap '' INT; "], ids=["as usual", "inherited as ignored"])
def test_ctrl_c_ends_a_command_quietly(plugins: Path, before: str) -> None:
    with subprocess.Popen(
        ["sh", "-c", f'{before}exec "$@"', "sh", *COMMAND, "waits"],
        env=environment(plugins),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "waiting\n"
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=150)
    assert (child.returncode, out, err) == (130, "", "")


@pytest.mark.parametrize(
    ("missing", "extra", "names"),
    [
        ("pyspark", "spark", ["ingest"]),
        (
            "structlog",
            "server",
            ["cert", "check", "holds", "metadata", "repair", "restore", "serve"],
        ),
    ],
)
def test_commands_whose_extra_is_not_installed_are_listed_with_what_installs_it(
    missing: str, extra: str, names: list[str]
) -> None:
    asked = [["--help"], [names[-1], "--help"], [names[-1], "run", "--once", "rest"]]
    done = python(BLOCK.format(blocked=(missing,)) + SEVERAL.format(asked=asked))
    assert done.returncode == 0, done.stderr
    shown, *called = json.loads(done.stdout)
    hint = f"pip install 'wings-flight[{extra}]'"
    assert (shown[0], shown[2]) == (None, "")
    lines = [line.strip(" │") for line in shown[1].splitlines()]
    hinted = [line for line in lines if f"Not installed; needs: {hint}" in line]
    assert [line.split()[0] for line in hinted] == names
    refused = [1, "", f"wings: {names[-1]!r} needs {missing}, of an extra: {hint}\n"]
    assert called == [refused] * 2


def test_the_client_imports_with_pyarrow_and_pydantic_alone() -> None:
    result = python(
        BLOCK.format(blocked=NOT_OF_THE_CLIENT)
        + f"""
from wings_client import *
assert not set({NOT_OF_THE_CLIENT}) & set(sys.modules)
print("imported")
"""
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "imported\n", "")


def test_the_command_without_its_extra_says_how_to_get_it() -> None:
    result = python(
        BLOCK.format(blocked=("typer",)) + "from wings_client.cli import main\nmain()\n"
    )
    assert (result.returncode, result.stdout) == (1, "")
    assert (
        result.stderr == "wings: this needs typer, of an extra: pip install 'wings-flight[cli]'\n"
    )


def test_output_that_cannot_be_written_whole_is_an_error_unbuffered_too(tmp_path: Path) -> None:
    # As on a disk that fills up; unbuffered, a write of Python's takes what there is room for.
    script = """
import resource, signal, sys
from wings_client.cli import _prepare_streams

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, 1_000))
_prepare_streams()
sys.stdout.buffer.write(b"x" * 10_000)
sys.stdout.buffer.flush()
"""
    with (tmp_path / "output").open("wb") as output:
        done = subprocess.run(
            [sys.executable, "-u", "-c", script],
            stdout=output,
            stderr=subprocess.PIPE,
            check=False,
            timeout=150,
        )
    assert done.returncode != 0
    assert b"File too large" in done.stderr


def test_a_command_of_the_client_reads_no_entry_points(calls: Calls) -> None:
    """Those of all that is installed take longer to read than the rest of a start."""
    read = calls.heard(sys.modules[PluginGroup.__module__], "entry_points")
    assert PluginGroup().get_command(None, "topic").name == "topic"
    assert read == []


def test_help_says_of_each_command_what_its_own_help_does() -> None:
    group = PluginGroup()
    ours = {"wings_client", "wings_server", "wings_spark"}
    plugins = entry_points(group="wings.commands")
    found = {each.name for each in plugins if each.value.partition(".")[0] in ours}
    assert set(LISTED) == set(PANEL_OF) == {*OWN, *found}
    for name, line in LISTED.items():
        own = inspect.cleandoc(group.get_command(None, name).help).partition("\n\n")[0]
        assert (name, line) == (name, " ".join(own.split()))


def test_help_shows_flags_without_a_type_and_the_connection_apart() -> None:
    shown = wings("fetch", "--help").stdout
    options, connection = shown.partition("Options ─")[2].split("Connection ─")
    assert "<bool>" not in shown + wings("topic", "list", "--help").stdout + wings("--help").stdout
    assert ("--system-columns" in options, "--endpoint" in options) == (True, False)
    assert all(f"--{each} " in connection for each in ("endpoint", "token-file", "tls-ca"))


HELP = "from wings_client.cli.app import app\ntry: app(['--help'])\nexcept SystemExit: pass"
FETCH = """
from wings_client.cli.app import PluginGroup
PluginGroup().resolve_command(None, ['fetch'])
import wings_client.cli.output
"""
SERVE = """
from pathlib import Path
import wings_client.cli.app
from wings_core.errors import WingsError
from wings_server.cli import serve
try: serve(config=None, kafka=None, data_dir=Path('/dev/null'))
except WingsError: pass
import wings_server.process
"""
READS_NOTHING = {"duckdb", "grpc", "wings_server"}


@pytest.mark.parametrize(
    ("code", "without"),
    [
        (HELP, {*READS_NOTHING, "asyncio", "numpy", "pyarrow", "pydantic"}),
        (
            FETCH,
            {*READS_NOTHING, "asyncio", "http.client", "pyarrow.compute", "rich.console", "ssl"}
            | {
                "numpy",
                "pandas",
                "wings_client._client",
                "wings_client.gather",
                "wings_core.contracts.share",
            },
        ),
        (
            SERVE,
            {"duckdb", "fastapi", "google.protobuf", "grpc", "numpy", "pandas", "pyarrow.compute"}
            | {"pyarrow.parquet", "rich", "wings_core.metadata.remote", "wings_core.sql"},
        ),
    ],
    ids=["help", "fetch", "serve"],
)
def test_a_command_imports_only_what_it_needs(code: str, without: set[str]) -> None:
    code = f"import sys\n{code}\nprint(*sys.modules, file=sys.stderr)"
    found = set(python(code).stderr.split())
    assert "wings_client" in found
    assert not found & without


def test_help_imports_few_modules_of_wings() -> None:
    code = f"import sys\n{HELP}\nprint(*sys.modules, file=sys.stderr)"
    found = set(python(code).stderr.split())
    ours = {name for name in found if name.startswith("wings_")}
    assert ours <= {
        "wings_client",
        "wings_client._access",
        "wings_client.cli",
        "wings_client.cli.access",
        "wings_client.cli.app",
        "wings_client.cli.environment",
        "wings_core",
        "wings_core.errors",
    }
