"""The compose file of a cluster, as far as it is true without containers."""

import importlib
import socket
import sys
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlsplit

import pytest
from pydantic import SecretStr
from typer.testing import CliRunner

from wings_client.cli.app import app
from wings_core.storage.objects.open import S3_ENDPOINTS
from wings_server import process
from wings_server.settings import Settings

DEPLOY = Path(__file__).parents[2] / "deploy"
FILE = DEPLOY / "compose" / "cluster.yaml"
NODES = ("node1", "node2", "node3")


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    yaml: Any = importlib.import_module("yaml")
    parsed = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    mounted = {
        volume.split(":")[0]
        for each in parsed["services"].values()
        for volume in each.get("volumes", ())
    }
    files = {each for each in mounted if each.startswith(".")}
    assert mounted - files == set(parsed["volumes"])
    for each in files:
        assert (FILE.parent / each).is_file(), each
    return parsed["services"]


def settings_of(service: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Return the settings that our command line makes of a service."""
    started: list[Settings] = []

    def run(settings: Settings) -> NoReturn:
        started.append(settings)
        raise SystemExit(0)

    monkeypatch.setattr(process, "run", run)
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])  # A server hides pandas in it.
    for name, value in service["environment"].items():
        monkeypatch.setenv(name, value)
    image = DEPLOY.parent / service["build"]["dockerfile"]
    assert 'ENTRYPOINT ["wings"]' in image.read_text(encoding="utf-8")
    done = CliRunner().invoke(app, service["command"])
    assert done.exit_code == 0, done.output
    (settings,) = started
    return settings


def test_its_services_are_those_of_the_cluster(services: dict[str, Any]) -> None:
    assert set(services) == {"postgres", "s3", "bucket", "prometheus", "grafana", *NODES}
    for service in services.values():
        for needed in service.get("depends_on", ()):
            assert needed in services


def test_our_command_line_takes_what_its_nodes_are_started_with(
    services: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    advertised: set[str] = set()
    published: set[str] = set()
    for name in NODES:
        service = services[name]
        with monkeypatch.context() as patched:
            settings = settings_of(service, patched)
        assert settings.is_stateless
        assert isinstance(settings.metadata_url, SecretStr)
        url = urlsplit(settings.metadata_url.get_secret_value())
        postgres = services["postgres"]["environment"]
        assert (url.username, url.password, url.path[1:]) == (
            postgres["POSTGRES_USER"],
            postgres["POSTGRES_PASSWORD"],
            postgres["POSTGRES_DB"],
        )
        assert url.hostname in services
        assert settings.hot == "s3://wings/log"
        assert "s3/wings" in services["bucket"]["command"][0]
        s3 = services["s3"]["environment"]
        assert service["environment"]["AWS_ACCESS_KEY_ID"] == s3["MINIO_ROOT_USER"]
        assert service["environment"]["AWS_SECRET_ACCESS_KEY"] == s3["MINIO_ROOT_PASSWORD"]
        assert set(S3_ENDPOINTS) & set(service["environment"])
        assert settings.holds is not None
        assert settings.holds.host == service["hostname"] == name
        # Where clients are told to come to is where the node's port is published.
        ports = dict(port.rsplit(":", 1) for port in service["ports"])
        assert ports[str(settings.advertise)] == str(settings.flight.port)
        assert str(settings.http.port) in ports.values()
        advertised.add(str(settings.advertise))
        published |= set(ports)
    assert len(advertised) == len(NODES)
    assert len(published) == 2 * len(NODES)
    for each in published:
        socket.inet_aton(each.split(":")[0])
        assert each.startswith("127."), "the ports are this machine's alone"
