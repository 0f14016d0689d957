"""Hiding of stages that a principal may not write to, as if they did not exist.

Stage ids are shared by all topics. In requests, the ids of hidden stages are replaced by ids that
no stage can have, so that the response is that for a missing stage, whatever else is wrong with the
request.
"""

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TypeVar

from wings_core.contracts.actions import StageAbort, StagePublish
from wings_core.errors import NotFound, StageNotFound
from wings_core.log import Log
from wings_core.metadata.stages import ABORTED_MAX, no_stage
from wings_core.security.principal import Principal
from wings_core.security.rights import Right

_HIDDEN = "\x01"
"""A character that no stage id contains."""

Body = TypeVar("Body", StagePublish, StageAbort)


def hide_stages(log: Log, principal: Principal, body: Body) -> Body:
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
