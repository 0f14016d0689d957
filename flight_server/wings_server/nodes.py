"""A node of a log: its lease in metadata, the live nodes, and the consumer groups it runs.

The holder of a group's lease is named `HOST:PORT UUID`, by the Flight address of its node: a call
for a group that another node runs goes there, with the token of its caller.
"""

import json
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
import structlog

from wings_core.consumer_groups.coordinator import GroupCoordinator, RunElsewhere
from wings_core.consumer_groups.group import TopicSlots
from wings_core.contracts.actions import ActionBody
from wings_core.errors import TopicNotFound, Unavailable, WingsError, error_from_json
from wings_core.log import Log
from wings_core.metadata.interfaces import Nodes, all_topics
from wings_core.model import Node, Topic
from wings_core.names import TopicName
from wings_core.partitions import first_slots, mask_of
from wings_core.security.principal import SECRET
from wings_core.security.tokens import PeerAccess

TICK_SECONDS = 1.0
"""How often sessions are looked at."""

CALL_SECONDS_MAX = 10.0
"""Longest time of a call that is passed on."""

FILLED_SECONDS = 5.0
"""How long it is remembered which slots of a topic have messages."""

TOPICS_KEPT_MAX = 100_000
"""Topics whose name and slots are remembered; they are forgotten together."""

CLIENTS_MAX = 1_000
"""Connections to other nodes that are kept; they are dropped together."""

_logger = structlog.get_logger("wings.groups")

HEARTBEATS_PER_LEASE = 5
"""Heartbeats per lease duration; each renews the lease and reads the list of nodes."""

_lease_logger = structlog.get_logger("wings.nodes")


class Membership:
    """The lease of one node, renewed by a heartbeat thread between `join` and `leave`.

    A lease that expired after failed renewals is acquired again by the next heartbeat.

    Args:
        nodes: Stores leases.
        lease_seconds: Duration of a lease.
    """

    def __init__(self, nodes: Nodes, lease_seconds: float) -> None:
        self._nodes = nodes
        self._lease_seconds = lease_seconds
        self._node: Node | None = None
        self._live: tuple[Node, ...] = ()
        self._heard_at = 0.0
        """When the last renewal that succeeded began, by the monotonic clock."""
        self._silence: str | None = None
        """Why the last renewal failed; None where it did not."""
        self._leaving = threading.Event()
        self._thread = threading.Thread(target=self._run, name="wings-membership", daemon=True)

    def join(self, node: Node) -> None:
        """Acquire a lease for this node; blocks for one attempt, which the heartbeat repeats.

        Args:
            node: The node, with its addresses for clients.
        """
        self._node = node
        self._live = (node,)
        self._look_for_namesakes(self._node.address)
        self._renew(self._node)
        self._thread.start()

    def addresses(self) -> Sequence[str]:
        """Return the addresses of the live nodes as last read, this node's own first.

        The others follow in the order of addresses, starting after this node's, so that over all
        nodes each address is equally often in each position. Empty before `join`.
        """
        return tuple(node.address for node in self._live)

    def nodes(self) -> Sequence[Node]:
        """Return the live nodes as last read, in the order of `addresses`."""
        return self._live

    @property
    def silence(self) -> str | None:
        """Why this node's lease was not renewed before it ended; None while it is listed."""
        if time.monotonic() <= self._heard_at + self._lease_seconds:
            return None
        return self._silence or "metadata does not answer"

    def leave(self) -> None:
        """Deregister this node; waits for a renewal in progress."""
        if self._node is None:
            return
        self._leaving.set()
        self._thread.join()
        with suppress(Exception):  # The lease will expire.
            self._nodes.leave(self._node.id)

    def _look_for_namesakes(self, address: str) -> None:
        """Warn of another node at the same address: a predecessor, or a duplicate."""
        with suppress(Exception):  # The renewal will report it.
            if any(each.address == address for each in self._nodes.live()):
                _lease_logger.warning(
                    "another node was registered at this address; if it still runs, clients "
                    "reach only one of the two",
                    address=address,
                )

    def _run(self) -> None:
        assert self._node is not None
        while not self._leaving.wait(self._lease_seconds / HEARTBEATS_PER_LEASE):
            self._renew(self._node)

    def _renew(self, node: Node) -> None:
        began = time.monotonic()
        try:
            live = self._nodes.renew(node, self._lease_seconds)
        except WingsError as error:
            self._note_silence(error.message)
            return
        except Exception as error:  # noqa: BLE001 - the heartbeat must survive every error
            # A fault must not end the heartbeat: the node would continue to serve without being
            # listed again.
            self._note_silence(f"{type(error).__name__}: {error}", exc_info=True)
            return
        if self._silence is not None:
            _lease_logger.info("this node is listed again")
        self._heard_at, self._silence = began, None
        own = next((at for at, each in enumerate(live) if each.address == node.address), 0)
        self._live = (*live[own:], *live[:own])

    def _note_silence(self, reason: str, *, exc_info: bool = False) -> None:
        """Log the first of consecutive failed renewals; the next heartbeat retries."""
        if self._silence is None:
            _lease_logger.warning(
                "this node is not listed for now", reason=reason, exc_info=exc_info
            )
        self._silence = reason


class GroupNode:
    """The consumer groups of a node; ends with `close`.

    Args:
        log: The log.
        node: This process, with its addresses.
        access: Credentials of this node; its certificates are used for other nodes.
        tls: Whether the nodes serve TLS.

    Attributes:
        node: This process, with its addresses.
        coordinator: Runs the groups whose lease this node holds.
    """

    def __init__(self, log: Log, node: Node, access: PeerAccess, tls: bool) -> None:
        self._log = log
        self.node = node
        self._access = access
        self._scheme = "grpc+tls" if tls else "grpc"
        self._lock = threading.Lock()
        """Guards the tables below; nothing is called under it."""
        self._names: dict[str, str | None] = {}
        """Topics' names by UUID; None of one that was deleted."""
        self._slots: dict[str, tuple[float, TopicSlots]] = {}
        """Slots of topics by UUID, with the time of the look."""
        self._numbered: dict[str, Topic] = {}
        """Topics with numbered partitions among them, as of the look."""
        self._clients: dict[str, flight.FlightClient] = {}
        metadata = log.metadata
        self.coordinator = GroupCoordinator(
            metadata.consumer_groups,
            metadata.maintenance,
            f"{node.address} {node.id}",
            self._slots_of,
        )
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="wings-groups", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Release the leases of this node's groups, so that others take over at once."""
        self._closing.set()
        self._thread.join()
        with suppress(WingsError):  # They end by themselves.
            self.coordinator.close()
        with self._lock:
            self._clients.clear()  # Those in use are closed after their calls.

    def topic_of(self, name: str) -> Topic:
        """Return a topic that members read.

        Raises:
            TopicNotFound: There is no topic of this name.
        """
        topic = self._log.admin.get_topic(TopicName.parse(name))
        self._remember({topic.uuid: str(topic.name)})
        return topic

    def names_of(self, uuids: Iterable[str]) -> dict[str, str]:
        """Return the full names of topics by UUID, without those that do not exist."""
        wanted = set(uuids)
        with self._lock:
            known = {uuid: self._names[uuid] for uuid in wanted if uuid in self._names}
        if len(known) < len(wanted):  # Members joined at another node.
            every = {topic.uuid: str(topic.name) for topic in all_topics(self._log.admin)}
            known = {uuid: every.get(uuid) for uuid in wanted}
            self._remember(known)
        found = (self._find(uuid, name) for uuid, name in known.items())
        return {topic.uuid: str(topic.name) for topic in found if topic is not None}

    def _find(self, uuid: str, name: str | None) -> Topic | None:
        """Return the topic of a name where it is still that of a UUID."""
        try:
            topic = None if name is None else self._log.admin.get_topic(TopicName.parse(name))
        except TopicNotFound:
            return None
        return topic if topic is not None and topic.uuid == uuid else None

    def pass_on(self, elsewhere: RunElsewhere, action: str, body: ActionBody) -> bytes:
        """Run an action at the node that runs the group; returns its response.

        Raises:
            Unavailable: That node does not answer.
            WingsError: Its error.
        """
        address = elsewhere.holder.partition(" ")[0]
        if address == self.node.address:  # This node's predecessor, whose lease has not ended.
            raise Unavailable("the group is changing nodes; try again")
        return self.call(address, action, body)

    def call(
        self, address: str, action: str, body: ActionBody, seconds: float = CALL_SECONDS_MAX
    ) -> bytes:
        """Run an action at another node, with the token of the caller; returns its response.

        Raises:
            Unavailable: That node does not answer within `seconds`.
            WingsError: Its error.
        """
        secret = SECRET.get()
        headers: Any = [] if secret is None else [(b"authorization", f"Bearer {secret}".encode())]
        options = flight.FlightCallOptions(timeout=seconds, headers=headers)
        try:
            client = self._client(address)
            request = flight.Action(action, body.to_bytes())
            (result,) = client.do_action(request, options)
        except flight.FlightError as error:
            raise _error_of(error, address) from None
        except (pa.ArrowException, OSError) as error:
            raise Unavailable(f"the node {address}: {error!s:.200}") from None
        return result.body.to_pybytes()

    def _client(self, address: str) -> flight.FlightClient:
        with self._lock:
            client = self._clients.get(address)
        if client is not None:
            return client
        options: dict[str, Any] = {}
        if self._access.tls_ca is not None:
            options["tls_root_certs"] = self._access.tls_ca
        if self._access.tls_cert is not None:
            options |= {
                "cert_chain": self._access.tls_cert,
                "private_key": self._access.tls_key,
            }
        client = flight.FlightClient(f"{self._scheme}://{address}", **options)
        with self._lock:
            if len(self._clients) >= CLIENTS_MAX:  # Nodes that are gone have some.
                self._clients.clear()  # Those in use are closed after their calls.
            return self._clients.setdefault(address, client)

    def _remember(self, names: Mapping[str, str | None]) -> None:
        with self._lock:
            if len(self._names) + len(names) > TOPICS_KEPT_MAX:
                self._names.clear()
            self._names.update(names)

    def _slots_of(self, uuids: Iterable[str]) -> dict[str, TopicSlots]:
        """Return the slots of topics; see `GroupCoordinator`."""
        found: dict[str, TopicSlots] = {}
        now = time.monotonic()
        for uuid in uuids:
            with self._lock:
                known = self._slots.get(uuid)
            if known is None or known[0] + FILLED_SECONDS < now:
                try:
                    known = now, self._look_for_slots(uuid)
                except TopicNotFound:
                    continue
                with self._lock:
                    if len(self._slots) >= TOPICS_KEPT_MAX:
                        self._slots.clear()
                        self._numbered.clear()
                    self._slots[uuid] = known
            found[uuid] = known[1]
        return found

    def _look_for_slots(self, uuid: str) -> TopicSlots:
        topic = self._find(uuid, self.names_of((uuid,)).get(uuid))
        if topic is None:
            raise TopicNotFound("the topic was deleted")
        if topic.partition_key is None:
            return TopicSlots(1, 1)
        if topic.config.kafka is not None:
            with self._lock:
                self._numbered[uuid] = topic
        states = self._log.registry.partition_states(uuid)
        filled = mask_of({topic.slot_of(state.partition) for state in states if state.next_offset})
        return TopicSlots(first_slots(topic.slots), filled)

    def _look_at_numbers(self) -> None:
        """Have partitions assigned that numbered topics were given since their slots were told."""
        with self._lock:
            numbered = dict(self._numbered)
        for uuid, before in numbered.items():
            topic = self._find(uuid, str(before.name))
            if topic is None or topic.slots == before.slots:
                continue
            with self._lock:
                self._slots.pop(uuid, None)
            self.coordinator.cover_slots(uuid)
            with self._lock:
                self._numbered[uuid] = topic

    def _run(self) -> None:
        while not self._closing.wait(TICK_SECONDS):
            try:
                self._look_at_numbers()
                self.coordinator.tick()
            except Unavailable as error:
                _logger.warning("cannot reach metadata for consumer groups", reason=error.message)
            except Exception:
                _logger.exception("cannot look after consumer groups")


def _error_of(error: flight.FlightError, address: str) -> WingsError:
    """Return the error of a node, or `Unavailable`."""
    try:
        return error_from_json(json.loads(error.extra_info))
    except ValueError:
        why = f"{error!s:.200}"
        if "certificate verify failed" in str(error):
            why = "its certificate is not trusted here: name its authority by --cluster-ca"
        return Unavailable(f"the node {address}: {why}")
