"""What the RPCs on tokens do; see `handlers`."""

# ruff: noqa: D102 - what an RPC means is said in its `.proto` file.

from wings_core.metadata.interfaces import Metadata
from wings_core.metadata.remote.paging import BY_TEXT
from wings_core.protocol import messages
from wings_core.protocol.v1 import tokens_pb2 as pb
from wings_server.metadata.paging import page


class TokenHandlers:
    """Handles the methods of `wings.v1.TokenService`."""

    def __init__(self, metadata: Metadata) -> None:
        self._tokens = metadata.tokens

    def create_token(self, request: pb.Token) -> pb.Token:
        created = self._tokens.create(messages.TOKEN.decode(request))
        return messages.TOKEN.encode(created)

    def delete_token(self, request: pb.DeleteTokenRequest) -> pb.Token:
        return messages.TOKEN.encode(self._tokens.revoke(request.name, request.id or None))

    def alter_token(self, request: pb.AlterTokenRequest) -> pb.Token:
        quotas = messages.QUOTAS.decode(request.quotas)
        altered = self._tokens.alter(request.name, quotas, request.id or None)
        return messages.TOKEN.encode(altered)

    def list_tokens(self, request: pb.ListTokensRequest) -> pb.ListTokensResponse:
        found, token = page(
            request,
            BY_TEXT,
            lambda after, most: self._tokens.all(after=after, items_max=most),
            lambda token: token.name,
        )
        return pb.ListTokensResponse(
            tokens=map(messages.TOKEN.fields, found), next_page_token=token
        )

    def count_token_changes(self, _: pb.CountTokenChangesRequest) -> pb.CountTokenChangesResponse:
        return pb.CountTokenChangesResponse(changes=self._tokens.changes())
