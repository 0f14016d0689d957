"""The fixture plugins, one for each concern; they lie beside this file."""

pytest_plugins = (
    "fix_metadata",
    "fix_server",
    "fix_storage",
)
