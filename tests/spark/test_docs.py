"""The examples of docs/spark.md, run one after another."""

import contextlib
import io
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from wings_server.testing import RunningServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

PAGE = Path(__file__).parents[2] / "docs" / "spark.md"
ENDPOINT = "grpc://127.0.0.1:7777"
_FENCED = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_examples_of_the_page_do_what_it_says(
    spark: "SparkSession", server: RunningServer
) -> None:
    text = PAGE.read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    printed = ""
    for match in _FENCED.finditer(text):
        kind, body = match.groups()
        line = text.count("\n", 0, match.start()) + 2
        if kind == "text":
            assert printed == body, f"line {line}"
            continue
        assert kind == "python"
        code = "\n" * (line - 1) + body.replace(ENDPOINT, server.flight)
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            exec(compile(code, str(PAGE), "exec"), names)
        printed = output.getvalue()
    names["client"].close()
    assert names["spark"] is spark
