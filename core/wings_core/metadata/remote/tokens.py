"""Tokens at a metadata service: each method is a call."""

from wings_core.metadata.interfaces import Tokens
from wings_core.metadata.remote.channel import ServiceChannel
from wings_core.metadata.remote.paging import BY_TEXT, listed
from wings_core.protocol import messages
from wings_core.protocol.v1 import tokens_pb2 as pb
from wings_core.protocol.v1.stubs import TokenServiceStub
from wings_core.security.quotas import Quotas
from wings_core.security.tokens import Token, check_token, no_token

CHANGES_SECONDS_MAX = 2.0
"""How long the question whether tokens changed may take: it is asked again soon."""


class RemoteTokens(Tokens):
    """See `Tokens`.

    Args:
        channel: To the service.
    """

    def __init__(self, channel: ServiceChannel) -> None:
        self._channel = channel
        self._stub = TokenServiceStub(channel.channel)

    def create(self, token: Token) -> Token:
        """Store a token; see `Tokens.create`. Repeated where the response was lost."""
        check_token(token)
        request = messages.TOKEN.encode(token)
        created = self._channel.call_repeatedly(self._stub.CreateToken, request)
        return messages.TOKEN.decode(created)

    def revoke(self, name: str, token_id: str | None = None) -> Token:
        """Delete a token; see `Tokens.revoke`. Repeated where the response was lost."""
        messages.text("the token's name", name)
        found = next((token for token in self.all() if token.name == name), None)
        if found is None or token_id not in {None, found.id}:
            raise no_token(name)
        request = pb.DeleteTokenRequest(name=name, id=found.id)
        gone = messages.TOKEN.encode(found)
        deleted = self._channel.call_repeatedly(self._stub.DeleteToken, request, gone)
        return messages.TOKEN.decode(deleted)

    def alter(self, name: str, quotas: Quotas, token_id: str | None = None) -> Token:
        """Replace a token's quotas; see `Tokens.alter`. Repeated where the response was lost."""
        messages.text("the token's name", name)
        quotas.check()
        request = pb.AlterTokenRequest(
            name=name, id=token_id or "", quotas=messages.QUOTAS.fields(quotas)
        )
        altered = self._channel.call_repeatedly(self._stub.AlterToken, request)
        return messages.TOKEN.decode(altered)

    def all(self, *, after: str | None = None, items_max: int | None = None) -> list[Token]:
        """Return the tokens by name; see `Tokens.all`."""
        return listed(
            self._channel,
            self._stub.ListTokens,
            pb.ListTokensRequest(),
            lambda page: [messages.TOKEN.decode(token) for token in page.tokens],
            BY_TEXT,
            after,
            items_max,
        )

    def changes(self) -> int:
        """Return how often tokens changed; see `Tokens.changes`."""
        request = pb.CountTokenChangesRequest()
        answer = self._channel.call(
            self._stub.CountTokenChanges, request, CHANGES_SECONDS_MAX, changes=False
        )
        return answer.changes
