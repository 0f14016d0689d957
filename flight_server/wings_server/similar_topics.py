"""Similar names in the error of a missing topic: those of topics that the caller may see."""

from wings_core.errors import TopicNotFound, WingsError, did_you_mean, nearest
from wings_core.metadata.interfaces import Admin
from wings_core.names import TopicName
from wings_core.security.principal import Principal

NAMES_MAX = 1_000
"""Most topics of the namespace that are compared, by name."""


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
