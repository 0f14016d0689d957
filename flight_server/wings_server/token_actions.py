"""The actions on tokens."""

from uuid import uuid4

from wings_core.contracts.tokens import (
    TokenAlter,
    TokenCreate,
    TokenList,
    TokenRevoke,
    describe_token,
)
from wings_core.log import Log
from wings_core.security.rights import Grant
from wings_core.security.tokens import Token, digest_of, new_secret, parse_expiry
from wings_core.times import now_us
from wings_server.action import Actions, Json

TOKEN_ACTIONS = Actions()


@TOKEN_ACTIONS.add("token-create", TokenCreate)
def create_token(log: Log, body: TokenCreate) -> Json:
    """Create a token; returns its description and, only now, its text."""
    now = now_us()
    secret = new_secret()
    token = Token(
        id=str(uuid4()),
        name=body.name,
        digest=digest_of(secret),
        grants=tuple(dict.fromkeys(Grant.parse(text) for text in body.grants)),
        created_at=now,
        expires_at=None if body.expires is None else parse_expiry(body.expires, now),
        quotas=body.quotas.quotas,
    )
    return {**describe_token(log.tokens.create(token)), "token": secret}


@TOKEN_ACTIONS.add("token-alter", TokenAlter)
def alter_token(log: Log, body: TokenAlter) -> Json:
    """Replace a token's quotas; returns its description."""
    return describe_token(log.tokens.alter(body.name, body.quotas.quotas))


@TOKEN_ACTIONS.add("token-list", TokenList)
def list_tokens(log: Log, body: TokenList) -> Json:
    """Return the descriptions of all tokens, expired ones included, by name."""
    del body
    return [describe_token(token) for token in log.tokens.all()]


@TOKEN_ACTIONS.add("token-revoke", TokenRevoke)
def revoke_token(log: Log, body: TokenRevoke) -> Json:
    """Revoke a token; returns its last description."""
    return describe_token(log.tokens.revoke(body.name))
