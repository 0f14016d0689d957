"""The tokens that principals present."""

from typing import Protocol

from wings_core.security.quotas import Quotas
from wings_core.security.tokens import Token


class Tokens(Protocol):
    """Tokens by name; their secrets are not kept."""

    def create(self, token: Token) -> Token:
        """Store a token and return it.

        Args:
            token: With a UUID that no other one has; where it is there already, it is returned as
                it is.

        Raises:
            AlreadyExists: There is a token of this name, or of this secret.
            ResourceExhausted: There are `TOKENS_MAX` tokens already.
            InvalidArgument: It cannot be stored; see `check_token`.
        """
        ...

    def revoke(self, name: str, token_id: str | None = None) -> Token:
        """Delete a token and return it as it was.

        Args:
            name: Its name.
            token_id: Its UUID; None: whichever has the name.

        Raises:
            TokenNotFound: There is none of this name, or its UUID differs.
        """
        ...

    def alter(self, name: str, quotas: Quotas, token_id: str | None = None) -> Token:
        """Replace a token's quotas and return it as it is then.

        Args:
            name: Its name.
            quotas: All that it has from now on.
            token_id: Its UUID; None: whichever has the name.

        Raises:
            TokenNotFound: There is none of this name, or its UUID differs.
            InvalidArgument: A quota is out of range.
        """
        ...

    def all(self, *, after: str | None = None, items_max: int | None = None) -> list[Token]:
        """Return the tokens, expired ones too, by name.

        Args:
            after: Only those whose name is greater; None: all.
            items_max: The first so many of them; None: all.
        """
        ...

    def changes(self) -> int:
        """Return how often a token was created, altered or revoked; 0: there was never any.

        Blocks for a few seconds at most, also where the store is out of reach.
        """
        ...
