"""The table of dataclasses and messages: values arrive, and a field left out is a default."""

import threading
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from functools import cache
from types import NoneType, UnionType
from typing import Any, NewType, get_args, get_origin, get_type_hints

import pyarrow as pa
import pytest
from fix_calls import Calls
from hypothesis import given, settings
from hypothesis import strategies as st
from property_examples import QUICK, examples

from wings_core.errors import InvalidArgument, WingsError
from wings_core.model import (
    Accepted,
    CommitBatch,
    ExpectedOffset,
    PageAddress,
    PageFormat,
    Rejected,
    Sequence,
    ShardState,
    StagedBatch,
    StageEntry,
    StoredPage,
    TopicConfig,
)
from wings_core.names import ID_PATTERN, NamespaceName, TopicName
from wings_core.partitions import UNPARTITIONED
from wings_core.protocol import codec as codecs
from wings_core.protocol import messages
from wings_core.protocol.codec import Codec, field_names
from wings_core.protocol.messages import (
    COMMIT_BATCH,
    LOCATED,
    LOCATION,
    batch_of,
    result_message,
    results_of,
)
from wings_core.protocol.v1 import offset_registry_pb2 as pb
from wings_core.security.rights import Grant, Right
from wings_core.share.remote import codec as holds
from wings_core.share.replica.requests import PartOutcome

AnyCodec = Codec[Any, Any]

CODECS = {
    codec.value: codec
    for found in (vars(messages).values(), vars(holds).values(), holds.REQUESTS.values())
    for codec in found
    if isinstance(codec, Codec)
}

ids = st.from_regex(ID_PATTERN, fullmatch=True)
namespaces = st.builds(NamespaceName, ids, ids)
BY_TYPE: dict[object, st.SearchStrategy[Any]] = {
    str: st.text(max_size=5),
    bool: st.booleans(),
    bytes: st.binary(max_size=5),
    NamespaceName: namespaces,
    TopicName: st.builds(TopicName, namespaces, ids),
    TopicConfig: st.builds(TopicConfig, retention_ms=st.none() | st.integers(1, 1 << 40)),
    pa.Schema: st.sampled_from([pa.schema([]), pa.schema([("n", pa.int64())], {"a": "b"})]),
    PageFormat: st.sampled_from(PageFormat),
    ShardState: st.sampled_from(ShardState),
    PartOutcome: st.sampled_from(PartOutcome),
    Grant: st.builds(Grant, st.sampled_from(Right), st.just("*") | namespaces.map(str)),
}
VERSIONS = st.integers(1, (1 << 31) - 1)
INTEGERS = {
    "int32": st.integers(-(1 << 31), (1 << 31) - 1),
    "int64": st.integers(-(1 << 63), (1 << 63) - 1),
    "uint64": st.integers(0, (1 << 64) - 1),
}


def target_of(codec: AnyCodec, name: str) -> Any:
    """Return the message's field for a field of the dataclass; None: it is not sent."""
    targets: Any = codec.message.DESCRIPTOR.fields_by_name
    return targets.get(name) or targets.get(f"{name}_us")


def sent(codec: AnyCodec) -> Iterable[tuple[str, Any]]:
    for name in field_names(codec.value):
        if (target := target_of(codec, name)) is not None:
            yield name, target


def changed(value: Any, **fields: Any) -> Any:
    return value._replace(**fields) if hasattr(value, "_replace") else replace(value, **fields)


@cache
def values(codec: AnyCodec) -> st.SearchStrategy[Any]:
    hints = get_type_hints(codec.value)
    return st.builds(
        codec.value,
        **{
            name: VERSIONS if name == "schema_version" else field_values(hints[name], target)
            for name, target in sent(codec)
        },
    )


def field_values(hint: Any, target: Any) -> st.SearchStrategy[Any]:
    if get_origin(hint) is UnionType:
        (hint,) = (kind for kind in get_args(hint) if kind is not NoneType)
        return st.none() | field_values(hint, target)
    if get_origin(hint) is tuple:
        return st.lists(field_values(get_args(hint)[0], target), max_size=3).map(tuple)
    if isinstance(hint, NewType):
        hint = hint.__supertype__
    if hint is int:
        names = {target.TYPE_INT32: "int32", target.TYPE_UINT64: "uint64"}
        return INTEGERS[names.get(target.type, "int64")]
    return BY_TYPE[hint] if hint in BY_TYPE else values(CODECS[hint])


SOME = settings(QUICK, max_examples=examples(50, 300))  # Of all the table's messages.


@SOME
@given(st.data())
def test_what_is_sent_arrives(data: st.DataObject) -> None:
    codec = data.draw(st.sampled_from(list(CODECS.values())))
    value = data.draw(values(codec))
    message = codec.encode(value)
    assert codec.decode(codec.message.FromString(message.SerializeToString())) == value
    assert codec.message(**codec.fields(value)) == message
    for name, target in sent(codec):
        if target.has_presence:
            assert message.HasField(target.name) == (getattr(value, name) is not None)


@SOME
@given(st.data())
def test_what_an_older_sender_leaves_out_is_a_default(data: st.DataObject) -> None:
    codec = data.draw(st.sampled_from(list(CODECS.values())))
    value = data.draw(values(codec))
    message = codec.encode(value)
    hints = get_type_hints(codec.value)
    name, target = data.draw(st.sampled_from(list(sent(codec))))
    message.ClearField(target.name)
    default = left_out(hints[name], getattr(message, target.name))
    if hints[name] is PageFormat:
        default = PageFormat.PLAIN if value.first_timestamp is None else PageFormat.SEGMENT
    if name == "schema_version":
        default = 1
    if default is REFUSED:
        with pytest.raises((WingsError, KeyError)):
            codec.decode(message)
    else:
        assert codec.decode(message) == changed(value, **{name: default})


REFUSED = object()


def left_out(hint: Any, absent: Any) -> Any:
    """Return what a field is read as whose message's field is absent."""
    if get_origin(hint) is UnionType:
        return None
    if get_origin(hint) is tuple:
        return ()
    if hint is TopicConfig:
        return TopicConfig()
    if hint in CODECS:
        return CODECS[hint].decode(absent)
    if isinstance(hint, NewType):
        hint = hint.__supertype__
    return hint() if hint in {str, bytes, bool, int} else REFUSED


def test_every_message_of_the_table_takes_all_fields_of_its_dataclass() -> None:
    left = {
        codec.value.__name__: names
        for codec in CODECS.values()
        if (names := set(field_names(codec.value)) - {n for n, _ in sent(codec)})
    }
    assert left == {
        "CommitBatch": {"series"},
        "Located": {"asked_at"},
        "Topic": {"later_schemas"},
    }
    assert len(CODECS) > 35


def test_threads_that_use_a_codec_first_do_not_wait_for_each_other(
    monkeypatch: pytest.MonkeyPatch, calls: Calls
) -> None:
    for codec in (LOCATED, LOCATION):
        for name in ("encode", "fields", "decode", "_compiled"):
            monkeypatch.delitem(vars(codec), name, raising=False)
    both = threading.Barrier(2)

    def meet(kind: type) -> None:
        # The thread that compiles first goes on when the other compiles too, or waits for it.
        if kind is LOCATED.value:
            with suppress(threading.BrokenBarrierError):
                both.wait(0.5)

    calls.before(codecs, "get_type_hints", meet)
    threads = [
        threading.Thread(target=getattr, args=(LOCATED, name), daemon=True)
        for name in ("encode", "decode")
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30.0)
        assert not thread.is_alive()


def test_a_request_to_commit_has_these_bytes() -> None:
    page = StoredPage(UNPARTITIONED, 2, PageAddress("folio", 0, 7))
    batch = CommitBatch(
        1, "uuid", (page,), Sequence("p", 0), ExpectedOffset(UNPARTITIONED, 0), 1 << 70
    )
    assert COMMIT_BATCH.encode(batch).SerializeToString().hex(" ") == (
        "08 01 12 04 75 75 69 64 1a 13 0a 04 6e 75 6c 6c 10 02 1a 09 0a 05 66 6f 6c 69 6f 18 07 "
        "22 03 0a 01 70 2a 06 0a 04 6e 75 6c 6c 30 ff ff ff ff ff ff ff ff 7f"
    )


def test_a_producer_id_that_is_not_unicode_arrives_with_its_batch() -> None:
    batch = CommitBatch(1, "uuid", (), Sequence("\ud800", 1 << 70))
    arrived = batch_of(COMMIT_BATCH.encode(batch))
    assert arrived.sequence == Sequence("\ud800", (1 << 63) - 1)


@pytest.mark.parametrize(
    "batch",
    [
        pb.CommitBatch(pages=[pb.StoredPage(rows=0, address=pb.PageAddress(length=1))]),
        pb.CommitBatch(pages=[pb.StoredPage(rows=1)]),
        pb.CommitBatch(sequence=pb.Sequence(producer_id=b"\xff")),
        pb.CommitBatch(stage=pb.StageEntry(), sequence=pb.Sequence()),
        pb.CommitBatch(stage=pb.StageEntry(), expected=pb.ExpectedOffset()),
    ],
    ids=["no rows", "no bytes", "no text", "staged sequence", "staged expectation"],
)
def test_a_batch_that_cannot_be_committed_is_refused(batch: pb.CommitBatch) -> None:
    with pytest.raises(InvalidArgument):
        batch_of(batch)


def test_the_outcomes_of_a_flush_arrive_with_the_sequence_as_it_was_given() -> None:
    batches = [
        CommitBatch(1, "uuid", (), Sequence("p", 1 << 70)),
        CommitBatch(2, "uuid", ()),
        CommitBatch(3, "uuid", (), stage=StageEntry("s", "w", True)),
    ]
    refused = InvalidArgument("refused \ud800", sequence=(1 << 63) - 1)
    results = [Rejected(refused), Accepted(()), StagedBatch("s", 1, 2)]
    first, *others = results_of([result_message(result) for result in results], batches)
    assert isinstance(first, Rejected)
    assert first.error.to_json() == {**refused.to_json(), "sequence": 1 << 70}
    assert others == results[1:]


def test_slices_that_are_none_are_refused(subtests: pytest.Subtests) -> None:
    for name, first_row, slice_bytes in (
        ("before its page", -5, 10),
        ("fewer than no bytes", 0, -1),
        ("more bytes than its page", 0, 65),
        ("no first row", None, 10),
        ("no bytes", 3, None),
    ):
        page = pb.StoredPage(
            partition="null",
            rows=1,
            address=pb.PageAddress(folio="f", position=0, length=64),
            first_row=first_row,
            slice_bytes=slice_bytes,
        )
        message = pb.CommitBatch(stream=1, topic_uuid="u", pages=[page])
        with subtests.test(name), pytest.raises(InvalidArgument, match="slice"):
            batch_of(message)
