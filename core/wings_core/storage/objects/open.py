"""Opening an object store by URL, and binding its objects to a metadata store."""

import os
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from wings_core.errors import AlreadyExists, InvalidArgument, PermissionDenied, StorageCorrupt
from wings_core.storage.objects.directory import DirectoryObjects
from wings_core.storage.objects.interfaces import ObjectStore, RetryBounds

if TYPE_CHECKING:
    from obstore.store import ClientConfig, S3CredentialProvider

_S3 = {"s3", "s3a"}
_CLOUDS = _S3 | {"gs", "az", "azure", "abfs", "abfss"}

_OWNER = "STORE"
"""Name of the object with the id of the metadata that the others belong to."""
_OWNER_BYTES_MAX = 100

CONNECT_SECONDS_MAX = 5.0

S3_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
"""Environment variables for the endpoint of an S3-compatible service."""


def check_url(url: str) -> str:
    """Return the URL of an object store after validating it.

    Raises:
        InvalidArgument: The URL is malformed, or holds credentials, and is then not repeated.
    """
    parts = urlsplit(url)
    if parts.password is not None or (parts.username and parts.scheme in _S3 | {"gs", "file"}):
        raise InvalidArgument(
            "the URL of an object store holds no credentials: they come from the environment, "
            "files, or the machine's role"
        )
    if parts.query or parts.fragment:
        raise InvalidArgument("the URL of an object store has no ? or #")
    if parts.scheme == "file" and (parts.netloc not in {"", "localhost"} or not parts.path):
        raise InvalidArgument("a directory's URL is file:///absolute/path")
    if parts.scheme in _CLOUDS and not parts.netloc:
        raise InvalidArgument(f"expected {parts.scheme}://BUCKET or {parts.scheme}://BUCKET/PREFIX")
    if parts.scheme not in _CLOUDS | {"", "file"} or not url:
        raise InvalidArgument(
            f"{parts.scheme or url!r:.20} is no kind of object store: expected a directory, or "
            "s3://, gs:// or az:// and a bucket"
        )
    return url


def is_relative(url: str) -> bool:
    """Return whether a URL is a relative path, which depends on the working directory."""
    return not urlsplit(url).scheme and not Path(url).is_absolute()


def open_objects(url: str, bounds: RetryBounds | None = None) -> ObjectStore:
    """Open an object store, without a request yet; see `ObjectStore.check`.

    Credentials are found as by the cloud's own tools: in the environment, in files, or by the
    machine's role.

    Args:
        url: A directory's path or `file:///…`; `s3://BUCKET/PREFIX`, `gs://…`, `az://…`.
        bounds: Bounds of retries.

    Raises:
        InvalidArgument: The URL is malformed, or obstore is not installed.
        PermissionDenied: There are no credentials.
    """
    parts = urlsplit(check_url(url))
    if parts.scheme in {"", "file"}:
        path = unquote(parts.path) if parts.scheme else url
        return DirectoryObjects(Path(path).absolute())
    return _open_cloud(url.rstrip("/"), parts.scheme, bounds or RetryBounds())


def s3_properties() -> dict[str, str]:
    """Return the S3 endpoint and region of the environment, as pyiceberg's properties.

    pyiceberg does not read them from the environment; it finds credentials by itself.
    """
    found = {
        "s3.endpoint": next(
            (os.environ[name] for name in S3_ENDPOINTS if name in os.environ), None
        ),
        "s3.region": os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION"),
    }
    return {name: value for name, value in found.items() if value}


def bind_objects(objects: ObjectStore, store_id: str, *, is_new: bool = True) -> None:
    """Check that the objects belong to a metadata store, or bind them to it.

    Otherwise objects unknown to this metadata would be deleted.

    Args:
        objects: The object store; nodes of one metadata store may share it.
        store_id: Id of the metadata store.
        is_new: Whether the objects may be unbound yet.

    Raises:
        InvalidArgument: The objects belong to another metadata store, or are missing although the
            log has used the store: an unmounted directory, or a wrong relative path.
        WingsError: The errors of `ObjectStore.put` and `read`.
    """
    if not is_new and not _is_bound(objects):
        raise InvalidArgument(
            f"the log has messages at {objects.url}, but nothing there belongs to it: is it "
            "mounted, and the right place?"
        )
    try:
        objects.put(_OWNER, [f"{store_id}\n".encode()])
    except AlreadyExists:
        length = min(objects.size(_OWNER), _OWNER_BYTES_MAX)
        found = objects.read(_OWNER, [(0, length)])[0].to_pybytes() if length else b""
        bound = found.decode("utf-8", "replace").strip()
        if bound != store_id:
            raise InvalidArgument(
                f"the objects at {objects.url} belong to metadata {bound}, not to {store_id}"
            ) from None


def _is_bound(objects: ObjectStore) -> bool:
    try:
        objects.size(_OWNER)
    except StorageCorrupt:  # Missing.
        return False
    return True


def _open_cloud(url: str, scheme: str, bounds: RetryBounds) -> ObjectStore:
    try:
        from obstore.exceptions import BaseError
        from obstore.store import S3Store, from_url

        from wings_core.storage.objects.cloud import CloudObjects
    except ImportError as error:
        raise InvalidArgument(
            f"an object store needs obstore: pip install 'wings-flight[objects]' ({error})"
        ) from None
    options: ClientConfig = {
        "connect_timeout": f"{int(min(CONNECT_SECONDS_MAX, bounds.attempt_seconds_max) * 1000)}ms",
        "timeout": f"{int(bounds.attempt_seconds_max * 1000)}ms",
    }
    try:
        if scheme not in _S3:
            client = from_url(url, client_options=options, retry_config={"max_retries": 0})
            return CloudObjects(client, url, bounds)
        if any(os.environ.get(name, "").startswith("http://") for name in S3_ENDPOINTS):
            options["allow_http"] = True  # A store within the network, configured explicitly.
        client = S3Store.from_url(
            url,
            client_options=options,
            retry_config={"max_retries": 0},
            credential_provider=_s3_credentials(url),
        )
    except (BaseError, ValueError) as error:
        raise InvalidArgument(f"{url} cannot be opened: {error!s:.200}") from None
    return CloudObjects(client, url, bounds)


def _s3_credentials(url: str) -> "S3CredentialProvider | None":
    """Return a provider of credentials from Amazon's files and roles; None without boto3.

    obstore itself reads the environment and the roles of machines, but no files.
    """
    if "AWS_ACCESS_KEY_ID" in os.environ:
        return None
    try:
        import boto3  # pyright: ignore[reportMissingTypeStubs]
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError:
        return None
    session = boto3.Session()
    if session.get_credentials() is None:
        raise PermissionDenied(
            f"no credentials were found for {url}: not in the environment, in files, nor by a role"
        )
    return Boto3CredentialProvider(session)
