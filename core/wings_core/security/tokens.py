"""Tokens: 256 random bits as text, stored only as their SHA-256; and credentials of nodes."""

import hashlib
import re
import secrets
from dataclasses import dataclass, field
from urllib.parse import parse_qs, urlsplit

from wings_core.errors import InvalidArgument, ResourceExhausted, TokenNotFound
from wings_core.security.quotas import NO_QUOTAS, Quotas
from wings_core.security.rights import Grant
from wings_core.times import duration_in, parse_timestamp

PREFIX = "wings_"
"""Prefix of generated tokens, by which scanners find leaked ones."""

TOKENS_MAX = 10_000
"""Most tokens of one log."""

GRANTS_MAX = 100
"""Most grants of one token."""

ROOT_CHARACTERS_MIN = 32
"""Shortest root token."""

EXPIRY_SECONDS_MAX = 1_000_000 * 86_400
"""Longest time until a token expires; the year still has four digits."""

DIGEST_BYTES = 32

NAME_PATTERN = r"[A-Za-z0-9][A-Za-z0-9._:@-]{0,127}"
_NAME = re.compile(NAME_PATTERN)


@dataclass(frozen=True, slots=True)
class Token:
    """A token as stored in metadata, without its secret."""

    id: str
    """UUID, which distinguishes it from earlier and later tokens of the same name."""
    name: str
    """Name of its principal."""
    digest: bytes = field(repr=False)
    """SHA-256 of the secret."""
    grants: tuple[Grant, ...]
    created_at: int
    """Creation time in microseconds since the epoch."""
    expires_at: int | None
    """Expiry in microseconds since the epoch, exclusive; None for never."""
    quotas: Quotas = NO_QUOTAS
    """Quotas of its principal."""


def new_secret() -> str:
    """Return a new token's text: `wings_` and 43 characters of URL-safe base64."""
    return PREFIX + secrets.token_urlsafe(32)


def digest_of(secret: str) -> bytes:
    """Return the SHA-256 of a token's text."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()


def is_presentable(secret: str) -> bool:
    """Return whether a header can hold a secret: printable ASCII, without spaces at the ends."""
    return secret.isascii() and secret.isprintable() and secret == secret.strip() != ""


def check_root(secret: str) -> str:
    """Return a chosen, not generated, secret such as the root token, after validating it.

    Raises:
        InvalidArgument: The secret is shorter than `ROOT_CHARACTERS_MIN`, or does not fit in a
            header. The message does not show it.
    """
    if len(secret) < ROOT_CHARACTERS_MIN:
        raise InvalidArgument(
            f"it has {len(secret)} characters, at least {ROOT_CHARACTERS_MIN} are needed"
        )
    if not is_presentable(secret):
        raise InvalidArgument("it is not printable ASCII, or has a space at an end")
    return secret


def parse_expiry(text: str, now: int) -> int:
    """Parse an expiry to microseconds since the epoch.

    Args:
        text: A duration such as `90d` or `12h`, in seconds without a unit; or a time in RFC 3339.
        now: Current time in microseconds since the epoch.

    Raises:
        InvalidArgument: The text is neither, or not in the future.
    """
    seconds = duration_in("s", text)
    if seconds is not None and seconds > EXPIRY_SECONDS_MAX:
        raise InvalidArgument(f"{text[:80]!r} is too long: a token expires within a million days")
    if seconds is not None:
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
        raise InvalidArgument(f"{text[:80]!r} is not in the future")
    return expires_at


def check_token(token: Token) -> None:
    """Check that a token can be stored.

    Raises:
        InvalidArgument: The name is not 1 to 128 letters, digits and `._:@-`, there are no or too
            many grants, the digest is invalid, or a quota out of range.
    """
    if _NAME.fullmatch(token.name) is None:
        raise InvalidArgument(f"{token.name[:80]!a} is not a token's name: expected {NAME_PATTERN}")
    if not 1 <= len(token.grants) <= GRANTS_MAX:
        raise InvalidArgument(f"a token has 1 to {GRANTS_MAX} grants, not {len(token.grants)}")
    if len(token.digest) != DIGEST_BYTES or not token.id:
        raise InvalidArgument("a token has an id and a digest of 32 bytes")
    token.quotas.check()


def check_room(tokens: int) -> None:
    """Check that a log with `tokens` tokens may have another.

    Raises:
        ResourceExhausted: The log has `TOKENS_MAX`.
    """
    if tokens >= TOKENS_MAX:
        raise ResourceExhausted(f"there are {tokens} tokens already, the maximum")


def no_token(name: str) -> TokenNotFound:
    """Return the error of a token that does not exist."""
    return TokenNotFound(f"there is no token {name[:80]!r}")


def without_password(url: str | None) -> str | None:
    """Return a database URL given as a command's option, after checking it for a password.

    Raises:
        InvalidArgument: The URL contains a password, which the message does not show.
    """
    if url is None:
        return None
    try:
        parts = urlsplit(url)
        has_password = bool(parts.password) or "password" in parse_qs(parts.query)
    except ValueError:
        has_password = True  # Unparseable: assume so.
    if has_password:
        raise InvalidArgument(
            "a password on a command line can be read by every user of the machine: set the URL "
            "in the environment (WINGS_METADATA_URL, WINGS_HOLDS_URL) or the settings file, or "
            "the password in PGPASSWORD or ~/.pgpass"
        )
    return url


@dataclass(frozen=True, slots=True, repr=False)
class PeerAccess:
    """Credentials of a node for services of its cluster; its `repr` hides them.

    Attributes:
        token: The token of the cluster, or None.
        tls_ca: Certificate authorities of the services, in PEM; None for no TLS.
        tls_cert: This node's certificate chain, in PEM, for mutual TLS.
        tls_key: Private key of the certificate.
    """

    token: str | None = None
    tls_ca: bytes | None = None
    tls_cert: bytes | None = None
    tls_key: bytes | None = None
