"""SASL: how a connection presents a token, and picks a namespace.

SaslHandshake: a mechanism ─▶ SaslAuthenticate: one message ─▶ the token's principal
"""

from typing import NamedTuple

from wings_core.errors import Unauthenticated, WingsError
from wings_core.names import DEFAULT_NAMESPACE, NamespaceName

MECHANISMS = ("PLAIN", "OAUTHBEARER")

_BEARER = "auth=bearer "


class Presented(NamedTuple):
    """The content of a client's message."""

    secret: str
    namespace: NamespaceName


def presented(mechanism: str, message: bytes) -> Presented:
    """Return the token and the namespace of a message.

    Args:
        mechanism: `PLAIN` (RFC 4616), where the password is the token; or `OAUTHBEARER` (RFC 7628).
        message: The client's first message. A user, of OAUTHBEARER an authorization identity, of
            the form `TENANT/NAMESPACE` picks a namespace; any other user means the default one.

    Raises:
        Unauthenticated: The message is not one of the mechanism.
    """
    try:
        read = _plain if mechanism == "PLAIN" else _oauth
        user, secret = read(message.decode())
        tenant, slash, namespace = user.partition("/")
        name = DEFAULT_NAMESPACE
        if slash:
            name = NamespaceName.parse(f"tenants/{tenant}/namespaces/{namespace}")
    except (ValueError, WingsError):
        raise Unauthenticated(f"a damaged message of {mechanism}, or a bad namespace") from None
    return Presented(secret, name)


def _plain(message: str) -> tuple[str, str]:
    identity, user, secret = message.split("\0")
    if identity not in {"", user}:
        raise ValueError(identity)
    return user, secret


def _oauth(message: str) -> tuple[str, str]:
    head, *pairs = message.split("\1")
    _, identity, _ = head.split(",")
    (secret,) = [pair for pair in pairs if pair.lower().startswith(_BEARER)]
    return identity.removeprefix("a="), secret[len(_BEARER) :]
