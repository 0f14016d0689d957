"""Profiles: named connections of the command line, in `$XDG_CONFIG_HOME/wings.toml`.

    [default]
    endpoint = "grpc://127.0.0.1:7777"

    [prod]
    endpoint = "grpc+tls://log.example.com:7777"
    token_file = "~/.secrets/wings-prod"
    tls_ca = "/etc/ssl/log.pem"

A flag takes precedence over the environment, and that over the profile.
"""

import tomllib
from pathlib import Path
from typing import Any

from wings_client.cli.environment import configuration_file
from wings_core.errors import InvalidArgument, suggested

DEFAULT = "default"
"""The profile that is used where none is named."""

FILES = ("token_file", "tls_ca", "tls_cert", "tls_key")
KEYS = ("endpoint", *FILES)

Profile = dict[str, str]
"""The given keys of a profile; paths of files are absolute."""


def profiles() -> dict[str, Profile]:
    """Return all profiles by name; none where there is no file, or no home directory.

    Raises:
        InvalidArgument: The file cannot be read, or has an unknown key.
    """
    try:
        path = configuration_file()
    except RuntimeError:
        return {}
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"{path} cannot be read: {error}") from None
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidArgument(f"{path} is not TOML: {error}") from None
    return {name: _checked(path, name, table) for name, table in found.items()}


def _checked(path: Path, name: str, table: Any) -> Profile:
    if not isinstance(table, dict):
        raise InvalidArgument(f"{path}: {name!r:.80} must be a table: [NAME] with keys below it")
    for key, value in table.items():
        if key not in KEYS:
            hint = suggested(key, KEYS)
            raise InvalidArgument(f"{path}: profile {name!r:.80}: unknown key {key!r:.80}{hint}")
        if not isinstance(value, str) or not value:
            raise InvalidArgument(f"{path}: profile {name!r:.80}: key {key!r} must be a text")
    return {
        key: str(path.parent / Path(value).expanduser()) if key in FILES else value
        for key, value in table.items()
    }


def profile_of(name: str | None) -> Profile:
    """Return a profile by name; None: the default one, empty where there is none.

    Raises:
        InvalidArgument: There is no such profile, or the file is invalid.
    """
    found = profiles()
    if name is None:
        return found.get(DEFAULT, {})
    if name not in found:
        raise InvalidArgument(
            f"no profile {name!r:.80} in {configuration_file()}{suggested(name, found)}"
        )
    return found[name]
