"""Notifications of Google Cloud Storage and Azure: parsing, and construction for tests."""

import base64
import binascii
import json
import re
from collections.abc import Mapping
from typing import Any, cast
from urllib.parse import urlsplit

from wings_core.errors import InvalidArgument
from wings_core.queue.uris import bucket_and_key

Announced = tuple[str, str | None, int | None]
"""An announced object: its URI, version and size in bytes."""

_AZURE_CREATED = "Microsoft.Storage.BlobCreated"

_AZURE_SUBJECT = re.compile(r"/blobServices/default/containers/([^/]+)/blobs/(.+)", re.DOTALL)

_AZURE_HOST = re.compile(r"([a-z0-9]+)\.(?:blob|dfs)\.([a-z0-9.-]+)")

_AZURE_BEGUN = ("CreateFile", "SftpCreate")
"""Calls that create an empty file, for which another event follows once it is written."""

_PREFIX = "etag:"


def google_files(event: Mapping[str, Any]) -> list[Announced]:
    """Return the object that a notification of Cloud Storage announces; empty for a deletion.

    Args:
        event: Contents of a Pub/Sub message: `{"attributes": {…}, "data": "…"}`.

    Raises:
        InvalidArgument: The event is not such a notification.
    """
    attributes = event.get("attributes")
    if not isinstance(attributes, dict) or "eventType" not in attributes:
        raise InvalidArgument("not a notification of Cloud Storage: it has no 'eventType'")
    about = cast("dict[str, Any]", attributes)
    if about["eventType"] != "OBJECT_FINALIZE":
        return []
    bucket, key = about.get("bucketId"), about.get("objectId")
    if not (isinstance(bucket, str) and isinstance(key, str) and bucket and key):
        raise InvalidArgument("a notification of Cloud Storage names no bucket or no object")
    generation = about.get("objectGeneration")
    return [(f"gs://{bucket}/{key}", None if generation is None else str(generation), _size(event))]


def _size(event: Mapping[str, Any]) -> int | None:
    """Return the size in the object's metadata, if the notification includes them."""
    try:
        found = json.loads(event.get("data") or "{}")
        return max(0, int(found["size"]))
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def google_event(uri: str, version: str | None, size: int | None) -> dict[str, Any]:
    """Return a notification of Cloud Storage; the inverse of `google_files`."""
    bucket, key = bucket_and_key(uri)
    about = {
        "eventType": "OBJECT_FINALIZE",
        "bucketId": bucket.removeprefix("gs://"),
        "objectId": key,
    }
    if version is not None:
        about["objectGeneration"] = version
    return {"attributes": about, "data": "" if size is None else json.dumps({"size": str(size)})}


def azure_text(body: str) -> str:
    """Return the JSON of an Azure event, which Event Grid encodes as base64 for queues."""
    if body.lstrip().startswith("{"):
        return body
    try:
        return base64.b64decode(body, validate=True).decode("utf-8")
    except (binascii.Error, ValueError):
        return body


def azure_files(event: Mapping[str, Any]) -> list[Announced]:
    """Return the blob that an Azure event of either schema announces; empty for a deletion.

    Raises:
        InvalidArgument: The event is not such an event.
    """
    kind = event.get("eventType") or event.get("type")
    data = event.get("data")
    if not isinstance(kind, str) or not isinstance(data, dict):
        raise InvalidArgument("not an event of Azure's storage: it has no 'eventType' or no 'data'")
    about = cast("dict[str, Any]", data)
    if kind != _AZURE_CREATED or about.get("api") in _AZURE_BEGUN:
        return []
    subject = _AZURE_SUBJECT.fullmatch(str(event.get("subject", "")))
    try:
        host = _AZURE_HOST.fullmatch(urlsplit(str(about.get("url", ""))).hostname or "")
    except ValueError:
        host = None
    if subject is None or host is None:
        raise InvalidArgument("an event of Azure names no container, no blob or no account")
    tag, size = about.get("eTag"), about.get("contentLength")
    is_size = isinstance(size, int) and not isinstance(size, bool) and size >= 0
    return [
        (
            f"abfss://{subject[1]}@{host[1]}.dfs.{host[2]}/{subject[2]}",
            _PREFIX + tag.strip('"') if isinstance(tag, str) and tag else None,
            size if is_size else None,
        )
    ]


def azure_event(uri: str, version: str | None, size: int | None) -> dict[str, Any]:
    """Return an event of Azure; the inverse of `azure_files`."""
    bucket, key = bucket_and_key(uri)
    container, _, host = bucket.removeprefix("abfss://").partition("@")
    data: dict[str, Any] = {"url": f"https://{host.replace('.dfs.', '.blob.', 1)}/"}
    if version is not None:
        data["eTag"] = version.removeprefix(_PREFIX)
    if size is not None:
        data["contentLength"] = size
    return {
        "eventType": _AZURE_CREATED,
        "subject": f"/blobServices/default/containers/{container}/blobs/{key}",
        "data": data,
    }
