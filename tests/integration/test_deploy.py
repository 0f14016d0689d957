"""What deploys Wings: linted where the linters are, and its commands run as the files have them.

There is no Docker here. The lines of the Dockerfile are run by a shell, in directories in the place
of those of the image.
"""

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from held_address import held_address

from wings_server.certificates import make_certificates
from wings_server.testing import server_process

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"

SECONDS_MAX = 85.0
"""How long a server may take to be healthy."""


def instructions() -> list[list[tuple[str, str]]]:
    """Return the instructions of each stage of the Dockerfile, with their arguments."""
    stages: list[list[tuple[str, str]]] = []
    for line in (DEPLOY / "Dockerfile").read_text().splitlines():
        if line and not line.startswith("#"):
            name, _, rest = line.partition(" ")
            if name == "FROM":
                stages.append([])
            stages[-1].append((name, rest.strip()))
    return stages


def argument(name: str) -> str:
    """Return the argument of an instruction that the last stage has once."""
    (found,) = (rest for each, rest in instructions()[-1] if each == name)
    return found


def environment(home: Path, port: str) -> dict[str, str]:
    """Return the variables of the image, with other ports, and no home."""
    named = dict(word.split("=", 1) for word in shlex.split(argument("ENV")))
    path = named.pop("PATH").replace("/opt/wings", str(home)).replace("$PATH", os.environ["PATH"])
    assert named["WINGS_HTTP"].startswith("0.0.0.0:")
    ports = {"WINGS_FLIGHT": "0.0.0.0:0", "WINGS_HTTP": f"0.0.0.0:{port}"}
    return {**named, **ports, "PATH": path, "HOME": "/nonexistent", "WINGS_INSECURE": "true"}


def health(variables: dict[str, str], directory: Path, *more: str) -> int:
    command = json.loads(argument("HEALTHCHECK").partition(" CMD ")[2])
    return subprocess.run(
        [*command, *more], env=variables, cwd=directory, check=False, capture_output=True
    ).returncode


def listens(address: str) -> bool:
    """Tell whether anything takes connections there, which costs less than the check of health."""
    host, _, port = address.rpartition(":")
    with socket.socket() as asking:
        return asking.connect_ex((host, int(port))) == 0


@contextmanager
def container(home: Path, directory: Path) -> Generator[dict[str, str]]:
    """Run the image's command with its variables, until it is healthy; yields the variables."""
    with held_address() as address:
        variables = environment(home, address.rpartition(":")[2])
        with serving(variables, directory):
            yield variables


@contextmanager
def serving(variables: dict[str, str], directory: Path) -> Generator[None]:
    """Run the image's command until it is healthy."""
    assert health(variables, directory) == 1, "nothing serves yet"
    command = [*json.loads(argument("ENTRYPOINT")), *json.loads(argument("CMD"))]
    program = shutil.which(str(command[0]), path=variables["PATH"])
    assert program is not None
    server = subprocess.Popen([program, *command[1:]], env=variables, cwd=directory)
    try:
        deadline = time.monotonic() + SECONDS_MAX
        while not listens(variables["WINGS_HTTP"]) or health(variables, directory, "--ready"):
            assert server.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert health(variables, directory) == 0
        yield
        server.send_signal(signal.Signals[argument("STOPSIGNAL")])
        assert server.wait(SECONDS_MAX) == 0, "it drains and stops"
    finally:
        server.kill()
        server.wait()


def test_the_command_of_the_image_serves_and_its_health_check_sees_that(tmp_path: Path) -> None:
    with container(Path(sys.prefix), tmp_path):
        pass
    assert [each.name for each in tmp_path.iterdir()] == ["wings-data"], "it writes there alone"


def test_the_health_check_reads_the_settings_of_the_server(tmp_path: Path) -> None:
    make_certificates(tmp_path, [])
    files = {"tls_cert": "node.pem", "tls_key": "node-key.pem", "tls_client_ca": "ca.pem"}
    flags = [f"--{key.replace('_', '-')}={tmp_path / name}" for key, name in files.items()]
    config = tmp_path / "wings.toml"
    with server_process(flags=flags) as server:
        files["http"] = server.http.removeprefix("https://")
        config.write_text("".join(f'{key} = "{value}"\n' for key, value in files.items()))
        variables = {"WINGS_CONFIG": str(config), "PATH": f"{sys.prefix}/bin:{os.defpath}"}
        assert health(variables, tmp_path, "--ready") == 0
        alone = {f"WINGS_{key.upper()}": value for key, value in files.items()}
        assert health(variables | alone | {"WINGS_CONFIG": ""}, tmp_path) == 0
    assert health(variables, tmp_path) == 1
    config.write_text("http = ")
    assert health(variables, tmp_path) == 1


def test_the_image_does_not_run_as_root() -> None:
    user = argument("USER")
    assert re.fullmatch(r"\d{4,}:\d{4,}", user), "a number: Kubernetes checks that it is not 0"
    assert json.loads(argument("VOLUME")) == [argument("WORKDIR")]
    (created,) = (rest for name, rest in instructions()[-1] if name == "RUN")
    assert f"--uid {user.partition(':')[0]}" in created


def test_what_the_image_copies_is_there() -> None:
    for name, rest in instructions()[0]:
        if name == "COPY":
            for source in rest.split()[:-1]:
                assert (ROOT / source).exists(), source


@pytest.mark.soak
@pytest.mark.timeout(1_200)  # It downloads all that is in the image.
def test_the_image_is_built_by_its_lines(tmp_path: Path) -> None:
    """Every RUN and COPY of the first stage, and then the server of what they made."""
    sources, home, data = (tmp_path / name for name in ("src", "wings", "data"))
    sources.mkdir()
    data.mkdir()
    for name, rest in instructions()[0]:
        if name == "COPY":
            *copied, target = rest.split()
            for source in copied:
                place = sources / target / ("" if target == source else Path(source).name)
                place.parent.mkdir(parents=True, exist_ok=True)
                if (ROOT / source).is_dir():
                    shutil.copytree(ROOT / source, sources / target)
                else:
                    shutil.copy(ROOT / source, place)
        elif name == "RUN":
            line = rest.replace("/opt/wings", str(home)).replace(
                "python -m venv", f"{PYTHON} -m venv"
            )
            subprocess.run(["sh", "-ec", line], cwd=sources, check=True)
    with container(home, data):
        pass


PYTHON = shlex.quote(sys.executable)


def linted(program: str, *arguments: str | Path) -> None:
    """Run a linter, which must find nothing; skip where it is not installed."""
    found = shutil.which(
        program, path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    )
    if found is None:
        pytest.skip(f"{program} is not installed")
    done = subprocess.run(
        [found, *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_hadolint_finds_no_fault() -> None:
    linted("hadolint", "deploy/Dockerfile")


def test_yamllint_finds_no_fault() -> None:
    linted("yamllint", "--strict", "deploy")


def test_compose_files_are_of_the_published_schema() -> None:
    files = [DEPLOY / f"compose/{name}.yaml" for name in ("single", "cluster", "connect")]
    linted("check-jsonschema", "--builtin-schema", "vendor.compose-spec", *files)


@pytest.mark.parametrize("name", ["stateless.yaml", "stateful.yaml"])
def test_manifests_are_of_kubernetes_schema(name: str) -> None:
    linted("kubernetes-validate", "--strict", DEPLOY / "kubernetes" / name)


@pytest.mark.parametrize("name", ["wings.service", "wings-ingest@.service"])
def test_systemd_takes_the_units(name: str, tmp_path: Path) -> None:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd-analyze is not installed")
    # It looks whether the program is there.
    text = (DEPLOY / "systemd" / name).read_text()
    wings = Path(sys.prefix) / "bin/wings"
    (tmp_path / name).write_text(text.replace("/opt/wings/bin/wings", str(wings)))
    done = subprocess.run(
        [program, "verify", tmp_path / name], capture_output=True, text=True, check=False
    )
    assert (done.returncode, name in done.stderr) == (0, False), done.stderr


@pytest.mark.parametrize("name", ["wings.service", "wings-ingest@.service"])
def test_the_commands_of_the_units_are_ones_of_ours(name: str) -> None:
    text = (DEPLOY / "systemd" / name).read_text()
    (command,) = re.findall(r"^ExecStart=/opt/wings/bin/wings (.*)$", text, re.MULTILINE)
    words = command.split()
    named = words[: next(index for index, word in enumerate(words) if word.startswith("--"))]
    shown = subprocess.check_output(
        [sys.executable, "-m", "wings_client.cli", *named, "--help"],
        text=True,
        env={**os.environ, "COLUMNS": "200"},
    )
    for word in words:
        assert not word.startswith("--") or word in shown, word
    assert "Type=exec\n" in text, "nothing notifies"


def test_pods_have_the_time_that_a_stop_takes() -> None:
    from wings_server.lifecycle import STOP_SECONDS_MAX
    from wings_server.settings import Settings

    drain = Settings.model_fields["drain_seconds"].default
    for name in ("stateless.yaml", "stateful.yaml"):
        text = (DEPLOY / "kubernetes" / name).read_text()
        (grace,) = re.findall(r"terminationGracePeriodSeconds: (\d+)", text)
        (pause,) = re.findall(r"sleep: {seconds: (\d+)}", text)
        assert int(grace) >= int(pause) + drain + STOP_SECONDS_MAX
        for setting in re.findall(r"name: WINGS_(\w+)", text):
            assert setting.lower() in Settings.model_fields, setting
