"""Topics that Kafka's clients see, by Kafka's names and ids."""

import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache, partial

from kio.schema.errors import ErrorCode

from wings_core.errors import InvalidArgument, NotFound
from wings_core.kafka_topics import topic_name_of
from wings_core.log import Log
from wings_core.model import Topic
from wings_core.names import NamespaceName, TopicName
from wings_core.partitions import Partition, partition_of, partition_of_value
from wings_core.security.principal import Principal
from wings_server.gate import Gate
from wings_server.kafka.errors import KafkaError

TOPICS_KEPT_MAX = 10_000
"""Most topics whose names are kept by their ids."""


def partition_at(topic: Topic, number: int) -> Partition:
    """Return a partition of a Kafka topic.

    Raises:
        KafkaError: The topic has no partition of this number.
    """
    if not 0 <= number < partition_count(topic):
        raise KafkaError(ErrorCode.unknown_topic_or_partition, f"no partition {number}")
    return partition_of(None, None) if topic.config.kafka is None else partition_of_value(number)


def partition_count(topic: Topic) -> int:
    """Return the number of partitions that clients see: 1 of a topic without a key."""
    return 1 if topic.config.kafka is None else topic.slots


def is_served(topic: Topic) -> bool:
    """Return whether clients see a topic: its partitions are numbered, or it has no key."""
    return topic.config.kafka is not None or topic.partition_key is None


def is_json(topic: Topic) -> bool:
    """Return whether the values of a topic's records are JSON objects."""
    return topic.config.kafka is None or topic.config.kafka.value == "json"


class KafkaTopics:
    """The Kafka topics of a namespace; all methods look into metadata, from any thread.

    Args:
        log: The log.
        namespace: Name of the namespace.
    """

    def __init__(self, log: Log, namespace: NamespaceName) -> None:
        self._log = log
        self.namespace = namespace
        self._names: OrderedDict[uuid.UUID, TopicName] = OrderedDict()

    def wings_name(self, name: str) -> TopicName:
        """Return the full name of a topic by its name at Kafka, whether or not it exists.

        Raises:
            KafkaError: The name is not one of Kafka's.
        """
        try:
            return topic_name_of(name, self.namespace)
        except InvalidArgument as error:
            raise KafkaError(ErrorCode.invalid_topic_exception, error.message) from None

    def readable_by(self, gate: Gate, principal: Principal) -> Callable[[str], Topic]:
        """Return `readable` for one request, which looks for each topic once."""
        return cache(partial(self.readable, gate, principal))

    def readable(self, gate: Gate, principal: Principal, name: str) -> Topic:
        """Return a topic that a principal may read, by its name at Kafka.

        Raises:
            PermissionDenied: It may not, whether or not the topic exists.
            KafkaError: There is none.
        """
        gate.allow(principal, "read", str(self.wings_name(name)))
        return self.find(name)

    def find(self, name: str) -> Topic:
        """Return a topic by its name at Kafka.

        Raises:
            KafkaError: There is none, or it is not served.
        """
        with suppress(NotFound):
            topic = self._log.admin.get_topic(self.wings_name(name))
            if is_served(topic) and topic.kafka_name == name:
                return self._kept(topic)
        raise KafkaError(ErrorCode.unknown_topic_or_partition, f"no topic {name}")

    def find_id(self, topic_uuid: uuid.UUID | None) -> Topic:
        """Return a topic by its id at Kafka, its UUID.

        Raises:
            KafkaError: There is none: it was deleted, or made anew.
        """
        known = None if topic_uuid is None else self._names.get(topic_uuid)
        if known is None and topic_uuid is not None:
            for _ in self.all():  # Keeps their names.
                pass
            known = self._names.get(topic_uuid)
        if known is not None:
            with suppress(NotFound):
                topic = self._log.admin.get_topic(known)
                if uuid.UUID(topic.uuid) == topic_uuid:
                    return topic
        raise KafkaError(ErrorCode.unknown_topic_id, f"no topic with id {topic_uuid}")

    def all(self) -> Iterator[Topic]:
        """Yield the topics that are served, by their names at Wings."""
        for topic in self._log.admin.list_topics(self.namespace):
            if is_served(topic):
                yield self._kept(topic)

    def visible(self, principal: Principal) -> Iterator[Topic]:
        """Yield the topics that a principal may know of."""
        return (topic for topic in self.all() if principal.may_see(str(topic.name)))

    def _kept(self, topic: Topic) -> Topic:
        self._names[uuid.UUID(topic.uuid)] = topic.name
        while len(self._names) > TOPICS_KEPT_MAX:
            self._names.popitem(last=False)
        return topic
