"""The fixture plugins, one for each concern; they lie beside this file."""

import pytest
from hypothesis import settings
from xdist.remote import Producer  # pyright: ignore[reportMissingTypeStubs]
from xdist.scheduler import LoadScopeScheduling  # pyright: ignore[reportMissingTypeStubs]

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

FIRST = ("spark", "integration", "unit")
"""The folders in the order in which they begin: what takes longest must not come last."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Where several processes share the tests, begin with what takes longest."""
    if hasattr(config, "workerinput"):
        order = {folder: number for number, folder in enumerate(FIRST)}
        items.sort(key=lambda item: order.get(_folder(item.nodeid), len(order)))


class ByModule(LoadScopeScheduling):
    """Gives each process whole modules, which share a server, and one of them all of Spark.

    A session of Spark has threads for all cores, so two of them would only be in each other's way.
    """

    def _split_scope(self, nodeid: str) -> str:
        return "spark" if _folder(nodeid) == "spark" else nodeid.partition("::")[0]


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    """Have the tests of several processes scheduled by module, whatever `--dist` says."""
    return ByModule(config, log)


def _folder(nodeid: str) -> str:
    """Return the folder below this one that a test is in."""
    return nodeid.removeprefix("tests/").partition("/")[0]
