"""Grants: which texts are one, and which names they match."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tables import each

from wings_core.errors import InvalidArgument, InvalidName, PermissionDenied
from wings_core.names import ID_PATTERN, NamespaceName, TopicName
from wings_core.security.principal import ANYONE, Principal, authorize
from wings_core.security.rights import EVERYTHING, Grant, Right

IDS = st.from_regex(ID_PATTERN, fullmatch=True)
NAMESPACES = st.builds(NamespaceName, IDS, IDS)
TOPICS = st.builds(TopicName, NAMESPACES, IDS)
NAMES = st.one_of(NAMESPACES.map(str), TOPICS.map(str))
RIGHTS = st.sampled_from(Right)


@st.composite
def patterns(draw: st.DrawFn) -> str:
    """A full name, or a beginning of one and a star."""
    name = draw(NAMES)
    if draw(st.booleans()):
        return name
    return name[: draw(st.integers(0, len(name)))] + "*"


@given(RIGHTS, patterns())
def test_a_grant_of_a_full_pattern_is_read_as_it_is_written(right: Right, pattern: str) -> None:
    if "/" not in pattern and pattern != "*" and not pattern.startswith("tenants"):
        return  # A bare topic.
    grant = Grant.parse(f"{right}={pattern}")
    assert grant == Grant(right, pattern)
    assert Grant.parse(str(grant)) == grant


@given(NAMES, NAMES)
def test_a_name_matches_itself_alone(name: str, other: str) -> None:
    grant = Grant(Right.READ, name)
    assert grant.matches(name)
    assert grant.matches(other) == (name == other)


@given(NAMES, NAMES, st.data())
def test_a_star_matches_the_names_that_begin_so(name: str, other: str, data: st.DataObject) -> None:
    beginning = name[: data.draw(st.integers(0, len(name)))]
    grant = Grant(Right.READ, beginning + "*")
    assert grant.matches(name)
    assert grant.matches(other) == other.startswith(beginning)
    assert grant.matches(EVERYTHING) == (beginning == "")


@given(patterns(), TOPICS)
def test_a_pattern_reaches_into_the_namespaces_of_the_topics_it_matches(
    pattern: str, topic: TopicName
) -> None:
    grant = Grant(Right.READ, pattern)
    if grant.matches(str(topic)):
        assert grant.reaches_into(topic.namespace)


@given(TOPICS, NAMESPACES)
def test_a_topic_reaches_into_no_other_namespace(topic: TopicName, other: NamespaceName) -> None:
    grant = Grant(Right.READ, str(topic))
    assert grant.reaches_into(other) == (other == topic.namespace)


@given(st.lists(st.builds(Grant, RIGHTS, patterns()), max_size=4), RIGHTS, NAMES)
def test_a_principal_may_what_one_of_its_grants_allows(
    grants: list[Grant], right: Right, name: str
) -> None:
    principal = Principal("someone", tuple(grants))
    operator = any(str(grant) == "admin=*" for grant in grants)
    allowed = any(grant.right == right and grant.matches(name) for grant in grants)
    if operator or allowed:
        authorize(principal, right, name)
    else:
        with pytest.raises(PermissionDenied, match=f"someone has no right to {right} on {name}"):
            authorize(principal, right, name)


@given(RIGHTS, NAMES)
def test_where_no_token_is_needed_anyone_may_do_everything(right: Right, name: str) -> None:
    authorize(ANYONE, right, name)
    authorize(ANYONE, right, EVERYTHING)


@each(
    "text, pattern",
    [
        ("read=orders", "tenants/default/namespaces/default/topics/orders"),
        ("read=orders*", "tenants/default/namespaces/default/topics/orders*"),
        ("read=*", "*"),
        ("metrics", "*"),
        ("admin=tenants/a/*", "tenants/a/*"),
        ("admin=tenants/a/namesp*", "tenants/a/namesp*"),
    ],
)
def test_short_forms_of_a_grant(text: str, pattern: str) -> None:
    assert Grant.parse(text).pattern == pattern


@each(
    "text, error",
    [
        ("", InvalidArgument),
        ("read", InvalidArgument),
        ("=*", InvalidArgument),
        ("own=*", InvalidArgument),
        ("READ=*", InvalidArgument),
        ("read=", InvalidName),
        ("read=**", InvalidName),
        ("read=a*b", InvalidName),
        ("read=Orders", InvalidName),
        ("read=/", InvalidName),
        ("read=tenants/a/namespaces", InvalidName),
        ("read=tenants/a/names*/b", InvalidName),
        ("read=tenants/a/topics/*", InvalidName),
        ("read=tenants//namespaces*", InvalidName),
        ("read=tenants/a/namespaces/b/topics/c/*", InvalidName),
    ],
)
def test_what_is_no_grant_is_refused(text: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        Grant.parse(text)
