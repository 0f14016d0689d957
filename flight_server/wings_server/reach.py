"""The topics that a principal's rights reach."""

from collections.abc import Iterator
from contextlib import suppress

from wings_core.errors import NotFound
from wings_core.log import Log
from wings_core.model import Topic
from wings_core.security.principal import Principal
from wings_core.security.rights import Right


def topics_in_reach(log: Log, principal: Principal, right: Right) -> Iterator[Topic]:
    """Yield the topics, of all namespaces, that a principal has a right on."""
    for namespace in log.admin.list_namespaces():
        if principal.may_see_namespace(namespace.name):
            with suppress(NotFound):  # It was deleted since.
                for topic in log.admin.list_topics(namespace.name):
                    if principal.may(right, str(topic.name)):
                        yield topic
