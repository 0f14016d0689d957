"""How every store of `Tokens` keeps them."""

from dataclasses import replace
from uuid import uuid4

import pytest
from fix_metadata import DAY, NOON, MetadataUnderTest
from tables import each

from wings_core.errors import AlreadyExists, InvalidArgument, ResourceExhausted, TokenNotFound
from wings_core.security.quotas import QUOTA_MAX, Quotas
from wings_core.security.rights import Grant, Right
from wings_core.security.tokens import Token, digest_of

GRANTS = (Grant(Right.READ, "*"), Grant(Right.WRITE, "tenants/a/namespaces/b/topics/c*"))


def token(name: str, *, expires_at: int | None = None, secret: str | None = None) -> Token:
    return Token(uuid4().hex, name, digest_of(secret or name), GRANTS, NOON, expires_at)


def test_tokens_are_kept_by_name_and_changes_counted(metadata: MetadataUnderTest) -> None:
    tokens = metadata.opened.tokens
    assert (tokens.all(), tokens.changes()) == ([], 0)
    second, first = token("b"), token("a", expires_at=NOON + DAY)
    assert tokens.create(second) == second
    assert tokens.create(first) == first
    assert tokens.all() == [first, second]
    assert tokens.all(after="a") == [second]
    assert tokens.all(items_max=1) == [first]
    assert tokens.changes() == 2
    metadata.reopen()
    tokens = metadata.opened.tokens
    assert tokens.all() == [first, second]
    assert tokens.revoke("a") == first
    assert (tokens.all(), tokens.changes()) == ([second], 3)


def test_an_expired_token_stays_listed(metadata: MetadataUnderTest) -> None:
    expired = metadata.opened.tokens.create(token("a", expires_at=NOON + 1))
    metadata.clock.time += DAY
    assert metadata.opened.tokens.all() == [expired]


def test_a_creation_that_is_repeated_changes_nothing(metadata: MetadataUnderTest) -> None:
    tokens = metadata.opened.tokens
    created = token("a")
    for _ in range(2):
        assert tokens.create(created) == created
    assert tokens.changes() == 1


def test_a_name_or_a_secret_belongs_to_one_token(metadata: MetadataUnderTest) -> None:
    tokens = metadata.opened.tokens
    tokens.create(token("a", secret="one"))
    for another in (token("a", secret="two"), token("b", secret="one")):
        with pytest.raises(AlreadyExists, match="'a'"):
            tokens.create(another)
    assert tokens.changes() == 1


def test_a_token_is_revoked_by_name_and_id(metadata: MetadataUnderTest) -> None:
    tokens = metadata.opened.tokens
    created = tokens.create(token("a"))
    for name, token_id in (("b", None), ("a", "another"), ("b", created.id)):
        with pytest.raises(TokenNotFound, match=name):
            tokens.revoke(name, token_id)
    assert tokens.revoke("a", created.id) == created
    with pytest.raises(TokenNotFound):
        tokens.revoke("a")
    again = tokens.create(token("a"))
    assert tokens.all() == [again]


def test_quotas_are_kept_and_replaced(metadata: MetadataUnderTest) -> None:
    tokens = metadata.opened.tokens
    plain = tokens.create(token("a"))
    bounded = tokens.create(replace(token("b"), quotas=Quotas(calls=1, topics=0)))
    assert tokens.all() == [plain, bounded]
    quotas = Quotas(QUOTA_MAX, QUOTA_MAX, QUOTA_MAX, QUOTA_MAX)
    assert tokens.alter("a", quotas) == replace(plain, quotas=quotas)
    assert tokens.alter("b", Quotas(), bounded.id).quotas == Quotas()
    assert tokens.changes() == 4
    metadata.reopen()
    tokens = metadata.opened.tokens
    assert [each.quotas for each in tokens.all()] == [quotas, Quotas()]
    assert tokens.revoke("a").quotas == quotas


def test_quotas_that_are_what_they_were_change_nothing(metadata: MetadataUnderTest) -> None:
    tokens = metadata.opened.tokens
    tokens.create(token("a"))
    for _ in range(2):
        tokens.alter("a", Quotas(bytes=5))
    assert tokens.changes() == 2


def test_a_token_is_altered_by_name_and_id(metadata: MetadataUnderTest) -> None:
    tokens = metadata.opened.tokens
    created = tokens.create(token("a"))
    for name, token_id in (("b", None), ("a", "another"), ("b", created.id)):
        with pytest.raises(TokenNotFound, match=name):
            tokens.alter(name, Quotas(calls=1), token_id)
    assert tokens.all() == [created]


def test_quotas_out_of_range_are_refused(metadata: MetadataUnderTest) -> None:
    tokens = metadata.opened.tokens
    tokens.create(token("a"))
    for quotas in (Quotas(calls=0), Quotas(bytes=0), Quotas(topics=-1), Quotas(partitions=1 << 63)):
        with pytest.raises(InvalidArgument, match="quota"):
            tokens.alter("a", quotas)
        with pytest.raises(InvalidArgument, match="quota"):
            tokens.create(replace(token("b"), quotas=quotas))
    assert tokens.changes() == 1


def test_creating_tokens_keeps_what_commits_remember_right(metadata: MetadataUnderTest) -> None:
    topic = metadata.create_topic()
    assert metadata.push(topic).start_offset == 0
    metadata.opened.tokens.create(token("a"))
    assert metadata.push(topic).start_offset == 1


@each(
    "name, grants",
    [
        ("", GRANTS),
        ("-a", GRANTS),
        ("a b", GRANTS),
        ("ä", GRANTS),
        ("a" * 129, GRANTS),
        ("a\0", GRANTS),
        ("a", ()),
        ("a", GRANTS * 51),
    ],
)
def test_a_token_that_cannot_be_is_refused(
    metadata: MetadataUnderTest, name: str, grants: tuple[Grant, ...]
) -> None:
    with pytest.raises(InvalidArgument, match="token"):
        metadata.opened.tokens.create(Token("1", name, digest_of("x"), grants, NOON, None))


def test_the_number_of_tokens_is_bounded(
    metadata: MetadataUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wings_core.security.tokens.TOKENS_MAX", 1)
    metadata.opened.tokens.create(token("a"))
    with pytest.raises(ResourceExhausted, match="1 tokens"):
        metadata.opened.tokens.create(token("b"))


def test_a_token_shows_nothing_of_its_secret() -> None:
    secret = "wings_planted"
    assert digest_of(secret).hex() not in repr(token("a", secret=secret)).lower()
    assert repr(digest_of(secret)) not in repr(token("a", secret=secret))
