"""The pages of the reference, as Markdown, each out of what the code says of itself."""

import ast
import inspect
import re
import textwrap
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any

import typer
import typer.main
from pydantic import BaseModel
from pydantic.fields import FieldInfo

import wings_client
from wings_client.cli import app as command_line
from wings_core.contracts import tickets
from wings_core.contracts.sql import SqlTicket
from wings_core.errors import WingsError
from wings_server.actions import ACTIONS
from wings_server.flags import FLAGS
from wings_server.http.errors import status_of
from wings_server.rights import ACTION_RULES
from wings_server.settings import Settings


def commands() -> str:
    """Return the page of the commands, by their `--help`."""
    lines = ["# Commands", ""]
    for path, command in _commands(typer.main.get_command(command_line.app), ("wings",)):
        lines += [f"## {' '.join(path)}", "", _prose(command.help or ""), ""]
        options = [each for each in command.params if not getattr(each, "hidden", False)]
        if len(path) > 1:  # Typer adds them to each group of commands.
            options = [each for each in options if not str(each.name).endswith("_completion")]
        rows = [(_names(each), _cell(getattr(each, "help", "") or "")) for each in options]
        lines += _table(("option", "meaning"), rows) if rows else []
    return "\n".join(lines)


def settings() -> str:
    """Return the page of the server's settings."""
    lines = [
        "# Settings",
        "",
        "Configure `wings serve` by its options, variables of the environment, or a TOML file",
        "(`--config`). An option takes precedence over a variable, a variable over the file.",
        "",
        *_table(
            ("for the key", "option", "variable", "in the file"),
            (
                ("`data_dir`", "`--data-dir`", "`WINGS_DATA_DIR`", "`data_dir`"),
                (
                    "`limits.sql_rows_max`",
                    "none",
                    "`WINGS_LIMITS__SQL_ROWS_MAX`",
                    "`sql_rows_max` in `[limits]`",
                ),
            ),
        ),
    ]
    helped = {name: flag.__metadata__[0].help for name, flag in FLAGS.items()}
    return "\n".join([*lines, *_fields(Settings, helped)])


def actions() -> str:
    """Return the page of the actions, with their bodies and rights."""
    about = "Call them by DoAction over Flight, or by `POST /v1/actions/NAME`; bodies are JSON."
    lines = ["# Actions", "", about, ""]
    for name, action in sorted(ACTIONS.items()):
        rule = ACTION_RULES.get(name)
        rights = " or ".join(f"`{right}`" for right in rule.rights) if rule else "`admin`"
        lines += [f"## {name}", "", _prose(action.description), "", f"Right: {rights}.", ""]
        lines += _fields(action.body)
    return "\n".join(lines)


def ticket_kinds() -> str:
    """Return the page of the tickets of DoGet."""
    about = "A ticket of DoGet is a JSON object. Its `kind` decides which keys it takes."
    lines = ["# Tickets", "", about, ""]
    kinds = (tickets.FetchTicket, tickets.ScanTicket, tickets.FollowTicket, tickets.AcquireTicket)
    for model in (*kinds, SqlTicket):
        kind = model.model_fields["kind"].default
        lines += [f"## {kind}", "", _prose(model.__doc__ or ""), "", *_fields(model)]
    return "\n".join(lines)


def errors() -> str:
    """Return the page of the errors, with the status that HTTP answers."""
    rows = {
        (f"`{each.code}`", f"`{each.__name__}`", f"{status_of(each('')):d}", _cell(_first(each)))
        for each in _subclasses(WingsError)
        if "code" in vars(each)
    }
    about = "An error has the same code over every protocol, a message, and facts for programs."
    lines = ["# Errors", "", about, ""]
    return "\n".join([*lines, *_table(("code", "class", "HTTP", "when"), sorted(rows))])


def client() -> str:
    """Return the page of the client's classes, with their methods and docstrings."""
    about = "These are the names of `wings_client`. The async client has the same calls."
    lines = ["# Client API", "", about, ""]
    for name in sorted(wings_client.__all__):
        found = getattr(wings_client, name)
        if inspect.isclass(found) and issubclass(found, BaseException):
            continue  # They have a page.
        if not (inspect.isclass(found) or inspect.isfunction(found)):
            continue
        lines += [f"## {name}", "", *_documented(found)]
        for method, function in _methods(found) if inspect.isclass(found) else ():
            lines += [f"### {name}.{method}", "", *_documented(function)]
    return "\n".join(lines)


PAGES: Mapping[str, Callable[[], str]] = {
    "commands": commands,
    "settings": settings,
    "actions": actions,
    "tickets": ticket_kinds,
    "errors": errors,
    "client": client,
}
"""The pages by their names."""

_USUAL = {
    "topic": "Full name of the topic, or its id in the default namespace.",
    "group": "Name of the share group.",
    "consumer": "Name of the consumer or consumer group.",
    "member": "Name of the member.",
    "limit": "Most entries to return.",
    "if_not_exists": "Whether to return an existing one, instead of an error.",
}
"""Meanings of keys without a text of their own."""


def _commands(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield path, command
    if hasattr(command, "list_commands"):
        context = typer.Context(command, info_name=path[-1])
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            if found is not None and not found.hidden:
                yield from _commands(found, (*path, name))


def _names(parameter: Any) -> str:
    if parameter.param_type_name == "option":
        return ", ".join(f"`{each}`" for each in (*parameter.opts, *parameter.secondary_opts))
    return f"`{parameter.metavar or parameter.name.upper()}`"


def _fields(model: type[BaseModel], helped: Mapping[str, str] | None = None) -> list[str]:
    rows = list(_rows(model, helped or {}))
    return _table(("key", "type", "default", "meaning"), rows) if rows else ["No keys.", ""]


def _rows(
    model: type[BaseModel], helped: Mapping[str, str], prefix: str = ""
) -> Iterator[tuple[str, ...]]:
    documented = _attribute_docstrings(model)
    for name, field in model.model_fields.items():
        key = f"{prefix}{field.alias or name}"
        if inspect.isclass(field.annotation) and issubclass(field.annotation, BaseModel):
            yield from _rows(field.annotation, {}, f"{key}.")
        else:
            kind = _type(field.annotation).replace("|", "\\|")
            about = field.description or helped.get(name) or documented.get(name)
            about = re.sub(r"\bNone\b", "null", about or _USUAL.get(name, ""))
            yield f"`{key}`", f"`{kind}`", _default(field), _cell(about)


def _attribute_docstrings(model: type[BaseModel]) -> dict[str, str]:
    """Return the strings below the fields of a model and its bases, by the fields' names."""
    found: dict[str, str] = {}
    for kind in reversed(model.__mro__):
        if not kind.__module__.startswith("wings_"):
            continue
        (defined,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
        assert isinstance(defined, ast.ClassDef)
        for field, below in pairwise(defined.body):
            match field, below:
                case (
                    ast.AnnAssign(target=ast.Name(id=name)),
                    ast.Expr(value=ast.Constant(value=str(text))),
                ):
                    found[name] = text
                case _:
                    pass
    return found


def _type(annotation: Any) -> str:
    """Return a type as its reader needs it, without what validates it."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation is type(None):
        return "null"
    if origin is typing.Annotated:
        return _type(arguments[0])
    if origin is typing.Literal:
        return " | ".join(map(repr, arguments))
    if origin in {typing.Union, types.UnionType}:
        return " | ".join(_type(each) for each in arguments)
    name = getattr(origin or annotation, "__name__", str(annotation))
    name = {"tuple": "list", "SecretStr": "str"}.get(name, name)
    inner = [_type(each) for each in arguments if each is not Ellipsis]
    return f"{name}[{', '.join(inner)}]" if inner else name


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=not _takes_data(field))
    if value is None or value == () or isinstance(value, BaseModel):
        return ""
    return (f"`{value}`".lower() if isinstance(value, bool) else f"`{value}`").replace("|", "\\|")


def _takes_data(field: FieldInfo) -> bool:
    factory = field.default_factory
    return factory is not None and bool(
        inspect.isfunction(factory) and inspect.signature(factory).parameters
    )


def _subclasses(kind: type[WingsError]) -> Iterator[type[WingsError]]:
    for each in kind.__subclasses__():
        if each.__module__ == WingsError.__module__:
            yield each
            yield from _subclasses(each)


def _first(kind: type) -> str:
    return (inspect.getdoc(kind) or "").partition("\n\n")[0]


def _methods(kind: type) -> Iterator[tuple[str, Any]]:
    for name, found in inspect.getmembers(kind):
        function = found.fget if isinstance(found, property) else found
        module = getattr(function, "__module__", None) or ""
        if name[0] != "_" and module.startswith("wings_"):
            yield name, found


def _documented(found: Any) -> list[str]:
    lines: list[str] = []
    if inspect.isfunction(found):
        signature = re.sub(r"\b(?:\w+\.)+(\w+)", r"\1", str(inspect.signature(found)))
        lines += ["```text", f"{found.__name__}{signature}", "```", ""]
    text = inspect.getdoc(found) or ""
    return [*lines, *(["```text", text, "```", ""] if text else [])]


def _prose(text: str) -> str:
    """Return a docstring as paragraphs; indented lines and commands stay as they are."""
    if "```" in text:
        return text
    return re.sub(
        r"^\$ ", "    $ ", inspect.cleandoc(text).replace("<", "&lt;"), flags=re.MULTILINE
    )


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    lines = [f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}"]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    return [*lines, ""]
