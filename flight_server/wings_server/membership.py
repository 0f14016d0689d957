"""Membership: a node's lease in metadata, and the list of live nodes."""

import threading
from collections.abc import Sequence
from contextlib import suppress

import structlog

from wings_core.errors import WingsError
from wings_core.metadata.interfaces import Nodes
from wings_core.model import Node

HEARTBEATS_PER_LEASE = 5
"""Heartbeats per lease duration; each renews the lease and reads the list of nodes."""

_logger = structlog.get_logger("wings.nodes")


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
        self._heard = True
        """Whether the last renewal succeeded."""
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
                _logger.warning(
                    "another node was registered at this address; if it still runs, clients "
                    "reach only one of the two",
                    address=address,
                )

    def _run(self) -> None:
        assert self._node is not None
        while not self._leaving.wait(self._lease_seconds / HEARTBEATS_PER_LEASE):
            self._renew(self._node)

    def _renew(self, node: Node) -> None:
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
        if not self._heard:
            _logger.info("this node is listed again")
        self._heard = True
        own = next((at for at, each in enumerate(live) if each.address == node.address), 0)
        self._live = (*live[own:], *live[:own])

    def _note_silence(self, reason: str, *, exc_info: bool = False) -> None:
        """Log the first of consecutive failed renewals; the next heartbeat retries."""
        if self._heard:
            _logger.warning("this node is not listed for now", reason=reason, exc_info=exc_info)
        self._heard = False
