"""`/metrics` keeps to Prometheus's conventions, as its own parser and promtool see them."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import httpx
import pyarrow as pa
import pytest
from flight_calls import act, create_topic, push
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families
from share_calls import Member, create_group

from wings_server.certificates import make_certificates
from wings_server.testing import running_server, server_process

DEPLOY = Path(__file__).parents[2] / "deploy"

METRIC = re.compile(r"\b(?:wings|process)_\w+")

DOCUMENT = Path(__file__).parents[2] / "docs/observe.md"

UNITS = {"seconds", "bytes"}
NO_BASE_UNITS = {
    "ms",
    "us",
    "milliseconds",
    "minutes",
    "hours",
    "kb",
    "mb",
    "kib",
    "mib",
    "percent",
}
"""Words of names that are of other units."""


@pytest.fixture(scope="module")
def exposition(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The metrics of a server with two stores that was used in every way that they count."""
    directory = tmp_path_factory.mktemp("metrics")
    with running_server(directory / "data", hot=(directory / "hot").as_uri()) as server:
        client = server.client()
        create_topic(client, "jobs", ["key: int64", "n: int64"], "key")
        push(client, "jobs", pa.record_batch({"key": [1, 2], "n": [1, 2]}))
        act(
            client,
            "commit-offsets",
            consumer="c",
            offsets=[{"topic": "jobs", "partition": 1, "offset": 0}],
        )
        create_group(client, "jobs")
        Member(client, "jobs").acquire()
        httpx.get(f"{server.http}/v1/none")
        act(client, "backup-begin")
        used = httpx.get(f"{server.http}/metrics").text
    make_certificates(directory, [], days=10)
    tls = ["--tls-cert", f"{directory}/server.pem", "--tls-key", f"{directory}/server-key.pem"]
    with server_process(flags=tls) as server:
        secure = httpx.get(f"{server.http}/metrics", verify=False).text
    lines = [line for line in secure.splitlines() if "wings_certificate" in line]
    assert lines
    return used + "\n".join(lines) + "\n"


def families(text: str) -> list[Metric]:
    return list(text_string_to_metric_families(text))


def test_names_types_and_help_keep_to_the_conventions(exposition: str) -> None:
    found = families(exposition)
    assert len(found) > 40
    assert len({family.name for family in found}) == len(found)
    for family in found:
        name = family.name
        assert re.fullmatch(r"(wings|process)_[a-z0-9]+(_[a-z0-9]+)*", name), name
        assert family.type in {"counter", "gauge", "histogram"}, name
        assert family.documentation.endswith("."), name
        assert not family.name.endswith(("_count", "_sum", "_bucket", "_total")), name
        words = name.split("_")
        assert not NO_BASE_UNITS & set(words), name
        if UNITS & set(words) and name.startswith("wings_"):
            assert words[-1] in UNITS, f"{name}: the unit comes last"
        for sample in family.samples:
            ends = {"counter": ("_total",), "histogram": ("_bucket", "_count", "_sum")}
            assert sample.name.removeprefix(name) in ends.get(family.type, ("",)), sample.name


def test_what_is_served_is_told(exposition: str) -> None:
    found = {family.name: family for family in families(exposition)}
    (build,) = found["wings_build_info"].samples
    assert build.labels["version"]
    for name in (
        "process_cpu_seconds", "process_resident_memory_bytes", "wings_disk_free_bytes",
        "wings_memory_limit_bytes",
    ):  # fmt: skip
        (sample,) = found[name].samples
        assert sample.value > 0, name
    for name in ("wings_pushes_refused", "wings_share_damaged"):
        (sample,) = found[name].samples
        assert sample.value == 0, name


def test_promtool_finds_no_fault(exposition: str) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (in Debian: prometheus)")
    done = subprocess.run(
        [promtool, "check", "metrics"],
        input=exposition,
        text=True,
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_a_scrape_loads_no_sql() -> None:
    with running_server() as server:
        assert "wings_sql_queries 0.0\n" in httpx.get(f"{server.http}/metrics").text
        assert "sql" not in vars(server.server.log)


def test_every_metric_is_documented(exposition: str) -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \|", DOCUMENT.read_text(), re.MULTILINE)
    served = {
        (name + ("_total" if family.type == "counter" else ""), family.type)
        for family in families(exposition)
        if not (name := family.name).endswith("_created")
    }
    assert set(rows) == served


def names_of(exposition: str) -> set[str]:
    """The names of all series of a server, as queries name them."""
    return {
        name
        for family in families(exposition)
        for name in (family.name, *(sample.name for sample in family.samples))
    }


def test_the_dashboard_is_what_is_generated_and_asks_for_metrics_that_there_are(
    exposition: str,
) -> None:
    generated = subprocess.check_output(
        [sys.executable, DEPLOY / "grafana/dashboard.py"], text=True
    )
    written = (DEPLOY / "grafana/wings.json").read_text()
    assert written == generated, "python deploy/grafana/dashboard.py > deploy/grafana/wings.json"
    panels = [panel for panel in json.loads(written)["panels"] if panel["type"] != "row"]
    assert len({panel["id"] for panel in panels}) == len(panels) > 20
    for panel in panels:
        for target in panel["targets"]:
            asked = set(METRIC.findall(target["expr"]))
            assert asked, panel["title"]
            assert asked <= names_of(exposition), panel["title"]


def test_alerts_ask_for_metrics_that_there_are_and_say_what_to_do(exposition: str) -> None:
    rules = (DEPLOY / "prometheus/alerts.yaml").read_text()
    alerts = re.findall(r"- alert: (\w+)", rules)
    assert len(set(alerts)) == len(alerts) > 10
    asked = {each for each in METRIC.findall(rules) if not each.startswith("wings_core")}
    assert asked <= names_of(exposition)
    for alert in alerts:
        assert f"runbook: docs/observe.md#{alert.lower()}\n" in rules
        assert f"\n### {alert}\n" in DOCUMENT.read_text()


def test_the_first_fault_is_an_increase_that_an_alert_sees(exposition: str) -> None:
    rules = (DEPLOY / "prometheus/alerts.yaml").read_text()
    (codes,) = re.findall(r'code=~"([A-Z_|]+)"', rules)
    for code in codes.split("|"):
        for transport in ("flight", "http"):
            assert f'wings_errors_total{{code="{code}",transport="{transport}"}} 0.0' in exposition


@pytest.mark.parametrize("command", ["check rules alerts.yaml", "test rules alerts.test.yaml"])
def test_promtool_runs_the_alerts(command: str) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (in Debian: prometheus)")
    done = subprocess.run(
        [promtool, *command.split()],
        cwd=DEPLOY / "prometheus",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
