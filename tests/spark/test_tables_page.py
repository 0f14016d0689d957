"""docs/tables.md from its top: its commands, and its queries by pyiceberg, DuckDB and Spark."""

import contextlib
import io
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from wings_client.cli.app import app
from wings_server.testing import running_server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]
pytest.importorskip("pyiceberg")

PAGE = Path(__file__).parents[2] / "docs" / "tables.md"
_FENCED = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_page_leads_from_an_empty_directory_to_queries(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")  # Its own is another package.
    text = PAGE.read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    printed, queries = "", 0
    directory = tmp_path / "wings-data"
    with running_server(directory) as server:
        for match in _FENCED.finditer(text):
            kind, body = match.groups()
            line = text.count("\n", 0, match.start()) + 2
            body = body.replace("grpc://127.0.0.1:7777", server.flight)
            if kind == "text":
                assert printed == body, f"line {line}"
                queries += 1
            elif kind == "sh":
                _, *arguments = shlex.split(body)
                done = CliRunner().invoke(app, arguments)
                assert done.exit_code == 0, done.output
            else:
                assert kind == "python"
                code = "\n" * (line - 1) + body.replace(
                    "sqlite:///wings-data", f"sqlite:///{directory}"
                )
                output = io.StringIO()
                with contextlib.redirect_stdout(output):
                    exec(compile(code, str(PAGE), "exec"), names)
                printed = output.getvalue()
        names["client"].close()
    assert queries == 5
    assert names["spark"] is spark
