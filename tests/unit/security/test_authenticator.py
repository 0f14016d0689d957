"""Which secrets are valid, and how soon that changes."""

import threading
import time
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import pytest
from fix_calls import Calls
from fix_metadata import DAY, NOON, Clock

from wings_core.errors import InvalidArgument, ResourceExhausted, Unauthenticated, Unavailable
from wings_core.metadata.sqlite import SqliteMetadata
from wings_core.security import principal as module
from wings_core.security.principal import ANYONE, Authenticator
from wings_core.security.quotas import Quotas
from wings_core.security.rights import Grant, Right
from wings_core.security.tokens import Token, digest_of, new_secret, parse_expiry

ROOT = "r" * 32


@pytest.fixture
def metadata(tmp_path: Path) -> Generator[SqliteMetadata]:
    with SqliteMetadata(tmp_path / "metadata.db") as opened:
        yield opened


class HandMonotonic:
    """The clock by which answers of metadata become stale."""

    time = 1_000.0

    def __call__(self) -> float:
        return self.time


NEVER = 3_600.0
"""For metadata that is asked when a test says so."""


def create(metadata: SqliteMetadata, name: str, expires_at: int | None = None) -> str:
    secret = new_secret()
    grants = (Grant(Right.READ, "*"),)
    metadata.tokens.create(Token(uuid4().hex, name, digest_of(secret), grants, NOON, expires_at))
    return secret


def test_without_any_token_all_callers_are_anyone(metadata: SqliteMetadata) -> None:
    with closing(Authenticator(metadata.tokens)) as authenticator:
        assert authenticator.is_open
        assert authenticator.principal(None) is ANYONE
        assert authenticator.principal("anything") is ANYONE


def test_a_log_that_had_a_token_is_never_open_again(metadata: SqliteMetadata) -> None:
    create(metadata, "a")
    metadata.tokens.revoke("a")
    with closing(Authenticator(metadata.tokens)) as authenticator:
        assert not authenticator.is_open
        with pytest.raises(Unauthenticated, match="a token is needed"):
            authenticator.principal(None)


def test_a_secret_stands_for_its_principal(metadata: SqliteMetadata) -> None:
    secret = create(metadata, "a")
    with closing(Authenticator(metadata.tokens, ROOT)) as authenticator:
        assert authenticator.principal(secret).name == "a"
        assert authenticator.principal(ROOT).is_operator
        for bad in (secret + "x", secret[:-1], "", ROOT[:-1], "\ud800"):
            with pytest.raises(Unauthenticated, match="not valid"):
                authenticator.principal(bad)


def test_altered_quotas_hold_at_once_and_calls_stay_counted(metadata: SqliteMetadata) -> None:
    secret = create(metadata, "a")
    with closing(Authenticator(metadata.tokens)) as authenticator:

        def alter(quotas: Quotas) -> None:
            metadata.tokens.alter("a", quotas)
            authenticator.refresh()

        assert authenticator.principal(secret).usage is None
        alter(Quotas(calls=2))
        usage = authenticator.principal(secret).usage
        assert usage is not None
        with usage.call():
            alter(Quotas())
            assert authenticator.principal(secret).usage is None
            alter(Quotas(calls=1))
            again = authenticator.principal(secret).usage
            assert again is usage
            assert again is not None
            with pytest.raises(ResourceExhausted, match="'calls' of a is 1"), again.call():
                pass
        with usage.call():
            pass


def test_a_root_token_that_cannot_be_presented_is_refused(metadata: SqliteMetadata) -> None:
    with pytest.raises(InvalidArgument, match="31 characters, at least 32"):
        Authenticator(metadata.tokens, "r" * 31)
    for bad in ("é" * 32, "r" * 32 + "\n", " " + "r" * 32, "r" * 16 + "\x7f" + "r" * 16):
        with pytest.raises(InvalidArgument, match="printable ASCII") as refusal:
            Authenticator(metadata.tokens, bad)
        assert bad not in str(refusal.value)


def test_a_token_created_elsewhere_is_found_when_it_is_first_presented(
    metadata: SqliteMetadata,
) -> None:
    create(metadata, "a")
    with closing(Authenticator(metadata.tokens)) as authenticator:
        authenticator.refresh()  # Asked just before.
        secret = create(metadata, "b")
        assert not authenticator.knows(secret)
        assert authenticator.principal(secret).name == "b"
        assert authenticator.knows(secret)


def test_unknown_tokens_do_not_flood_metadata(metadata: SqliteMetadata, calls: Calls) -> None:
    create(metadata, "a")
    with closing(Authenticator(metadata.tokens)) as authenticator:
        asked = calls.heard(metadata.tokens, "changes")
        started = time.monotonic()
        for _ in range(10):
            with pytest.raises(Unauthenticated):
                authenticator.principal("bad")
        seconds = time.monotonic() - started
        assert len(asked) <= 1 + seconds / module.UNKNOWN_SECONDS + seconds / module.POLL_SECONDS


def test_unknown_tokens_that_come_at_once_share_a_question(
    metadata: SqliteMetadata, calls: Calls
) -> None:
    create(metadata, "a")
    presenting: set[int] = set()
    arrived: set[int] = set()
    asked: list[int] = []

    def noted_monotonic() -> float:
        now = time.monotonic()
        arrived.update(presenting & {threading.get_ident()})
        return now

    def wait_for_all() -> None:
        asked.append(1)
        deadline = time.monotonic() + 60
        while len(arrived) < callers and time.monotonic() < deadline:
            time.sleep(0.001)

    def present(number: int) -> None:
        presenting.add(threading.get_ident())
        with pytest.raises(Unauthenticated):
            authenticator.principal(f"bad-{number}")

    callers = 20
    opened = Authenticator(
        metadata.tokens, monotonic=noted_monotonic, poll_seconds=NEVER, unknown_seconds=0
    )
    with closing(opened) as authenticator, ThreadPoolExecutor(20) as pool:
        calls.before(metadata.tokens, "changes", wait_for_all)
        list(pool.map(present, range(callers)))
    assert len(asked) <= 2  # That of the first, and one for all who came during it.


def test_unknown_tokens_do_not_wait_for_metadata_that_is_silent(
    metadata: SqliteMetadata, calls: Calls
) -> None:
    create(metadata, "a")
    monotonic = HandMonotonic()
    opened = Authenticator(metadata.tokens, monotonic=monotonic, poll_seconds=NEVER)
    with closing(opened) as authenticator:
        monotonic.time += module.STALE_SECONDS + 0.1
        asked = calls.heard(metadata.tokens, "changes")
        with pytest.raises(Unavailable, match="cannot be verified"):
            authenticator.principal("bad")
        assert not asked


def test_a_revoked_token_ends_its_principal(metadata: SqliteMetadata) -> None:
    secret = create(metadata, "a")
    kept = create(metadata, "b")
    with closing(Authenticator(metadata.tokens, poll_seconds=NEVER)) as authenticator:
        principal = authenticator.principal(secret)
        principal.check()
        metadata.tokens.revoke("a")
        authenticator.refresh()
        with pytest.raises(Unauthenticated, match="'a' was revoked"):
            principal.check()
        with pytest.raises(Unauthenticated, match="not valid"):
            authenticator.principal(secret)
        assert authenticator.principal(kept).name == "b"


def test_a_principal_ends_when_its_token_expires(metadata: SqliteMetadata) -> None:
    clock = Clock()
    secret = create(metadata, "a", expires_at=NOON + DAY)
    opened = Authenticator(metadata.tokens, clock=clock, poll_seconds=NEVER)
    with closing(opened) as authenticator:
        principal = authenticator.principal(secret)
        clock.time += DAY - 1
        principal.check()
        clock.time += 1
        for expired in (principal.check, lambda: authenticator.principal(secret)):
            with pytest.raises(Unauthenticated, match="'a' has expired"):
                expired()


def test_tokens_are_not_trusted_while_metadata_is_silent(metadata: SqliteMetadata) -> None:
    secret = create(metadata, "a")
    monotonic = HandMonotonic()
    opened = Authenticator(metadata.tokens, ROOT, monotonic=monotonic, poll_seconds=NEVER)
    with closing(opened) as authenticator:
        principal = authenticator.principal(secret)
        monotonic.time += module.STALE_SECONDS - 0.1
        principal.check()
        monotonic.time += 0.2
        with pytest.raises(Unavailable, match="cannot be verified"):
            principal.check()
        assert authenticator.principal(ROOT).is_operator
        authenticator.refresh()
        assert authenticator.principal(secret) is principal


def test_a_revocation_elsewhere_holds_within_the_poll(metadata: SqliteMetadata) -> None:
    assert module.POLL_SECONDS + module.STALE_SECONDS <= 5
    secret = create(metadata, "a")
    with closing(Authenticator(metadata.tokens)) as authenticator:
        principal = authenticator.principal(secret)
        metadata.tokens.revoke("a")
        deadline = time.monotonic() + 5
        while principal.ended() is None:
            assert time.monotonic() < deadline


def test_generated_secrets_have_256_random_bits() -> None:
    secrets = {new_secret() for _ in range(100)}
    assert len(secrets) == 100
    assert all(each.startswith("wings_") and len(each) == 6 + 43 for each in secrets)


def test_expiries() -> None:
    assert parse_expiry("90d", NOON) == NOON + 90 * DAY
    assert parse_expiry("12h", NOON) == NOON + DAY // 2
    assert parse_expiry("1.5min", NOON) == NOON + 90_000_000
    assert parse_expiry("2036-01-01T00:00:00Z", 0) == 2_082_758_400_000_000
    for bad in ("", "0d", "1y", "-1d", "2020-01-01T00:00:00Z", "tomorrow", "9999999d"):
        with pytest.raises(InvalidArgument):
            parse_expiry(bad, NOON)
