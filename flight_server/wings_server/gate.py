"""The gate: authenticates and authorizes every call, over Flight and HTTP, before any look-up.

The error of a missing topic names similar ones, of those that the caller may see.
"""

from collections.abc import Iterable
from typing import Any

import structlog

from wings_core.contracts.actions import ActionBody
from wings_core.errors import (
    PermissionDenied,
    TopicNotFound,
    Unauthenticated,
    WingsError,
    did_you_mean,
    nearest,
)
from wings_core.metadata.interfaces import Admin
from wings_core.names import TopicName
from wings_core.security.principal import CALLER, SECRET, Authenticator, Principal, authorize
from wings_core.security.quotas import CallUsage
from wings_core.security.rights import EVERYTHING, Right
from wings_server.actions import ACTIONS, TOKEN_ACTIONS
from wings_server.quotas import PlaceQuotas, PushQuotas
from wings_server.rights import ACTION_RULES, CALL_RIGHTS, OTHER_ACTIONS, by_their_ids
from wings_server.served_log import Answer, ServedLog

_logger = structlog.get_logger("wings.access")

NAMES_MAX = 1_000
"""Most topics of the namespace that are compared, by name."""


class Gate:
    """Finds the principal of a call, authorizes it, and runs its actions.

    Rejections and administrative actions are logged, with principal, action and name.

    Args:
        log: The log that actions run on.
        authenticator: Finds principals; closed by the caller.
    """

    def __init__(self, log: ServedLog, authenticator: Authenticator) -> None:
        self._log = log
        self._places = PlaceQuotas(log)
        self.authenticator = authenticator

    def principal(self, secret: str | None, call: str, client: str | None = None) -> Principal:
        """Return the principal of a secret; see `Authenticator.principal`.

        Args:
            secret: The secret presented, or None.
            call: Name of the call, for the log.
            client: The client's address, for the log; None over Flight, whose middleware does not
                know it.

        Raises:
            Unauthenticated: There is no secret, or it is not that of a valid token.
            Unavailable: Metadata cannot be reached, so that the token may have been revoked.
        """
        try:
            return self.authenticator.principal(secret)
        except Unauthenticated as error:
            _logger.info(
                "refused", principal=None, action=call, client=client, reason=error.message
            )
            raise

    def allow(self, principal: Principal, call: str, topic: str) -> None:
        """Check that a principal may make a call, one of `CALL_RIGHTS`, on a topic.

        Args:
            principal: The caller.
            call: Name of the call.
            topic: Full name or bare id, not looked up yet.

        Raises:
            InvalidName: The name is malformed.
            PermissionDenied: The principal lacks the right.
        """
        name = TopicName.parse(topic)
        if not principal.is_operator:
            self._authorize(principal, call, CALL_RIGHTS[call], str(name))

    def allow_metrics(self, principal: Principal) -> None:
        """Check that a principal may read the metrics.

        Raises:
            PermissionDenied: The principal lacks the right.
        """
        self._authorize(principal, "metrics", CALL_RIGHTS["metrics"], EVERYTHING)

    def allow_backup(self, principal: Principal) -> None:
        """Check that a principal may read backups, which contain everything.

        Raises:
            PermissionDenied: The principal lacks the right.
        """
        self._authorize(principal, "backup", CALL_RIGHTS["backup"], EVERYTHING)

    def push_quotas(self, principal: Principal, usage: CallUsage | None) -> PushQuotas | None:
        """Return the quotas for a push by one call of a principal; None without quotas."""
        return None if usage is None else PushQuotas(principal, usage, self._places)

    def run(
        self, principal: Principal, name: str, body: ActionBody, secret: str | None = None
    ) -> Answer:
        """Run one of `ACTIONS` for a principal; returns the part of the result that it may see.

        Args:
            principal: The caller.
            name: Name of the action.
            body: Its body.
            secret: The secret that the caller presented, for an action passed on to another node.

        Raises:
            PermissionDenied: The principal lacks the right.
            ResourceExhausted: The principal would exceed its quota of topics.
            WingsError: The action failed.
        """
        action = ACTIONS[name]
        rule = ACTION_RULES.get(name, OTHER_ACTIONS)
        if not principal.is_operator:
            for each in dict.fromkeys(rule.names(self._log, body)):
                self._authorize(principal, name, rule.rights, each)
            for each in dict.fromkeys(rule.reads(self._log, body)):
                self._authorize(principal, name, (Right.READ,), each)
            body = rule.hidden(self._log, principal, body)
            listed = rule.listed(body)
            if listed is not None and not principal.may_see_namespace(listed):
                return []
        token, presented = CALLER.set(principal), SECRET.set(secret)
        try:
            with by_their_ids():
                if principal.usage is None:
                    answer = action.run(self._log, body)
                else:
                    with self._places.creating(principal, rule.creates(self._log, body)):
                        answer = action.run(self._log, body)
        finally:
            CALLER.reset(token)
            SECRET.reset(presented)
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
    """Return the name of an action's subject, from its body."""
    for key in ("topic", "dlq_topic", "namespace", "name"):
        found = getattr(body, key, None)
        if isinstance(found, str):
            return found
    return EVERYTHING


def with_similar(admin: Admin, principal: Principal, error: TopicNotFound) -> TopicNotFound:
    """Return the error of a missing topic with similar topics of its namespace.

    Their ids are in the message, and in the fact `similar`, the best first. Blocks for one look at
    metadata.

    Args:
        admin: The topics.
        principal: The caller.
        error: The error.
    """
    asked = error.facts.get("topic")
    if asked is None or "similar" in error.facts:
        return error
    try:
        name = TopicName.parse(str(asked))
        if not principal.may_see_namespace(name.namespace):
            return error
        found = admin.list_topics(name.namespace, items_max=NAMES_MAX)
    except WingsError:
        return error
    ids = [topic.name.topic for topic in found if principal.may_see(str(topic.name))]
    similar = nearest(name.topic, ids)
    hint = did_you_mean(name.topic, similar)
    return TopicNotFound(f"{error.message}{hint}", **error.facts, similar=similar)
