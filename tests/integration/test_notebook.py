"""The example notebook, run in a real kernel against a server."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from wings_server.testing import running_server

NOTEBOOK = Path(__file__).parents[2] / "examples/flights.ipynb"


def outputs(notebook: nbformat.NotebookNode) -> list[list[object]]:
    return [
        [output.get("text") or output["data"] for output in cell.outputs]
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]


def test_the_notebook_does_what_it_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = nbformat.read(NOTEBOOK, as_version=4)
    again = nbformat.read(NOTEBOOK, as_version=4)
    with running_server() as server:
        monkeypatch.setenv("WINGS_ENDPOINT", server.flight)
        run = NotebookClient(again, resources={"metadata": {"path": str(NOTEBOOK.parent)}})
        run.execute()
    assert outputs(again) == outputs(shown)
