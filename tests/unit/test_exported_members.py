import importlib
import inspect
import pkgutil
from types import ModuleType

from tables import each

import wings_client
import wings_core.contracts.share
import wings_core.errors

LAYERS = ("wings_core", "wings_server", "wings_client", "wings_spark")


def packages() -> list[str]:
    found: list[str] = []
    for layer in LAYERS:
        package = importlib.import_module(layer)
        below = pkgutil.walk_packages(package.__path__, layer + ".")
        found += [layer, *(module.name for module in below if module.ispkg)]
    return found


def exporting() -> list[ModuleType]:
    modules = [importlib.import_module(name) for name in packages()]
    return [module for module in modules if hasattr(module, "__all__")]


@each("module", exporting())
def test_every_exported_name_is_there_once_and_is_documented(module: ModuleType) -> None:
    names: list[str] = module.__all__
    assert len(set(names)) == len(names)
    for name in names:
        assert not name.startswith("_")
        member = getattr(module, name)
        if inspect.isclass(member) or inspect.isroutine(member):
            assert member.__doc__, f"{module.__name__}.{name} has no docstring"


@each("name", packages())
def test_every_package_says_what_it_is(name: str) -> None:
    assert importlib.import_module(name).__doc__


def test_the_client_exports_something() -> None:
    assert "wings_client" in [module.__name__ for module in exporting()]


def test_the_client_exports_the_whole_error_tree() -> None:
    defined = {
        name
        for name, member in vars(wings_core.errors).items()
        if inspect.isclass(member) and issubclass(member, wings_core.errors.WingsError)
    }
    assert {"TopicNotFound", "NotFound", "Internal"} < defined
    assert defined <= set(wings_client.__all__)
    for name in defined:
        assert getattr(wings_client, name) is getattr(wings_core.errors, name)
        assert f" {name}\n" in str(wings_client.__doc__), "the docstring draws the tree"


def test_the_client_exports_the_entries_that_it_takes() -> None:
    entry = wings_client.AcknowledgementEntry(first=0, last=1, lease="l", type="accept")
    assert "AcknowledgementEntry" in wings_client.__all__
    assert type(entry) is wings_core.contracts.share.AcknowledgementEntry
