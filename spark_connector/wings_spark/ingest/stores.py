"""Object stores of files, with their versions and errors."""

import os
import re
from collections.abc import Generator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from wings_core.errors import Unauthenticated, Unavailable
from wings_core.runtime import OBSTORE_NEEDED, import_extra
from wings_spark.ingest.fetched import FileError, SupersededError, is_of_machine
from wings_spark.ingest.settings import FileSettings

RETRY = {"max_retries": 10, "retry_timeout": timedelta(seconds=180)}
"""Retries until a store counts as unreachable."""

_REFUSED = re.compile(r"status code: 4\d\d")
"""Pattern of a rejection in obstore's messages."""

_REGIONS = {"AWS_REGION", "AWS_DEFAULT_REGION"}

_UNKNOWN_CALLER = (
    "AuthenticationFailed", "ExpiredToken", "InvalidAccessKeyId", "InvalidToken",
    "SignatureDoesNotMatch", "TokenRefreshRequired",
)  # fmt: skip
"""Error codes of S3 and Azure for bad credentials."""


def store_of(bucket: str, settings: FileSettings) -> Any:
    """Return a store of obstore, with the environment's credentials.

    Args:
        bucket: Name with its scheme, like `s3://BUCKET`.
        settings: Settings of the store.

    Raises:
        FileError: obstore is not installed.
    """
    stores: Any = import_extra("obstore.store", OBSTORE_NEEDED, "objects", FileError)
    scheme, _, name = bucket.partition("://")
    plain = (settings.endpoint or "").startswith("http:")
    common = {"client_options": {"allow_http": True} if plain else {}, "retry_config": RETRY}
    config: dict[str, Any] = {}
    if scheme == "gs":
        if settings.endpoint is not None:
            config["base_url"] = settings.endpoint
        return stores.GCSStore(name, **common, **config)
    if scheme == "abfss":
        container, _, host = name.partition("@")
        config["account_name"] = host.partition(".")[0]
        config["endpoint"] = settings.endpoint or f"https://{host.replace('.dfs.', '.blob.', 1)}"
        return stores.AzureStore(container, **common, **config)
    if settings.region is not None or not _REGIONS & os.environ.keys():
        config["region"] = settings.region or "us-east-1"
    if settings.endpoint is not None:
        config["endpoint"] = settings.endpoint
    return stores.S3Store(name, **common, **config)


def seen_version(about: Any) -> str:
    """Return the version in an object's metadata, in the form of notifications."""
    tag: str | None = about.get("e_tag")
    named: str | None = about.get("version")
    return named or (f"etag:{tag.strip(chr(34))}" if tag else str(about["last_modified"]))


@contextmanager
def store_errors(uri: str, version: str | None) -> Generator[None]:
    """Translate errors of an object store.

    Args:
        uri: URI of the object.
        version: The version; None for the current one.

    Raises:
        FileError: The object does not exist, was changed, or the store rejected the request.
        SupersededError: The object no longer has this version.
        Unauthenticated: The store rejects the credentials.
        Unavailable: The store or this machine's disk is temporarily unusable.
    """
    from obstore import exceptions

    try:
        yield
    except exceptions.PreconditionError:
        if version is None:
            raise FileError(f"{uri} changed while it was fetched") from None
        raise SupersededError(f"{uri} was overwritten: {version} is gone") from None
    except FileNotFoundError:
        raise FileError(f"{uri} is not there") from None
    except (exceptions.BaseError, OSError) as error:
        text = str(error)
        message = f"{uri}: {text.splitlines()[0]:.300}"
        if isinstance(error, OSError) and is_of_machine(error, uri):
            raise Unavailable(message) from None
        if any(code in text for code in _UNKNOWN_CALLER):
            raise Unauthenticated(message) from None
        # A retry of a rejected request would be rejected too.
        if isinstance(error, exceptions.GenericError) and _REFUSED.search(text) is None:
            raise Unavailable(message) from None
        raise FileError(message) from None
