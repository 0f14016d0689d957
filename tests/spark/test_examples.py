"""The examples of Spark, as processes, but for what `test_pipeline_crashes` tries."""

import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as parquet
import pytest

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(example: str, *arguments: str) -> str:
    """Run an example to its end; return what it printed."""
    ended = subprocess.run(
        [sys.executable, str(EXAMPLES / example), *arguments],
        capture_output=True,
        text=True,
        timeout=230,
        check=False,
        env=os.environ | {"JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1"},
    )
    assert ended.returncode == 0, ended.stderr[-4_000:]
    return ended.stdout


@pytest.mark.parametrize("example", ["lake.py", "spark_pipeline.py"])
def test_an_example_teaches_itself(example: str) -> None:
    text = run(example, "--help")
    assert "--endpoint" in text
    assert f"python examples/{example}" in text


def test_the_lake_is_appended_to_by_each_run(tmp_path: Path) -> None:
    said = run("lake.py", "--rows", "2000", "--lake", str(tmp_path))
    assert "appended 1,000 flights: the lake holds 1,000\n" in said
    assert "appended 1,000 flights: the lake holds 2,000\n" in said
    assert "stopped the server" in said
    table = parquet.read_table(tmp_path / "flights")
    assert table.num_rows == 2_000
    assert len(set(table.column("date").to_pylist())) == 2_000  # Each flight has its own.
