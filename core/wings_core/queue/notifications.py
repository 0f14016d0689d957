"""Notifications: the files that a message announces, by their URIs, or the data that it carries.

S3 sends notifications directly, through SNS, or through EventBridge; all their records are used.
S3 form-encodes keys (`+` is a space), EventBridge does not encode them. Those of Google's Cloud
Storage and of Azure are at the end.
"""

import base64
import binascii
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, cast
from urllib.parse import quote_plus, unquote, unquote_plus, urlsplit

from wings_core.errors import InvalidArgument, suggested
from wings_core.metadata.stages import SHARD_BYTES_MAX

OBJECTS = ("s3://", "gs://", "abfss://")
"""Prefixes of objects' URIs; Azure's are `abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/KEY`, as
in Spark."""

RECORDS_MAX = 1_000
"""Most records of one message."""

_RETRY_KEY = "retry"
"""Key in a message that requests another read of a dead file: its time of death, in
microseconds since the epoch."""

_ESCAPED = re.compile("%(?=2[35])|#")
"""Characters escaped in a shard's id, in which the first `#` begins the version."""

_Announced = tuple[str, str | None, int | None]
"""An announced object: its URI, version and size in bytes."""

_AZURE_CREATED = "Microsoft.Storage.BlobCreated"

_AZURE_SUBJECT = re.compile(r"/blobServices/default/containers/([^/]+)/blobs/(.+)", re.DOTALL)

_AZURE_HOST = re.compile(r"([a-z0-9]+)\.(?:blob|dfs)\.([a-z0-9.-]+)")

_AZURE_BEGUN = ("CreateFile", "SftpCreate")
"""Calls that create an empty file, for which another event follows once it is written."""

_PREFIX = "etag:"

_File = tuple[str, str | None, int | None, int | None]
"""URI, version, size, and time of death for another read."""


class MessageKind(StrEnum):
    """The format of a source's messages."""

    S3_EVENTS = "s3-events"
    """Notifications of S3."""
    GCS_EVENTS = "gcs-events"
    """Notifications of Google's Cloud Storage."""
    AZURE_EVENTS = "azure-events"
    """Events of Azure's storage, by Event Grid."""
    URIS = "uris"
    """A file's URI or absolute path; or JSON with `uri` and, if known, `version` and `size`."""
    PAYLOADS = "payloads"
    """The message itself is the data."""


class DedupKey(StrEnum):
    """Identity of a file: notifications with equal keys announce the same file."""

    URI = "uri"
    """The URI: an overwritten file is not read again."""
    URI_AND_VERSION = "uri+version"
    """The URI and the version: an overwritten file is a new one."""


@dataclass(frozen=True, slots=True)
class FileNotification:
    """A file to read, or data that the message carries."""

    shard: str
    """Deduplication key."""
    uri: str
    """URI of an object, with its key unencoded; absolute path; or `message:ID` for carried data."""
    version: str | None = None
    size: int | None = None
    """Size in bytes."""
    payload: str | None = None
    """Carried data; None for a file."""
    problem: str | None = None
    """Reason why it cannot be read, or None."""
    retry_of: int | None = None
    """Requests another read if the file died at this time, in microseconds since the epoch."""


_ANNOUNCED = {
    MessageKind.S3_EVENTS: ("s3://", "S3"),
    MessageKind.GCS_EVENTS: ("gs://", "Cloud Storage"),
    MessageKind.AZURE_EVENTS: ("abfss://", "Azure's storage"),
}
"""Prefix of the URIs that events of a kind announce, and the name of the store."""


def files_of(
    body: str, message_id: str, kind: MessageKind, dedup_key: DedupKey
) -> tuple[FileNotification, ...]:
    """Return the files that a message announces; empty for test events and the like.

    Args:
        body: Body of the message.
        message_id: Id of the message, the same for every delivery.
        kind: Format of the message.
        dedup_key: Identity of files.

    Returns:
        Each file once, in order. An unintelligible message is a notification with a `problem`.
    """
    if kind is MessageKind.PAYLOADS:
        shard = f"message:{message_id}"
        return (
            FileNotification(shard, shard, size=len(body.encode("utf-8", "replace")), payload=body),
        )
    try:
        notifications = [_notification(*each, dedup_key) for each in _announced(body, kind)]
    except InvalidArgument as error:
        shard = f"message:{message_id}"
        return (FileNotification(shard, shard, problem=error.message),)
    return tuple({notification.shard: notification for notification in notifications}.values())


def message_of(
    uri: str,
    version: str | None,
    size: int | None,
    kind: MessageKind,
    retry_of: int | None = None,
) -> str:
    """Return a message that announces a file; the inverse of `files_of`.

    Args:
        uri: URI of the file.
        version: Version of the file; None if unknown.
        size: Size in bytes; None if unknown.
        kind: Format of the source's messages.
        retry_of: Requests another read if the file died at this time, in microseconds since the
            epoch.

    Raises:
        InvalidArgument: Messages of this kind announce no files, or none at this URI.
    """
    if kind is MessageKind.PAYLOADS:
        raise InvalidArgument("the messages of this source are data: they announce no files")
    about: dict[str, Any] = {} if size is None else {"size": size}
    retry = {} if retry_of is None else {_RETRY_KEY: retry_of}
    if kind is MessageKind.URIS:
        if version is not None:
            about["version"] = version
        return json.dumps({"uri": uri, **about, **retry})
    scheme, store = _ANNOUNCED[kind]
    bucket, _, key = uri.removeprefix(scheme).partition("/")
    if not uri.startswith(scheme) or not bucket or not key:
        raise InvalidArgument(
            f"{uri[:80]!r} is not in {store}, which this source's messages announce"
        )
    if kind is not MessageKind.S3_EVENTS:
        event = _google_event if kind is MessageKind.GCS_EVENTS else _azure_event
        return json.dumps({**event(uri, version, size), **retry})
    if version is not None and version.startswith("etag:"):
        about["eTag"] = version.removeprefix("etag:")
    elif version is not None:
        about["versionId"] = version
    record = {
        "eventSource": "aws:s3",
        "eventName": "ObjectCreated:Put",
        "s3": {"bucket": {"name": bucket}, "object": {"key": quote_plus(key), **about}, **retry},
    }
    return json.dumps({"Records": [record]})


def file_of_shard(shard: str, dedup_key: DedupKey) -> tuple[str, str | None]:
    """Return URI and version of a shard's file, as far as its id contains them."""
    if dedup_key is DedupKey.URI:
        return shard, None
    uri, _, version = shard.partition("#")
    return uri.replace("%23", "#").replace("%25", "%"), version or None


def is_of_message(shard: str, kind: MessageKind) -> bool:
    """Return whether a shard stands for an unintelligible message instead of a file."""
    return kind is not MessageKind.PAYLOADS and shard.startswith("message:")


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


def shard_of_file(uri: str, version: str | None, dedup_key: DedupKey) -> str:
    """Return the id of a file's shard, unique for each file.

    The version follows the first `#`. In the URI, `#` is escaped as `%23`, and `%` before `23` or
    `25` as `%25`.
    """
    if dedup_key is DedupKey.URI:
        return uri
    escaped = _ESCAPED.sub(lambda found: "%23" if found.group() == "#" else "%25", uri)
    return f"{escaped}#{version}" if version else escaped


def _announced(body: str, kind: MessageKind) -> list[_File]:
    if kind is MessageKind.S3_EVENTS:
        return _s3_files(_object(body))
    if kind is MessageKind.URIS:
        return [_named_file(body)]
    is_google = kind is MessageKind.GCS_EVENTS
    event = _object(body if is_google else _azure_text(body))
    retry = event.get(_RETRY_KEY)
    died_at = retry if _is_count(retry) else None
    return [(*each, died_at) for each in (_google_files if is_google else _azure_files)(event)]


def _notification(
    uri: str, version: str | None, size: int | None, retry_of: int | None, dedup_key: DedupKey
) -> FileNotification:
    _check_text("the URI", uri)
    if version is not None:
        _check_text("the version", version)
    shard = shard_of_file(uri, version, dedup_key)
    if len(shard.encode("utf-8", "replace")) > SHARD_BYTES_MAX:
        raise InvalidArgument(f"the URI {uri[:80]!r} has more than {SHARD_BYTES_MAX} bytes")
    return FileNotification(shard, uri, version, size, retry_of=retry_of)


def _check_text(what: str, text: str) -> None:
    """Check that a text can be journaled and name a file; otherwise it would fail the batch."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise InvalidArgument(f"{what} {text[:80]!a} is not valid Unicode") from None
    if "\0" in text:
        raise InvalidArgument(f"{what} {text[:80]!a} has a character that no file's name has")


def _s3_files(event: Mapping[str, Any]) -> list[_File]:
    if event.get("Type") == "Notification" and isinstance(event.get("Message"), str):
        return _s3_files(_object(event["Message"]))
    if event.get("Event") == "s3:TestEvent":
        return []
    if isinstance(event.get("detail"), dict) and "detail-type" in event:
        if event["detail-type"] != "Object Created":
            return []
        return [_s3_file(event["detail"], encoded=False)]
    records = event.get("Records")
    if not isinstance(records, list):
        raise InvalidArgument("not a notification of S3: it has no 'Records'")
    if len(records) > RECORDS_MAX:
        raise InvalidArgument(f"{len(records)} records, at most {RECORDS_MAX} are allowed")
    found: list[_File] = []
    for number, record in enumerate(cast("list[Any]", records)):
        if not isinstance(record, dict) or not isinstance(record.get("s3"), dict):
            raise InvalidArgument(f"record {number} of the notification has no 's3'")
        event_name = str(record.get("eventName", "ObjectCreated:"))
        # Some S3-compatible services add a prefix.
        if event_name.removeprefix("s3:").startswith("ObjectCreated:"):
            found.append(_s3_file(record["s3"], encoded=True))
    return found


def _s3_file(found: Mapping[str, Any], *, encoded: bool) -> _File:
    try:
        bucket, key = found["bucket"]["name"], found["object"]["key"]
    except (KeyError, TypeError):
        raise InvalidArgument("a record names no bucket or no key") from None
    if not (isinstance(bucket, str) and isinstance(key, str) and bucket and key):
        raise InvalidArgument("a record's bucket and key must be texts")
    if encoded:
        try:
            key = unquote_plus(key, errors="strict")
        except UnicodeDecodeError:
            raise InvalidArgument(f"the key {key[:80]!r} is not UTF-8") from None
    about = cast("Mapping[str, Any]", found["object"])
    version = about.get("versionId") or about.get("version-id")
    tag = about.get("eTag") or about.get("etag")
    if version is None and tag:
        version = f"etag:{tag}"
    size = about.get("size")
    return (
        f"s3://{bucket}/{key}",
        None if version is None else str(version),
        size if _is_count(size) else None,
        found.get(_RETRY_KEY) if _is_count(found.get(_RETRY_KEY)) else None,
    )


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _named_file(body: str) -> _File:
    text: Any = body.strip()
    found: dict[str, Any] = {}
    if text.startswith("{"):
        found = _object(text)
        keys = ("uri", "version", "size", _RETRY_KEY)
        if unknown := sorted(found.keys() - set(keys)):
            hint = suggested(unknown[0], keys)
            raise InvalidArgument(f"unknown key {unknown[0]!r:.80}{hint}")
        text = found.get("uri", "")
        if not isinstance(text, str) or not isinstance(found.get("version"), str | None):
            raise InvalidArgument("'uri' and 'version' must be texts")
        for key in ("size", _RETRY_KEY):
            if found.get(key) is not None and not _is_count(found[key]):
                raise InvalidArgument(f"{key!r} must be an integer of at least 0")
    return normal_uri(text), found.get("version"), found.get("size"), found.get(_RETRY_KEY)


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


def _object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"not JSON: {str(error)[:200]}") from None
    if not isinstance(found, dict):
        raise InvalidArgument("not a JSON object")
    return cast("dict[str, Any]", found)


def _google_files(event: Mapping[str, Any]) -> list[_Announced]:
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


def _google_event(uri: str, version: str | None, size: int | None) -> dict[str, Any]:
    """Return a notification of Cloud Storage; the inverse of `_google_files`."""
    bucket, key = bucket_and_key(uri)
    about = {
        "eventType": "OBJECT_FINALIZE",
        "bucketId": bucket.removeprefix("gs://"),
        "objectId": key,
    }
    if version is not None:
        about["objectGeneration"] = version
    return {"attributes": about, "data": "" if size is None else json.dumps({"size": str(size)})}


def _azure_text(body: str) -> str:
    """Return the JSON of an Azure event, which Event Grid encodes as base64 for queues."""
    if body.lstrip().startswith("{"):
        return body
    try:
        return base64.b64decode(body, validate=True).decode("utf-8")
    except (binascii.Error, ValueError):
        return body


def _azure_files(event: Mapping[str, Any]) -> list[_Announced]:
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


def _azure_event(uri: str, version: str | None, size: int | None) -> dict[str, Any]:
    """Return an event of Azure; the inverse of `_azure_files`."""
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
