"""The examples of Spark in the tests' session; `test_pipeline_crashes` runs one as a process."""

import contextlib
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as parquet
import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

EXAMPLES = Path(__file__).parents[2] / "examples"

Run = Callable[..., str]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the `main` of an example, in a session if it needs one; return what it printed."""

    def run_main(example: str, *arguments: str, spark: "SparkSession | None" = None) -> str:
        monkeypatch.syspath_prepend(EXAMPLES)
        module = importlib.import_module(example)
        if spark is not None:
            # All sessions of a process are one, and others go on with it.
            monkeypatch.setattr(module, "local_session", lambda: contextlib.nullcontext(spark))
        monkeypatch.setattr(sys, "argv", [f"{example}.py", *arguments])
        module.main()
        return capsys.readouterr().out

    return run_main


@pytest.mark.parametrize("example", ["lake", "spark_pipeline"])
def test_an_example_teaches_itself(
    run: Run, example: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match=r"^0$"):
        run(example, "--help")
    text = capsys.readouterr().out
    assert "--endpoint" in text
    assert f"python examples/{example}.py" in text


def test_the_lake_is_appended_to_by_each_run(
    run: Run, spark: "SparkSession", tmp_path: Path
) -> None:
    # Each run writes a file, of which each takes Spark its time, for each origin.
    said = run("lake", "--rows", "40", "--lake", str(tmp_path), spark=spark)
    assert "appended 20 flights: the lake holds 20\n" in said
    assert "appended 20 flights: the lake holds 40\n" in said
    assert "stopped the server" in said
    table = parquet.read_table(tmp_path / "flights")
    assert table.num_rows == 40
    assert len(set(table.column("date").to_pylist())) == 40  # Each flight has its own.


def test_the_pipeline_runs_on_a_server_of_its_own(run: Run, spark: "SparkSession") -> None:
    said = run("spark_pipeline", "--rows", "3000", "--batch-rows", "2000", spark=spark)
    assert "started a server" in said
    assert "pushed 3,000 flights" in said
    assert "batch 1: read 1,000 flights" in said
    assert "the topic delays holds" in said
    assert "stopped the server" in said
