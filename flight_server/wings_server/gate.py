"""The gate: every call passes it, over Flight and HTTP, before it looks anything up."""

from collections.abc import Iterable
from typing import Any

import structlog

from wings_core.contracts.actions import ActionBody
from wings_core.errors import PermissionDenied, Unauthenticated
from wings_core.names import TopicName
from wings_core.security.authenticator import Authenticator
from wings_core.security.principal import CALLER, Principal, authorize
from wings_core.security.quotas import CallUsage
from wings_core.security.rights import EVERYTHING, Right
from wings_server.action import Answer
from wings_server.actions import ACTIONS
from wings_server.hidden_stages import by_their_ids
from wings_server.quotas import PlaceQuotas, PushQuotas
from wings_server.rights import ACTION_RULES, CALL_RIGHTS, OTHER_ACTIONS
from wings_server.served_log import ServedLog
from wings_server.token_actions import TOKEN_ACTIONS

_logger = structlog.get_logger("wings.access")


class Gate:
    """Finds the principal of a call, decides what it may do, and runs actions for it.

    Refusals and actions of administration are logged, with principal, action and name.

    Args:
        log: What actions run on.
        authenticator: Knows the tokens; closed by the caller.
    """

    def __init__(self, log: ServedLog, authenticator: Authenticator) -> None:
        self._log = log
        self._places = PlaceQuotas(log)
        self.authenticator = authenticator

    def principal(self, secret: str | None, call: str) -> Principal:
        """Return the principal that presents a secret; see `Authenticator.principal`.

        Args:
            secret: None where none is presented.
            call: What it calls, for the log.

        Raises:
            Unauthenticated: There is no secret, or it is of no valid token.
            Unavailable: Metadata cannot be asked whether the token was revoked.
        """
        try:
            return self.authenticator.principal(secret)
        except Unauthenticated as error:
            _logger.info("refused", principal=None, action=call, reason=error.message)
            raise

    def allow(self, principal: Principal, call: str, topic: str) -> None:
        """Make sure that a principal may make a call, one of `CALL_RIGHTS`, on a topic.

        Args:
            principal: Who calls.
            call: What is called.
            topic: A full name or a bare id, not looked up yet.

        Raises:
            InvalidName: It is no name.
            PermissionDenied: It may not.
        """
        name = TopicName.parse(topic)
        if not principal.is_operator:
            self._authorize(principal, call, CALL_RIGHTS[call], str(name))

    def allow_metrics(self, principal: Principal) -> None:
        """Make sure that a principal may read the metrics.

        Raises:
            PermissionDenied: It may not.
        """
        self._authorize(principal, "metrics", CALL_RIGHTS["metrics"], EVERYTHING)

    def allow_backup(self, principal: Principal) -> None:
        """Make sure that a principal may read what a backup is of: everything.

        Raises:
            PermissionDenied: It may not.
        """
        self._authorize(principal, "backup", CALL_RIGHTS["backup"], EVERYTHING)

    def push_quotas(self, principal: Principal, usage: CallUsage | None) -> PushQuotas | None:
        """Return what a principal's quotas ask of a push by one call of it; None: nothing."""
        return None if usage is None else PushQuotas(principal, usage, self._places)

    def run(self, principal: Principal, name: str, body: ActionBody) -> Answer:
        """Run an action, one of `ACTIONS`, for a principal; returns what of its answer it may see.

        Raises:
            PermissionDenied: It may not.
            ResourceExhausted: It would have more topics than it may.
            WingsError: An error of the action.
        """
        action = ACTIONS[name]
        rule = ACTION_RULES.get(name, OTHER_ACTIONS)
        if not principal.is_operator:
            for each in dict.fromkeys(rule.names(self._log, body)):
                self._authorize(principal, name, rule.rights, each)
            body = rule.hidden(self._log, principal, body)
            listed = rule.listed(body)
            if listed is not None and not principal.may_see_namespace(listed):
                return []
        token = CALLER.set(principal)
        try:
            with by_their_ids():
                if principal.usage is None:
                    answer = action.run(self._log, body)
                else:
                    with self._places.creating(principal, rule.creates(self._log, body)):
                        answer = action.run(self._log, body)
        finally:
            CALLER.reset(token)
        if name in TOKEN_ACTIONS:
            self.authenticator.refresh()
        if rule.is_admin:
            _logger.info(
                "administration", principal=principal.name, action=name, name=_subject(body)
            )
        return answer if principal.is_operator else rule.shown(principal, answer)

    def _authorize(
        self, principal: Principal, call: str, rights: Iterable[Right], name: str
    ) -> None:
        try:
            authorize(principal, rights, name)
        except PermissionDenied:
            _logger.warning("refused", principal=principal.name, action=call, name=name)
            raise


def _subject(body: Any) -> str:
    """Return what an action was on, as its body names it."""
    for key in ("topic", "dlq_topic", "namespace", "name"):
        found = getattr(body, key, None)
        if isinstance(found, str):
            return found
    return EVERYTHING
