"""Tokens: 256 random bits as text, of which only the SHA-256 is kept."""

import hashlib
import re
import secrets
from dataclasses import dataclass, field
from datetime import timedelta

from wings_core.errors import AlreadyExists, InvalidArgument, ResourceExhausted, TokenNotFound
from wings_core.security.quotas import NO_QUOTAS, Quotas
from wings_core.security.rights import Grant
from wings_core.times import parse_timestamp

PREFIX = "wings_"
"""What every generated token begins with, so that scanners for leaked secrets find them."""

TOKENS_MAX = 10_000
"""The most tokens of one log."""

GRANTS_MAX = 100
"""The most grants of one token."""

ROOT_CHARACTERS_MIN = 32
"""The shortest text that may serve as the root token."""

DIGEST_BYTES = 32

NAME_PATTERN = r"[A-Za-z0-9][A-Za-z0-9._:@-]{0,127}"
_NAME = re.compile(NAME_PATTERN)
_DURATION = re.compile(r"(\d{1,6})([smhd])", re.ASCII)
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


@dataclass(frozen=True, slots=True)
class Token:
    """A token as metadata keeps it: without the secret."""

    id: str
    """A UUID, which tells it from others of its name before and after it."""
    name: str
    """Of the principal that presents it."""
    digest: bytes = field(repr=False)
    """The SHA-256 of the secret."""
    grants: tuple[Grant, ...]
    created_at: int
    """Microseconds since the epoch."""
    expires_at: int | None
    """Microseconds since the epoch, exclusive; None: never."""
    quotas: Quotas = NO_QUOTAS
    """What its principal may use at once."""


def new_secret() -> str:
    """Return a new token's text: `wings_` and 43 characters of URL-safe base64."""
    return PREFIX + secrets.token_urlsafe(32)


def digest_of(secret: str) -> bytes:
    """Return the SHA-256 of a token's text."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()


def is_presentable(secret: str) -> bool:
    """Whether a header can hold a secret: printable ASCII, without a space at either end."""
    return secret.isascii() and secret.isprintable() and secret == secret.strip() != ""


def check_root(secret: str) -> str:
    """Return a secret that was chosen and not generated, such as the root token.

    Raises:
        InvalidArgument: It is shorter than `ROOT_CHARACTERS_MIN`, or no header can hold it. The
            message does not show it.
    """
    if len(secret) < ROOT_CHARACTERS_MIN:
        raise InvalidArgument(
            f"it has {len(secret)} characters, at least {ROOT_CHARACTERS_MIN} are needed"
        )
    if not is_presentable(secret):
        raise InvalidArgument("it is not printable ASCII, or has a space at an end")
    return secret


def parse_expiry(text: str, now: int) -> int:
    """Return when a token expires, in microseconds since the epoch.

    Args:
        text: A duration such as `90d`, `12h`, `30m` or `60s`, or a time in RFC 3339.
        now: Microseconds since the epoch.

    Raises:
        InvalidArgument: It is neither, or not in the future.
    """
    match = _DURATION.fullmatch(text)
    if match is not None:
        seconds = timedelta(**{_UNITS[match[2]]: int(match[1])}).total_seconds()
        expires_at = now + int(seconds * 1e6)
    else:
        try:
            expires_at = parse_timestamp(text)
        except InvalidArgument:
            raise InvalidArgument(
                f"{text[:80]!r} is not an expiry: expected a duration like 90d or 12h, or a time "
                "like 2026-11-20T12:00:00Z"
            ) from None
    if expires_at <= now:
        raise InvalidArgument(f"{text[:80]!r} is no expiry in the future")
    return expires_at


def check_token(token: Token) -> None:
    """Check that a token can be kept.

    Raises:
        InvalidArgument: A name that is not 1 to 128 letters, digits and `._:@-`, no or too many
            grants, a digest that is none, or a quota out of range.
    """
    if _NAME.fullmatch(token.name) is None:
        raise InvalidArgument(f"{token.name[:80]!a} is not a token's name: expected {NAME_PATTERN}")
    if not 1 <= len(token.grants) <= GRANTS_MAX:
        raise InvalidArgument(f"a token has 1 to {GRANTS_MAX} grants, not {len(token.grants)}")
    if len(token.digest) != DIGEST_BYTES or not token.id:
        raise InvalidArgument("a token has an id and a digest of 32 bytes")
    token.quotas.check()


def check_room(tokens: int) -> None:
    """Check that a log with so many tokens may have another.

    Raises:
        ResourceExhausted: It has `TOKENS_MAX`.
    """
    if tokens >= TOKENS_MAX:
        raise ResourceExhausted(f"there are {tokens} tokens, which is the most there may be")


def existing_token(existing: Token, token: Token) -> Token:
    """Return an existing token of the name or the secret to be created, if it is the same one.

    Raises:
        AlreadyExists: It is another one.
    """
    if existing.id != token.id:
        raise AlreadyExists(f"there is a token {existing.name!r} already")
    return existing


def no_token(name: str) -> TokenNotFound:
    """Return the error of a token that does not exist."""
    return TokenNotFound(f"there is no token {name[:80]!r}")
