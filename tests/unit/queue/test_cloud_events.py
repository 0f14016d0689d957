"""What notifications of Google and events of Azure tell of."""

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wings_core.errors import InvalidArgument
from wings_core.queue.notifications import (
    DedupKey,
    FileNotification,
    MessageKind,
    files_of,
    message_of,
)

CONTAINER = "abfss://oc2d@acme.dfs.core.windows.net"


def blob_created(**data: Any) -> dict[str, Any]:
    """An event as Azure's documentation shows it."""
    return {
        "topic": "/subscriptions/s/resourceGroups/g/storageAccounts/acme",
        "subject": "/blobServices/default/containers/oc2d/blobs/in/new file+1.txt",
        "eventType": "Microsoft.Storage.BlobCreated",
        "eventTime": "2017-06-26T18:41:00.9584103Z",
        "id": "831e1650-001e-001b-66ab-eeb76e069631",
        "data": {
            "api": "PutBlockList",
            "eTag": "0x8D4BCC2E4835CD0",
            "contentType": "text/plain",
            "contentLength": 524288,
            "blobType": "BlockBlob",
            "url": "https://acme.blob.core.windows.net/oc2d/in/new%20file%2B1.txt",
            **data,
        },
        "dataVersion": "",
        "metadataVersion": "1",
    }


def azure(event: Any) -> tuple[FileNotification, ...]:
    body = event if isinstance(event, str) else json.dumps(event)
    return files_of(body, "7", MessageKind.AZURE_EVENTS, DedupKey.URI)


def google(event: Any) -> tuple[FileNotification, ...]:
    return files_of(json.dumps(event), "7", MessageKind.GCS_EVENTS, DedupKey.URI)


def test_an_event_of_azure_tells_of_its_blob_in_either_schema_and_encoded_or_not() -> None:
    uri = f"{CONTAINER}/in/new file+1.txt"
    expected = (FileNotification(uri, uri, "etag:0x8D4BCC2E4835CD0", 524288),)
    event = blob_created()
    assert azure(event) == expected
    assert azure(base64.b64encode(json.dumps(event).encode()).decode()) == expected
    cloud_event = {name: event[name] for name in ("subject", "data", "id")}
    cloud_event |= {"specversion": "1.0", "type": event["eventType"], "source": event["topic"]}
    assert azure(cloud_event) == expected
    hierarchical = blob_created(
        api="FlushWithClose", url="https://acme.dfs.core.windows.net/oc2d/in/new%20file%2B1.txt"
    )
    assert azure(hierarchical) == expected


def test_files_that_are_begun_or_deleted_are_none_to_read() -> None:
    assert azure(blob_created(api="CreateFile", contentLength=0)) == ()
    assert azure(blob_created(api="SftpCreate", contentLength=0)) == ()
    assert azure(blob_created() | {"eventType": "Microsoft.Storage.BlobDeleted"}) == ()
    deleted = {"eventType": "OBJECT_DELETE", "bucketId": "b", "objectId": "k"}
    assert google({"attributes": deleted, "data": "{}"}) == ()


def test_a_notification_of_google_tells_of_its_object_with_its_metadata_or_without() -> None:
    about = {
        "eventType": "OBJECT_FINALIZE",
        "bucketId": "b",
        "objectId": "in/new file+1.txt",
        "objectGeneration": "1795667388605905",
    }
    uri = "gs://b/in/new file+1.txt"
    found = google({"attributes": about, "data": json.dumps({"size": "12", "name": "x"})})
    assert found == (FileNotification(uri, uri, "1795667388605905", 12),)
    for data in ("", "no JSON", '{"size": "many"}', "[]"):
        found = google({"attributes": about, "data": data})
        assert found == (FileNotification(uri, uri, "1795667388605905", None),)


@pytest.mark.parametrize(
    ("kind", "event", "problem"),
    [
        (MessageKind.AZURE_EVENTS, "nonsense", "not JSON"),
        (MessageKind.AZURE_EVENTS, "{}", "not an event of Azure"),
        (MessageKind.AZURE_EVENTS, json.dumps(blob_created(url="https://evil")), "no account"),
        (MessageKind.AZURE_EVENTS, json.dumps(blob_created(url="https://[")), "no account"),
        (MessageKind.AZURE_EVENTS, json.dumps(blob_created() | {"subject": "/x"}), "no blob"),
        (MessageKind.GCS_EVENTS, "{}", "not a notification of Cloud Storage"),
        (MessageKind.GCS_EVENTS, '{"attributes": {"eventType": "OBJECT_FINALIZE"}}', "no object"),
        (
            MessageKind.GCS_EVENTS,
            (
                '{"attributes": {"eventType": "OBJECT_FINALIZE", "bucketId": "b", '
                '"objectId": "a\\u0000"}}'
            ),
            "no file's name has",
        ),
    ],
)
def test_an_event_that_is_none_is_a_problem_of_its_message(
    kind: MessageKind, event: str, problem: str
) -> None:
    (found,) = files_of(event, "7", kind, DedupKey.URI)
    assert found.shard == "message:7"
    assert problem in str(found.problem)


@given(
    key=st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=20),
    version=st.none() | st.from_regex(r"etag:[0-9a-fx]{1,9}", fullmatch=True),
    size=st.none() | st.integers(0, 10),
    died_at=st.none() | st.integers(0, 1 << 50),
)
def test_a_message_that_is_made_for_an_object_tells_of_it(
    key: str, version: str | None, size: int | None, died_at: int | None
) -> None:
    for kind, place in ((MessageKind.AZURE_EVENTS, CONTAINER), (MessageKind.GCS_EVENTS, "gs://b")):
        uri = f"{place}/{key}"
        (found,) = files_of(message_of(uri, version, size, kind, died_at), "7", kind, DedupKey.URI)
        assert found == FileNotification(uri, uri, version, size, retry_of=died_at)


def test_an_object_of_another_store_cannot_be_announced() -> None:
    for kind in (MessageKind.AZURE_EVENTS, MessageKind.GCS_EVENTS):
        with pytest.raises(InvalidArgument, match="is not in"):
            message_of("s3://b/k", None, None, kind)
