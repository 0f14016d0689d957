"""The fixture plugins, one for each concern; they lie beside this file."""

from hypothesis import settings

# A busy machine is no failure: tests have pytest's time-out, examples none of their own.
settings.register_profile("wings", deadline=None)
settings.load_profile("wings")

pytest_plugins = (
    "fix_client",
    "fix_postgres",  # Before the one that imports it.
    "fix_metadata",
    "fix_objects",
    "fix_server",
    "fix_spark",
    "fix_storage",
)
