"""URIs of files: objects of Amazon, Google and Azure, and paths of this machine."""

from urllib.parse import unquote, urlsplit

from wings_core.errors import InvalidArgument

OBJECTS = ("s3://", "gs://", "abfss://")
"""Prefixes of objects' URIs; Azure's are `abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/KEY`, as
in Spark."""


def is_object(uri: str) -> bool:
    """Return whether a URI names an object instead of a local path."""
    return uri.startswith(OBJECTS)


def bucket_and_key(uri: str) -> tuple[str, str]:
    """Return the bucket of an object, like `s3://BUCKET`, and its unencoded key."""
    scheme, _, rest = uri.partition("://")
    bucket, _, key = rest.partition("/")
    return f"{scheme}://{bucket}", key


def is_bucket(bucket: str) -> bool:
    """Return whether a text is a bucket: `s3://BUCKET`, `gs://BUCKET`, or an Azure container."""
    scheme, _, name = bucket.partition("://")
    if scheme != "abfss":
        return bool(name)
    container, _, host = name.partition("@")
    account, _, service = host.partition(".")
    return bool(container and account) and service.startswith("dfs.")


def normal_uri(text: str) -> str:
    """Normalise the URI of a file to that of an object, or an absolute path.

    Raises:
        InvalidArgument: The text is neither, nor a `file:` URI.
    """
    if is_object(text):
        bucket, key = bucket_and_key(text)
        if key and is_bucket(bucket):
            return text
    elif text.startswith("file:"):
        try:
            parts = urlsplit(text)
        except ValueError as error:
            raise InvalidArgument(f"{text[:80]!r} is not a URI: {error}") from None
        if parts.netloc not in ("", "localhost"):
            raise InvalidArgument(f"{text[:80]!r} is on another host: expected file:///PATH")
        if "?" in text or "#" in text:
            raise InvalidArgument(
                f"{text[:80]!r} has a '?' or a '#', which must be written as %3F and %23"
            )
        path = unquote(parts.path)
        if path.startswith("/"):
            return _normal_path(path)
    elif text.startswith("/"):
        return _normal_path(text)
    raise InvalidArgument(
        f"{text[:80]!r} is not a file: expected s3://BUCKET/KEY, gs://BUCKET/KEY, "
        "abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/KEY, file:///PATH or an absolute path"
    )


def _normal_path(path: str) -> str:
    """Return an absolute path without empty parts and `.`; `..` may follow a link, and is kept."""
    return "/" + "/".join(part for part in path.split("/") if part not in ("", "."))
