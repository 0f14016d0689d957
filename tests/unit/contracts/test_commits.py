"""The body of `commit-offsets`: read in one step where it is as our client writes it."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tables import each

from wings_core.contracts.actions import OFFSETS_MAX
from wings_core.contracts.commits import CommitOffsets
from wings_core.contracts.messages import Message
from wings_core.errors import InvalidArgument

TEXTS = st.text(st.sampled_from('ab"\\,:{} %é\n\u2028'), max_size=8)
PARTITIONS = st.one_of(st.none(), st.booleans(), st.integers(), TEXTS, st.just("\ud800"))
OFFSETS = st.one_of(st.integers(-1, 1 << 63), st.sampled_from([1.0, True, None, "1"]))
KINDS = (st.integers(), TEXTS, PARTITIONS)
ENTRIES = st.one_of(
    *(
        st.lists(st.fixed_dictionaries({"topic": topics, "partition": of, "offset": OFFSETS}))
        for topics in (st.just("t"), TEXTS)
        for of in KINDS
    ),
    st.lists(st.fixed_dictionaries({"topic": st.just("t"), "offset": st.integers(0, 9)})),
)


def parse(found: object) -> CommitOffsets:
    return CommitOffsets.parse_body(json.dumps(found).encode())


def refusal(found: object) -> str:
    with pytest.raises(InvalidArgument) as caught:
        parse(found)
    return caught.value.message


@each("entry", [{}, {"partition": None}, {"partition": 7}, {"partition": "x"}])
def test_committed_offsets_are_answered_as_they_were_asked(entry: dict[str, Any]) -> None:
    found = {"consumer": "c", "offsets": [{"topic": "t", **entry, "offset": 0}]}
    assert json.loads(parse(found).to_bytes()) == found


@each("partition", [7, "x", None])
@each("offset", [-1, 1 << 63, 1.0, "1", True, None, "latest"])
def test_a_committed_offset_is_a_number(offset: object, partition: object) -> None:
    entry = {"topic": "t", "partition": partition, "offset": offset}
    assert "offsets[0].offset" in refusal({"consumer": "c", "offsets": [entry]})


@each("partition", [{}, {"partition": 7}])
def test_committed_offsets_have_a_bound(partition: dict[str, Any]) -> None:
    entry = {"topic": "t", **partition, "offset": 0}
    parse({"consumer": "c", "offsets": [entry] * OFFSETS_MAX})
    found = {"consumer": "c", "offsets": [entry] * (OFFSETS_MAX + 1)}
    assert f"at most {OFFSETS_MAX} entries" in refusal(found)


def _by_models(raw: bytes) -> CommitOffsets:
    return Message.parse.__func__(CommitOffsets, raw, InvalidArgument, "action body")  # type: ignore[attr-defined]


def _outcome(read: Callable[[bytes], CommitOffsets], raw: bytes) -> object:
    try:
        body = read(raw)
    except InvalidArgument as error:
        return error.message
    topics, partitions, numbers, text = body.offsets
    kinds = [type(value) for value in (*partitions, *numbers)]
    return body.consumer, body.fence, topics, partitions, numbers, kinds, json.loads(text)


MEMBERS = st.one_of(
    st.just({}), st.fixed_dictionaries({"member": TEXTS, "member_epoch": st.integers(0, 1 << 63)})
)


@given(
    consumer=TEXTS,
    entries=ENTRIES,
    member=MEMBERS,
    compact=st.booleans(),
    flip=st.integers(0, 200),
)
def test_a_text_is_read_as_the_models_read_it(
    consumer: str,
    entries: list[dict[str, Any]],
    member: dict[str, Any],
    flip: int,
    *,
    compact: bool,
) -> None:
    found = {"consumer": consumer, "offsets": entries, **member}
    raw = json.dumps(found, ensure_ascii=compact).encode(errors="surrogatepass")
    for text in (raw, raw[:flip] + b'"' + raw[flip + 1 :], raw[:flip] + raw[flip + 1 :]):
        assert _outcome(CommitOffsets.parse_body, text) == _outcome(_by_models, text)


@given(
    consumer=TEXTS,
    topic=TEXTS,
    offsets=st.one_of(*(st.dictionaries(of, st.integers(-1, 1 << 63)) for of in KINDS)),
)
def test_offsets_of_a_topic_are_written_as_the_models_write_them(
    consumer: str, topic: str, offsets: dict[Any, int]
) -> None:
    body = CommitOffsets.of_topic(consumer, topic, offsets)
    if body is None:
        return
    entries = [{"topic": topic, "partition": key, "offset": at} for key, at in offsets.items()]
    expected = CommitOffsets.model_validate({"consumer": consumer, "offsets": entries})
    assert body == expected
    assert _by_models(body.to_bytes()) == body == CommitOffsets.parse_body(body.to_bytes())


def test_offsets_of_ten_thousand_partitions_need_no_models(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(Message, "parse")
    for values in (range(OFFSETS_MAX), map(str, range(OFFSETS_MAX))):
        body = CommitOffsets.of_topic("c", "t", dict.fromkeys(values, 5))
        assert body is not None
        of_member = body.model_copy(update={"member": "m", "member_epoch": 3})
        for each_body in (body, of_member):
            assert CommitOffsets.parse_body(each_body.to_bytes()) == each_body
