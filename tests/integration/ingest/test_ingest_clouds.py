"""Files of Azure's and Google's stores, as their own queues announce them."""

import base64
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from fix_clouds import BUILD_SECONDS
from fix_ingest import Ingest, MakeSource

from wings_core.queue.azure import AzureQueue
from wings_spark.ingest import status
from wings_spark.ingest.run import check, figures
from wings_spark.ingest.settings import SourceSettings
from wings_spark.ingest.stores import Bucket

if TYPE_CHECKING:
    from fix_clouds import Azure, Google


@dataclass(frozen=True)
class Cloud:
    """A container or bucket of its own, with a queue."""

    place: str
    """Its URI."""
    queue: dict[str, Any]
    files: dict[str, Any]
    put: Callable[..., Callable[[], None]]
    """Writes an object; returns what sends the notification of it."""
    copies: bool = True
    """Whether the server copies objects: fake-gcs-server has no call of XML for it."""


def azure_cloud(azure: "Azure") -> Cloud:
    name = f"c{uuid4().hex}"
    url = azure.create_queue(name)

    def put(key: str, body: bytes, container: str = name) -> Callable[[], None]:
        event = json.dumps(azure.put(container, key, body))

        def send() -> None:
            queue = AzureQueue(url)
            queue.send([base64.b64encode(event.encode()).decode()])  # As Event Grid does.
            queue.close()

        return send

    place = f"abfss://{name}@devstoreaccount1.dfs.core.windows.net"
    return Cloud(place, {"kind": "azure", "url": url}, {"endpoint": azure.blobs}, put)


def google_cloud(google: "Google") -> Cloud:
    name = f"c{uuid4().hex}"
    topic, subscription = google.create_subscription(name)

    def put(key: str, body: bytes, container: str = name) -> Callable[[], None]:
        data, attributes = google.put(container, key, body)
        return lambda: google.notify(topic, data, attributes)

    queue = {"kind": "pubsub", "subscription": subscription}
    return Cloud(f"gs://{name}", queue, {"endpoint": google.objects}, put, copies=False)


@pytest.fixture(params=["azure", pytest.param("google", marks=pytest.mark.timeout(BUILD_SECONDS))])
def cloud(request: pytest.FixtureRequest) -> Cloud:
    server: Any = request.getfixturevalue(request.param)
    return azure_cloud(server) if request.param == "azure" else google_cloud(server)


def rows(*found: int) -> bytes:
    return b"".join(json.dumps({"n": n}).encode() + b"\n" for n in found)


def source_of(source: MakeSource, cloud: Cloud, **files: Any) -> SourceSettings:
    """Return a source of the cloud's queue, which may read the folder `in`."""
    found = source().model_dump(mode="json", exclude_none=True)
    found["queue"] = {"wait_seconds": 3, **cloud.queue}
    found["files"] = {"allowed_prefixes": [f"{cloud.place}/in"], **cloud.files, **files}
    settings = SourceSettings.parse(found, "test")
    check(settings)
    return settings


def test_objects_that_are_announced_are_read_once_in_the_version_that_is_there(
    ingest: Ingest, topic: str, cloud: Cloud
) -> None:
    settings = source_of(ingest.source, cloud, dedup_key="uri+version")
    first = cloud.put("in/ü b+c.jsonl", rows(0, 1))
    overwritten = cloud.put("in/a.jsonl", rows(90))
    last = cloud.put("in/a.jsonl", rows(2))
    elsewhere = cloud.put("in2/c.jsonl", rows(91))
    for send in (first, overwritten, last, first, elsewhere):
        send()
    pipeline = ingest.start(settings)
    outcomes = pipeline.drain()
    assert ingest.numbers() == [0, 1, 2]
    assert sum(figures(each)["files"].get("refused", 0) for each in outcomes) == 1
    assert pipeline.queue.receive(1, 30.0) == []


def test_objects_that_are_there_are_announced_by_a_backfill_as_by_their_notifications(
    ingest: Ingest, topic: str, cloud: Cloud
) -> None:
    settings = source_of(ingest.source, cloud, dedup_key="uri+version")
    sends = [cloud.put(f"in/{n}.jsonl", rows(n)) for n in range(3)]
    sends[0]()
    pipeline = ingest.start(settings)
    pipeline.drain()
    assert status.backfill(settings, f"{cloud.place}/in/") == 3
    sends[1]()
    pipeline.drain()
    assert ingest.numbers() == [0, 1, 2]


def test_an_object_that_failed_is_read_when_it_is_retried_and_archived_or_deleted(
    ingest: Ingest, topic: str, cloud: Cloud
) -> None:
    end = {"archive": f"{cloud.place}/done"} if cloud.copies else {"delete": True}
    settings = source_of(ingest.source, cloud, **end)
    settings = settings.model_copy(
        update={"limits": settings.limits.model_copy(update={"max_delivery_attempts": 1})}
    )
    cloud.put("in/a.jsonl", b'{"n": "no number"}\n')()
    pipeline = ingest.start(settings)
    pipeline.drain()
    assert ingest.numbers() == []
    cloud.put("in/a.jsonl", rows(7))
    assert status.retry(settings, None) == [f"{cloud.place}/in/a.jsonl"]
    pipeline.drain()
    assert ingest.numbers() == [7]
    pages = Bucket(settings.files, f"{cloud.place}/").pages()
    left = [found.key for page in pages for found in page]
    assert left == (["done/a.jsonl"] if cloud.copies else [])


def test_sections_of_an_object_are_read_by_several_tasks(
    ingest: Ingest, topic: str, cloud: Cloud
) -> None:
    settings = source_of(ingest.source, cloud)
    settings = settings.model_copy(
        update={"limits": settings.limits.model_copy(update={"split_bytes": 1_000})}
    )
    cloud.put("in/a.jsonl", rows(*range(1_000)))()
    ingest.start(settings).drain()
    assert ingest.numbers() == list(range(1_000))
