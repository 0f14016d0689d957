"""What stores of metadata keep of tables."""

from fix_metadata import MetadataUnderTest, batch_of

from wings_core.metadata.maintenance import Lease
from wings_core.metadata.tables import TableSegment
from wings_core.partitions import UNPARTITIONED

HOUR = 3_600.0


def segment(folio: str, added: int = 1, removed: int | None = None) -> TableSegment:
    return TableSegment(folio, UNPARTITIONED, 6, 7, added, removed)


def test_a_commit_is_planned_under_a_lease_and_confirmed(metadata: MetadataUnderTest) -> None:
    tables = metadata.opened.tables
    topic = metadata.create_topic()
    for folio in ("f", "g"):
        metadata.registry.commit([batch_of(topic, {UNPARTITIONED: 7}, folio=folio)])
    token = metadata.opened.maintenance.acquire_lease("table", "me", HOUR)
    assert token is not None
    lease, lost = Lease("table", "me", token), Lease("table", "another", token)
    assert tables.begin(topic.uuid, "default.t") == 0
    assert not tables.plan(topic.uuid, 1, [segment("f")], [], lost)
    assert not tables.plan(topic.uuid, 1, [segment("f"), segment("gone")], [], lease)
    assert tables.segments(topic.uuid) == []
    assert tables.plan(topic.uuid, 1, [segment("f"), segment("g")], [], lease)
    tables.confirm(topic.uuid, 1)
    assert tables.begin(topic.uuid, "default.t") == 1
    assert tables.plan(topic.uuid, 2, [], ["f"], lease)
    assert tables.segments(topic.uuid) == [segment("f", 1, 2), segment("g")]
    tables.confirm(topic.uuid, 2)
    assert tables.segments(topic.uuid) == [segment("g")]
    assert tables.adopt(topic.uuid, 5, [segment("only-in-the-table", 5)], lease)
    assert "only-in-the-table" in metadata.registry.live_folios()
    assert tables.begin(topic.uuid, "default.t") == 5
    assert tables.tables() == {topic.uuid: "default.t"}
    tables.forget(topic.uuid)
    assert (tables.tables(), tables.segments(topic.uuid)) == ({}, [])
    assert metadata.registry.live_folios() == {"f", "g"}
