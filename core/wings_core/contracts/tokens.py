"""Actions on tokens: bodies, and the JSON of responses."""

from typing import Annotated, Any

from pydantic import AfterValidator, Field

from wings_core.contracts.actions import ActionBody
from wings_core.contracts.messages import Identifier, Message, accepted_by
from wings_core.security.quotas import QUOTA_MAX, Quotas
from wings_core.security.rights import Grant
from wings_core.security.tokens import GRANTS_MAX, Token
from wings_core.times import format_timestamp

GrantText = Annotated[str, AfterValidator(accepted_by(Grant.parse))]
"""Text of a grant, `RIGHT=PATTERN`."""


class QuotasBody(Message):
    """Quotas of a token; an absent key means no bound."""

    calls: Annotated[int, Field(ge=1, le=QUOTA_MAX)] | None = None
    """Most concurrent calls at a node."""
    bytes: Annotated[int, Field(ge=1, le=QUOTA_MAX)] | None = None
    """Most bytes in flight at a node."""
    topics: Annotated[int, Field(ge=0, le=QUOTA_MAX)] | None = None
    """Most topics that the token may administer."""
    partitions: Annotated[int, Field(ge=0, le=QUOTA_MAX)] | None = None
    """Most partitions of keyed topics that the token may write to."""

    @property
    def quotas(self) -> Quotas:
        """The quotas."""
        return Quotas(self.calls, self.bytes, self.topics, self.partitions)


class TokenCreate(ActionBody):
    """The body of `token-create`."""

    name: Identifier
    grants: Annotated[
        tuple[GrantText, ...], Field(strict=False, min_length=1, max_length=GRANTS_MAX)
    ]
    """Rights on names, like `read=orders`."""
    expires: Annotated[str, Field(max_length=64)] | None = None
    """Expiry: a duration like `90d`, or a time in RFC 3339; None for never."""
    quotas: QuotasBody = QuotasBody.model_construct()


class TokenAlter(ActionBody):
    """The body of `token-alter`."""

    name: Identifier
    quotas: QuotasBody
    """New quotas of the token, replacing all earlier ones."""


class TokenList(ActionBody):
    """The body of `token-list`: an empty object."""


class TokenRevoke(ActionBody):
    """The body of `token-revoke`."""

    name: Identifier


def describe_token(token: Token) -> dict[str, Any]:
    """Return a token's description, without its secret."""
    expires_at = token.expires_at
    return {
        "name": token.name,
        "grants": [str(grant) for grant in token.grants],
        "created_at": format_timestamp(token.created_at),
        "expires_at": None if expires_at is None else format_timestamp(expires_at),
        "quotas": token.quotas.to_json(),
    }
