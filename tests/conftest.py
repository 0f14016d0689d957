"""The fixture plugins, one for each concern; they lie beside this file."""

from pathlib import Path

import pytest
from hypothesis import settings

# A busy machine is no failure: tests have pytest's time-out, examples none of their own.
settings.register_profile("wings", deadline=None)
settings.load_profile("wings")

pytest_plugins = (
    "fix_aws",
    "fix_client",
    "fix_ingest",
    "fix_postgres",  # Before the one that imports it.
    "fix_metadata",
    "fix_objects",
    "fix_server",
    "fix_share",
    "fix_spark",
    "fix_storage",
)

TESTS = Path(__file__).parent

FIRST = ("spark", "integration", "unit")
"""The folders in the order in which they begin: what takes longest must not come last."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give each process whole modules, which share a server, and one of them all of Spark.

    A session of Spark has threads for all cores, so two of them would only be in each other's way.
    """
    order = {folder: number for number, folder in enumerate(FIRST)}
    items.sort(key=lambda item: order.get(_folder(item), len(order)))
    for item in items:
        folder = _folder(item)
        group = folder if folder == "spark" else str(item.path.relative_to(TESTS))
        item.add_marker(pytest.mark.xdist_group(group))


def _folder(item: pytest.Item) -> str:
    return item.path.relative_to(TESTS).parts[0]
