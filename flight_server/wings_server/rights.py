"""The rights that actions and calls need: one table for Flight and HTTP.

Actions missing from the table are reserved to operators.

Stages that a principal may not write to are hidden, as if they did not exist. Stage ids are shared
by all topics. In requests, the ids of hidden stages are replaced by ids that no stage can have, so
that the response is that for a missing stage, whatever else is wrong with the request.
"""

import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from wings_core.contracts.actions import (
    GetOffsets,
    ListTopics,
    Maintain,
    NamespaceBody,
    StageAbort,
    StagePublish,
    TransactionBegin,
)
from wings_core.contracts.commits import CommitOffsets
from wings_core.contracts.consumer_groups import GroupHeartbeat
from wings_core.contracts.share import AlterGroup, CreateGroup, ListGroups, Redrive
from wings_core.contracts.totals import ConsumerLag, HistoryBody
from wings_core.errors import NotFound, PermissionDenied, StageNotFound
from wings_core.log import Log
from wings_core.metadata.stages import ABORTED_MAX, no_stage
from wings_core.names import DEFAULT_NAMESPACE, ID_PATTERN, NamespaceName, TopicName
from wings_core.security.principal import Principal, authorize
from wings_core.security.rights import DATA_RIGHTS, EVERYTHING, SOMEWHERE, Right
from wings_server.served_log import Answer

Names = Callable[[Log, Any], Iterable[str]]
"""Returns the full names of an action's subjects, from its body."""

Shown = Callable[[Principal, Any], Answer]
"""Returns the part of an action's result that the principal may see."""

Hidden = Callable[[Log, Principal, Any], Any]
"""Returns an action's body with the parts replaced that its caller may not know of."""

_HIDDEN = "\x01"
"""A character that no stage id contains."""

Body = TypeVar("Body", StagePublish, StageAbort)


def _nothing_hidden(_: Log, __: Principal, body: Any) -> Any:
    return body


def _nothing(_: Log, __: Any) -> list[str]:
    return []


def _everything(_: Log, __: Any) -> list[str]:
    return [EVERYTHING]


def _topic(_: Log, body: Any) -> list[str]:
    return [str(TopicName.parse(body.topic))]


def _namespace(_: Log, body: NamespaceBody) -> list[str]:
    return [str(NamespaceName.parse(body.namespace))]


def _offsets(_: Log, body: CommitOffsets) -> list[str]:
    names = dict.fromkeys(body.offsets.topics)
    return [str(TopicName.parse(name)) for name in names] or [SOMEWHERE]


def _heartbeat_topics(_: Log, body: GroupHeartbeat) -> list[str]:
    """Return the topics that a member names; those it named before are checked by the action."""
    return [str(TopicName.parse(name)) for name in body.topics or ()] or [SOMEWHERE]


def _somewhere(_: Log, __: Any) -> list[str]:
    """Return the subject of an action whose result is filtered by the caller's rights."""
    return [SOMEWHERE]


def _consumed(_: Log, body: GetOffsets | ConsumerLag | HistoryBody) -> list[str]:
    return [SOMEWHERE if body.topic is None else str(TopicName.parse(body.topic))]


def _maintained(_: Log, body: Maintain) -> list[str]:
    return [EVERYTHING if body.topic is None else str(TopicName.parse(body.topic))]


def _listed_groups(_: Log, body: ListGroups) -> list[str]:
    return [] if body.topic is None else [str(TopicName.parse(body.topic))]


def _group(_: Log, body: CreateGroup | AlterGroup) -> list[str]:
    """Return the topic, and that of the dead letters, which the server creates and writes to."""
    return [str(TopicName.parse(body.topic)), *_dlq(_, body)]


def _dlq(_: Log, body: CreateGroup | AlterGroup) -> list[str]:
    return [] if body.config.dlq_topic is None else [body.config.dlq_topic]


def _dead_letters(_: Log, body: Redrive) -> list[str]:
    return [str(TopicName.parse(body.dlq_topic))]


_NAME_IN_TEXT = re.compile(
    rf"tenants/{ID_PATTERN}/namespaces/{ID_PATTERN}(?:/topics/{ID_PATTERN})?(?![a-z0-9_-])"
)


def may_write_source(principal: Principal, source: str) -> bool:
    """Return whether a principal may know of a source; see `_named_in`."""
    return all(principal.may(Right.WRITE, name) for name in _named_in(source))


def _named_in(text: str) -> list[str]:
    """Return the full name contained in a client's name of a source or writer.

    Such names do not belong to a topic. One that contains a full name needs the right on that; any
    other name needs the right on any topic.
    """
    return _NAME_IN_TEXT.findall(text) or [SOMEWHERE]


def _shards(_: Log, body: Any) -> list[str]:
    return _named_in(body.source)


def _stages(_: Log, body: StagePublish | StageAbort) -> list[str]:
    names = _named_in(body.writer)
    if isinstance(body, StagePublish):
        for entry in body.shards:
            names += _named_in(entry.source)
    return names


def _writer(_: Log, body: TransactionBegin) -> list[str]:
    return _named_in(body.writer)


def _published_offsets(_: Log, body: StagePublish) -> list[str]:
    entries = () if body.offsets is None else body.offsets.offsets
    names = dict.fromkeys(entry.topic for entry in entries)
    return [str(TopicName.parse(name)) for name in names]


def _all(_: Principal, answer: Any) -> Answer:
    return answer


def _visible_topics(principal: Principal, answer: Any) -> Answer:
    return [each for each in answer if principal.may_see(each["topic"])]


def _visible_namespaces(principal: Principal, answer: Any) -> Answer:
    return [
        each
        for each in answer
        if principal.may_see_namespace(NamespaceName.parse(each["namespace"]))
    ]


def _readable_offsets(principal: Principal, answer: Any) -> Answer:
    offsets = answer["offsets"]
    return {"offsets": [each for each in offsets if principal.may(Right.READ, each["topic"])]}


def _shared_groups(principal: Principal, answer: Any) -> Answer:
    return [each for each in answer if principal.may(Right.SHARE, each["topic"])]


def _published(principal: Principal, answer: Any) -> Answer:
    """Return the result of a repeated publish, whatever stages are named now."""
    for topic in {each["topic"] for each in answer["committed"]}:
        with _unnamed(principal):
            authorize(principal, Right.WRITE, topic)
    return answer


@contextmanager
def _unnamed(principal: Principal) -> Generator[None]:
    """Hide the names of topics that the caller did not name in errors."""
    try:
        yield
    except PermissionDenied:
        raise PermissionDenied(
            f"{principal.name} has no right to write on all topics of this batch"
        ) from None


def _any_namespace(_: Any) -> None:
    return None


def _of_namespace(body: ListTopics | ListGroups) -> NamespaceName | None:
    if isinstance(body, ListGroups) and body.topic is not None:
        return None
    return DEFAULT_NAMESPACE if body.namespace is None else NamespaceName.parse(body.namespace)


@dataclass(frozen=True, slots=True)
class Rule:
    """The rights that an action needs.

    Attributes:
        rights: Rights, any of which suffices, on each of the names.
        names: Returns the action's subjects.
        hidden: Replaces parts of the body that the caller may not know of.
        shown: Filters the result.
        creates: Returns the subjects that are topics it may create.
        reads: Returns the subjects that it needs the right to read of.
        listed: Returns the namespace of a list. The list is empty for a principal that may see
            nothing there, whether or not the namespace exists.
    """

    rights: tuple[Right, ...]
    names: Names
    shown: Shown = _all
    hidden: Hidden = _nothing_hidden
    creates: Names = _nothing
    reads: Names = _nothing
    listed: Callable[[Any], NamespaceName | None] = _any_namespace

    @property
    def is_admin(self) -> bool:
        """Whether the action is administrative, and so logged."""
        return self.rights == (Right.ADMIN,)


_READ, _WRITE, _SHARE, _ADMIN = (Right.READ,), (Right.WRITE,), (Right.SHARE,), (Right.ADMIN,)


def _hide_stages(log: Log, principal: Principal, body: Body) -> Body:
    """Return the body with the stages replaced that the principal may not write to.

    The prefix of an abort becomes the ids of the stages that it may write to.
    """
    prefix = body.prefix if isinstance(body, StageAbort) else None
    if _may_write(log, principal, body.stages, prefix):
        return body
    stages = [
        stage if _may_write(log, principal, [stage]) else f"{_HIDDEN}{stage}"
        for stage in body.stages
    ]
    if prefix is None:
        return body.model_copy(update={"stages": tuple(stages)})
    begun = sorted(_begun(log, principal, prefix))[:ABORTED_MAX]
    return body.model_copy(update={"stages": (*stages, *begun), "prefix": None})


ACTION_RULES: Mapping[str, Rule] = {
    "create-topic": Rule(_ADMIN, _topic, creates=_topic),
    "describe-topic": Rule(DATA_RIGHTS, _topic),
    "alter-topic": Rule(_ADMIN, _topic),
    "delete-topic": Rule(_ADMIN, _topic),
    "list-topics": Rule(DATA_RIGHTS, _nothing, _visible_topics, listed=_of_namespace),
    "create-namespace": Rule(_ADMIN, _namespace),
    "delete-namespace": Rule(_ADMIN, _namespace),
    "list-namespaces": Rule(DATA_RIGHTS, _nothing, _visible_namespaces),
    "partition-states": Rule(_READ, _topic),
    "offset-for-timestamp": Rule(_READ, _topic),
    "commit-offsets": Rule(_READ, _offsets),
    "get-offsets": Rule(_READ, _consumed, _readable_offsets),
    "delete-offsets": Rule(_READ, _consumed),
    "group-heartbeat": Rule(_READ, _heartbeat_topics),
    "group-describe": Rule(_READ, _somewhere),
    "group-list": Rule(_READ, _somewhere),
    "group-reset": Rule(_READ, _topic),
    "tier-states": Rule(_READ, _topic),
    "topic-totals": Rule(_READ, _somewhere),
    "history": Rule(_READ, _consumed),
    "health": Rule(DATA_RIGHTS, _nothing),
    "traffic": Rule(_READ, _somewhere),
    "list-consumers": Rule(_READ, _somewhere),
    "consumer-lag": Rule(_READ, _consumed),
    "sql-live": Rule(_READ, _somewhere),
    "stage-publish": Rule(_WRITE, _stages, _published, _hide_stages, reads=_published_offsets),
    "transaction-begin": Rule(_WRITE, _writer),
    "stage-abort": Rule(_WRITE, _stages, hidden=_hide_stages),
    "shard-open": Rule(_WRITE, _shards),
    "shard-acquire": Rule(_WRITE, _shards),
    "shard-reset": Rule(_WRITE, _shards),
    "shard-get": Rule(_WRITE, _shards),
    "shard-list": Rule(_WRITE, _shards),
    "shard-sources": Rule(_WRITE, _somewhere),
    "shard-count": Rule(_WRITE, _shards),
    "shard-prune": Rule(_WRITE, _shards),
    "share-create": Rule(_ADMIN, _group, creates=_dlq),
    "share-alter": Rule(_ADMIN, _group, creates=_dlq),
    "share-seek": Rule(_ADMIN, _topic),
    "share-purge": Rule(_ADMIN, _topic),
    "share-describe": Rule(_SHARE, _topic),
    "share-members": Rule(_SHARE, _topic),
    "share-delete": Rule(_ADMIN, _topic),
    "share-list": Rule(_SHARE, _listed_groups, _shared_groups, listed=_of_namespace),
    "share-acknowledge": Rule(_SHARE, _topic),
    "share-redrive": Rule(_ADMIN, _dead_letters),
    "maintain": Rule(_ADMIN, _maintained),
    "list-nodes": Rule(_ADMIN, _everything),
    "node-states": Rule(_ADMIN, _everything),
    "token-create": Rule(_ADMIN, _everything),
    "token-alter": Rule(_ADMIN, _everything),
    "token-list": Rule(_ADMIN, _everything),
    "token-revoke": Rule(_ADMIN, _everything),
    "backup-begin": Rule(_ADMIN, _everything),
    "backup-end": Rule(_ADMIN, _everything),
}
"""Rules by the names of actions."""


OTHER_ACTIONS = Rule(_ADMIN, _everything)
"""Rule of actions missing from the table."""


CALL_RIGHTS: Mapping[str, tuple[Right, ...]] = {
    "read": _READ,
    "push": _WRITE,
    "acquire": _SHARE,
    "flight-info": _READ,
    "sql": _READ,
    "schema": DATA_RIGHTS,
    "metrics": (Right.METRICS,),
    "backup": _ADMIN,
}
"""Rights of Flight and HTTP calls that are not actions."""


@contextmanager
def by_their_ids() -> Generator[None]:
    """Restore the caller's id in the error of a missing stage."""
    try:
        yield
    except StageNotFound as error:
        stage: str = error.facts.get("stage", "")
        if not stage.startswith(_HIDDEN):
            raise
        raise no_stage(stage.removeprefix(_HIDDEN)) from None


def _may_write(
    log: Log, principal: Principal, stages: Sequence[str], prefix: str | None = None
) -> bool:
    topics = log.stages.topics(stages, prefix)
    return all(principal.may(Right.WRITE, str(topic)) for topic in topics)


def _begun(log: Log, principal: Principal, prefix: str) -> Iterator[str]:
    for topic in principal.topics(log.admin, Right.WRITE):
        with suppress(NotFound):
            names = (found.stage for found in log.stages.of_topic(topic.uuid))
            yield from (name for name in names if name.startswith(prefix))
