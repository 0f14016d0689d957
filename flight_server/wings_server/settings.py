"""The settings of the server, as one model, and their sources.

Sources in order of precedence: command-line flags, environment variables (`WINGS_FLIGHT`, nested
ones as `WINGS_LIMITS__BATCH_BYTES_MAX`), a TOML file, defaults.
"""

import ipaddress
import json
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar, cast, overload

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    SecretStr,
    ValidationError,
)

from wings_core.contracts.messages import keys_at
from wings_core.errors import InvalidArgument, suggested
from wings_core.limits import Limits
from wings_core.metadata.interfaces import NODE_LEASE_SECONDS_MAX
from wings_core.metadata.open import is_bound
from wings_core.partitions import SLOTS_MAX
from wings_core.security.tokens import check_root
from wings_core.storage.objects import check_url
from wings_core.times import DURATION

ENVIRONMENT_PREFIX = "WINGS_"
ENVIRONMENT_DELIMITER = "__"
JSON_SETTINGS = ("allowed_host", "limits")
"""Settings of several values, which the environment has as JSON."""

_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.%\w]+\]|[^\s:/\[\]]+):(\d{1,5})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a listener; port 0 picks a free one when it begins to listen."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `HOST:PORT`, with IPv6 addresses in brackets, like `[::1]:7777`.

        Raises:
            ValueError: The text is malformed, or the port is above 65535.
        """
        match = _ADDRESS.fullmatch(text)
        if match is None or int(match[2]) > 65_535:
            raise ValueError(
                f"{text!r} is not an address: expected HOST:PORT with a port up to 65535, "
                "an IPv6 host in brackets"
            )
        return cls(match[1].strip("[]"), int(match[2]))

    @property
    def is_wildcard(self) -> bool:
        """Whether this means all addresses of the machine, so that clients cannot connect to it."""
        return self.host in {"0.0.0.0", "::"}

    def __str__(self) -> str:
        """Return `HOST:PORT`, an IPv6 host in brackets."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def _parse_address(value: Any) -> Any:
    return Address.parse(value) if isinstance(value, str) else value


def _check_path(value: Any) -> Any:
    if value == "":
        raise ValueError("an empty path: leave it out for the default")
    return value


PathSetting = Annotated[Path, BeforeValidator(_check_path)]
"""A path that is not empty, which would be the current directory."""

AddressSetting = Annotated[Address, BeforeValidator(_parse_address), PlainSerializer(str)]


def _check_metadata_url(url: SecretStr) -> SecretStr:
    if not url.get_secret_value().startswith(("postgresql://", "postgres://")):
        # The value is not repeated, as it may contain a password.
        raise ValueError("expected postgresql://USER:PASSWORD@HOST:PORT/DATABASE")
    return url


def _check_store_url(url: str) -> str:
    try:
        return check_url(url)
    except InvalidArgument as error:
        raise ValueError(error.message) from None


def _check_secret(secret: SecretStr) -> SecretStr:
    try:
        check_root(secret.get_secret_value())
    except InvalidArgument as error:
        raise ValueError(error.message) from None
    return secret


Secret = Annotated[SecretStr, AfterValidator(_check_secret)]
"""A chosen token, printed as stars."""


def _check_host(name: str) -> str:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        if re.fullmatch(r"[\w.-]+", name, re.ASCII) is None:
            raise ValueError(f"{name!r:.80} is not a name or address, without a port") from None
    return name.lower()


ObjectStoreUrl = Annotated[str, AfterValidator(_check_store_url)]
"""URL of an object store, without credentials, which come from the environment, files, or the
machine's role."""

MetadataUrl = Annotated[SecretStr, AfterValidator(_check_metadata_url)]
"""URL of PostgreSQL, printed as stars."""


class Settings(BaseModel):
    """The settings of one server. Only `load`, not the constructor, reads environment and files.

    `flags.FLAGS` describes the settings that are also flags. Unknown environment variables with the
    prefix are ignored, as they may belong to other programs of Wings.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    data_dir: PathSetting = Path("wings-data")
    metadata_url: MetadataUrl | None = None
    metadata: AddressSetting | None = None
    hot: ObjectStoreUrl | None = None
    hold_replicas: str | None = None
    holds: AddressSetting | None = None
    remote: ObjectStoreUrl | None = None
    iceberg_catalog: str | None = None
    processes: int = Field(default=1, ge=1, le=64)
    flight: AddressSetting = Address("127.0.0.1", 7777)
    advertise: AddressSetting | None = None
    node_lease_seconds: Annotated[float, DURATION] = Field(
        default=10.0, ge=0.5, le=NODE_LEASE_SECONDS_MAX
    )
    """Time for which a vanished node stays listed; no flag."""
    http: AddressSetting = Address("127.0.0.1", 7780)
    kafka: AddressSetting | None = None
    kafka_advertised: AddressSetting | None = None
    kafka_partitions: int = Field(default=1, ge=1, le=SLOTS_MAX)
    root_token: Secret | None = None
    """Token of an operator, of at least 32 characters, valid while it is set; no flag."""
    tls_cert: PathSetting | None = None
    tls_key: PathSetting | None = None
    tls_client_ca: PathSetting | None = None
    cluster_ca: PathSetting | None = None
    cluster_token: Secret | None = None
    """Token of nodes for the metadata service and replicas, of at least 32 characters; no flag."""
    allowed_host: tuple[Annotated[str, AfterValidator(_check_host)], ...] = ()
    insecure: bool = False
    drain_seconds: Annotated[float, DURATION] = Field(default=10.0, ge=0, le=3600)
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["console", "json"] | None = None
    limits: Limits = Limits()
    """Limits of the server; no flag."""

    @property
    def is_stateless(self) -> bool:
        """Whether PostgreSQL and an object store hold everything, without a data directory.

        True if the URLs of both are given, and no data directory, neither explicitly nor as an
        existing default one used with PostgreSQL before.
        """
        return (
            self.metadata_url is not None
            and self.hot is not None
            and "data_dir" not in self.model_fields_set
            and not is_bound(self.data_dir)
        )

    @property
    def is_node(self) -> bool:
        """Whether other servers may serve the same log."""
        return self.metadata is not None or self.is_stateless


class MetadataSettings(Settings):
    """The settings of a metadata service: its server settings, and its address."""

    listen: AddressSetting = Address("127.0.0.1", 7778)


class HoldSettings(Settings):
    """The settings of a replica of share groups' state: its server settings, and its address."""

    listen: AddressSetting = Address("127.0.0.1", 7779)
    holds_url: MetadataUrl | None = None
    holds_schema: Annotated[str, Field(pattern=r"^[a-z_][a-z0-9_]{0,62}$")] = "wings_holds"


AnySettings = TypeVar("AnySettings", bound=Settings)


@overload
def load(config: Path | None = None, flags: Mapping[str, Any] | None = None) -> Settings: ...
@overload
def load(
    config: Path | None, flags: Mapping[str, Any] | None, model: type[AnySettings]
) -> AnySettings: ...
def load(
    config: Path | None = None,
    flags: Mapping[str, Any] | None = None,
    model: type[Settings] = Settings,
) -> Settings:
    """Load the settings from all sources.

    Args:
        config: A TOML file whose keys are the settings' names.
        flags: Values by the setting's name; None for a flag that was not given.
        model: Model of the settings.

    Raises:
        InvalidArgument: A value is invalid or a key unknown; the message names each with its
            source.
    """
    given = {name: value for name, value in (flags or {}).items() if value is not None}
    file = {} if config is None else _read_toml(config)
    environment = _read_environment(model)
    try:
        return model(**_merge(_merge(file, environment), given))
    except ValidationError as error:
        problems = [
            f"{_source(problem['loc'], given, environment, config)}: {_reason(problem, model)}"
            for problem in error.errors(include_url=False, include_context=False)
        ]
        raise InvalidArgument("bad settings: " + "; ".join(problems)) from None


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise InvalidArgument(f"{path} cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"{path} is not TOML: {error}") from None


def _read_environment(model: type[Settings]) -> dict[str, Any]:
    whole: dict[str, Any] = {}
    keys: dict[str, Any] = {}
    for variable, text in os.environ.items():
        if not variable.upper().startswith(ENVIRONMENT_PREFIX):
            continue
        rest = variable[len(ENVIRONMENT_PREFIX) :].lower()
        name, *below = rest.split(ENVIRONMENT_DELIMITER)
        if name not in model.model_fields:
            continue
        if not below:
            whole[name] = _decoded(variable, text) if name in JSON_SETTINGS else text
        elif name in JSON_SETTINGS:
            value: Any = text
            for key in reversed(below):
                value = {key: value}
            keys = _merge(keys, {name: value})
    for name in keys:
        if not isinstance(whole.get(name, {}), dict):
            variable = _variable([name])
            raise InvalidArgument(
                f"bad environment: {variable} is not a JSON object, and {variable}__… is its key"
            )
    return _merge(whole, keys)


def _decoded(variable: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"bad environment: {variable} is not JSON: {error}") from None


def _merge(low: Mapping[str, Any], high: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two trees of values; `high` takes precedence, key by key."""
    merged = dict(low)
    for key, value in high.items():
        below = merged.get(key)
        if isinstance(value, Mapping) and isinstance(below, Mapping):
            value = _merge(cast("Mapping[str, Any]", below), cast("Mapping[str, Any]", value))
        merged[key] = value
    return merged


def _source(
    location: tuple[int | str, ...],
    flags: Mapping[str, Any],
    environment: Mapping[str, Any],
    config: Path | None,
) -> str:
    """Return the name of a setting in the source of its value."""
    names = [str(name) for name in location]
    if names[0] in flags:
        return "--" + names[0].replace("_", "-")
    if not _holds(environment, names):
        return f"{config}: {'.'.join(names)}"
    # A nested value has a variable of its own, or is part of the JSON of its parent's.
    variables = {name.upper() for name in os.environ}
    for end in range(len(names), 1, -1):
        variable = _variable(names[:end])
        if variable in variables:
            return variable
    return ".".join([_variable(names[:1]), *names[1:]])


def _variable(names: Sequence[str]) -> str:
    return (ENVIRONMENT_PREFIX + ENVIRONMENT_DELIMITER.join(names)).upper()


def _holds(tree: Any, names: Sequence[str]) -> bool:
    for name in names:
        if not isinstance(tree, Mapping) or name not in tree:
            return False
        tree = cast("Mapping[str, Any]", tree)[name]
    return True


def _reason(problem: Mapping[str, Any], model: type[Settings]) -> str:
    if problem["type"] == "extra_forbidden":
        *place, last = problem["loc"]
        return f"there is no such setting{suggested(str(last), keys_at(model, place))}"
    message = str(problem["msg"]).removeprefix("Value error, ")
    return message[:1].lower() + message[1:]
