import subprocess
import sys

import pytest

import wings_client

pytestmark = pytest.mark.programs

HEAVY = {
    "asyncio",
    "duckdb",
    "numpy",
    "pandas",
    "polars",
    "pyarrow",
    "pydantic",
    "typer",
    "wings_server",
}


def loaded_by(code: str) -> set[str]:
    """Return the names of the modules that a fresh interpreter has after running some code."""
    code = f"{code}\nimport sys; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return set(run.stdout.split())


def test_importing_the_client_imports_the_errors_alone() -> None:
    code = "import wings_client; wings_client.TopicNotFound('no'); dir(wings_client)"
    found = loaded_by(code)
    assert not HEAVY & found
    ours = {name for name in found if name.startswith("wings_")}
    assert ours == {"wings_client", "wings_core", "wings_core.errors"}


def test_connecting_imports_no_event_loop_no_files_and_no_command_line() -> None:
    found = loaded_by("import wings_client; wings_client.connect('grpc://127.0.0.1:1').close()")
    assert not (HEAVY - {"numpy", "pyarrow", "pydantic"}) & found
    assert "pyarrow.flight" in found
    assert "pyarrow.compute" not in found
    lazily = ("wings_client.cli", "wings_client.files")
    assert not [name for name in found if name.startswith(lazily)]


def test_names_are_loaded_from_where_type_checkers_see_them() -> None:
    assert set(wings_client.__all__) <= set(dir(wings_client))
    for name in wings_client.__all__:
        assert getattr(wings_client, name) is getattr(wings_client, name)
    for module in ("arrow", "files", "gather"):
        assert getattr(wings_client, module).__name__ == f"wings_client.{module}"
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        getattr(wings_client, "nothing")  # noqa: B009 - a checker would refuse it otherwise.
