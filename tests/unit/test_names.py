"""Names: what parses, what does not, and that errors stay short."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tables import each

from wings_core.errors import LISTED_CHARACTERS_MAX, InvalidName, nearest, suggested
from wings_core.names import DEFAULT_NAMESPACE, ID_PATTERN, NamespaceName, TopicName

ids = st.from_regex(ID_PATTERN, fullmatch=True).filter(lambda text: text.isascii())

BAD_IDS = [
    "",
    "A",
    "1a",
    "_a",
    "-a",
    "a b",
    "a.b",
    "a\n",
    "\na",
    "é",
    "aé",
    "a" * 64,
    "a\0",
    "a\ud800",
    " a",
]


@given(ids, ids, ids)
def test_a_full_topic_name_is_what_its_text_says(tenant: str, namespace: str, topic: str) -> None:
    name = TopicName.parse(f"tenants/{tenant}/namespaces/{namespace}/topics/{topic}")
    assert name == TopicName(NamespaceName(tenant, namespace), topic)
    assert TopicName.parse(str(name)) == name


@given(ids, ids)
def test_a_namespace_name_is_what_its_text_says(tenant: str, namespace: str) -> None:
    name = NamespaceName.parse(f"tenants/{tenant}/namespaces/{namespace}")
    assert name == NamespaceName(tenant, namespace)
    assert NamespaceName.parse(str(name)) == name


@given(ids)
def test_a_bare_id_means_the_topic_of_the_default_namespace(topic: str) -> None:
    assert TopicName.parse(topic) == DEFAULT_NAMESPACE.topic(topic)


def test_a_bare_id_means_the_topic_of_the_namespace_that_the_request_gives() -> None:
    namespace = NamespaceName("t", "n")
    assert TopicName.parse("x", namespace) == TopicName(namespace, "x")


def test_a_full_name_is_not_bent_to_the_namespace_of_the_request() -> None:
    full = "tenants/a/namespaces/b/topics/c"
    assert str(TopicName.parse(full, NamespaceName("t", "n"))) == full


@each("bad", BAD_IDS)
def test_a_bad_id_is_an_invalid_name_wherever_it_stands(bad: str) -> None:
    for text in (
        bad,
        f"tenants/{bad}/namespaces/n/topics/x",
        f"tenants/t/namespaces/{bad}/topics/x",
        f"tenants/t/namespaces/n/topics/{bad}",
    ):
        with pytest.raises(InvalidName):
            TopicName.parse(text)
    for text in (f"tenants/{bad}/namespaces/n", f"tenants/t/namespaces/{bad}"):
        with pytest.raises(InvalidName):
            NamespaceName.parse(text)


@each(
    "text",
    [
        "topics/x",
        "namespaces/n/topics/x",
        "tenants/t/namespaces/n",
        "tenants/t/namespaces/n/topics/x/",
        "/tenants/t/namespaces/n/topics/x",
        "tenants//namespaces/n/topics/x",
        "tenants/t/namespaces/n/topics/x/topics/y",
        "Tenants/t/namespaces/n/topics/x",
        "tenants/t/namespaces/n/topics/x\n",
    ],
)
def test_a_name_of_another_form_is_an_invalid_name(text: str) -> None:
    with pytest.raises(InvalidName):
        TopicName.parse(text)


@pytest.mark.parametrize("text", ["", "n", "tenants/t", "tenants/t/namespaces/n/topics/x"])
def test_a_namespace_needs_its_full_name(text: str) -> None:
    with pytest.raises(InvalidName):
        NamespaceName.parse(text)


def test_the_longest_id_has_63_characters() -> None:
    assert TopicName.parse("a" * 63).topic == "a" * 63


def test_an_error_about_a_long_name_is_short() -> None:
    with pytest.raises(InvalidName) as caught:
        TopicName.parse("x" * 100_000)
    assert len(caught.value.message.encode()) <= 512


def test_names_sort_by_tenant_then_namespace_then_topic() -> None:
    names = [
        TopicName.parse(f"tenants/{tenant}/namespaces/{namespace}/topics/{topic}")
        for tenant in "ab"
        for namespace in "ab"
        for topic in "ab"
    ]
    assert sorted(set(names)) == names


# What an error about an unknown name suggests. ####################################################


def test_names_like_the_one_asked_for_are_suggested() -> None:
    names = ["flights", "users", "Flights-2"]
    assert nearest("fligths", names) == ["flights", "Flights-2"]
    assert nearest("FLIGHTS-2", names) == ["Flights-2", "flights"]
    assert nearest("zzz", names) == []


def test_all_names_are_listed_where_there_is_room() -> None:
    assert suggested("topci", ["topic", "x\ny"]) == (
        "; did you mean 'topic'? There are topic, 'x\\ny'"
    )
    assert suggested("zzz", ["topic", "offset"]) == "; there are topic, offset"
    many = [f"column {number}" for number in range(LISTED_CHARACTERS_MAX)]
    assert suggested("column77", many).startswith("; did you mean 'column 77' or 'column ")
    assert suggested("zzz", many) == ""
    assert suggested("zzz", []) == ""
