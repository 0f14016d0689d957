"""Membership: a node keeps a lease in metadata, and reads there which other nodes are live."""

import threading
from collections.abc import Sequence
from contextlib import suppress

import structlog

from wings_core.errors import WingsError
from wings_core.metadata.interfaces import Nodes
from wings_core.model import Node

HEARTBEATS_PER_LEASE = 5
"""How often a node renews its lease within its duration, and reads the list of nodes."""

_logger = structlog.get_logger("wings.nodes")


class Membership:
    """The lease of one node: `join`, then `leave`; a heartbeat thread renews it between the two.

    A lease that expired, as renewals failed for any reason, is acquired again by the next
    heartbeat.

    Args:
        nodes: Where leases are kept.
        lease_seconds: How long a lease lasts.
    """

    def __init__(self, nodes: Nodes, lease_seconds: float) -> None:
        self._nodes = nodes
        self._lease_seconds = lease_seconds
        self._node: Node | None = None
        self._live: tuple[str, ...] = ()
        self._heard = True
        """Whether the last renewal was answered."""
        self._leaving = threading.Event()
        self._thread = threading.Thread(target=self._run, name="wings-membership", daemon=True)

    def join(self, node: Node) -> None:
        """Acquire a lease for this node; blocks for one attempt, later ones are the heartbeat's.

        Args:
            node: Where clients reach it.
        """
        self._node = node
        self._live = (self._node.address,)
        self._look_for_namesakes(self._node.address)
        self._renew(self._node)
        self._thread.start()

    def addresses(self) -> Sequence[str]:
        """Return the addresses of the live nodes as last read, this node's own first.

        The others follow in the order of their addresses, beginning after its own: so the lists of
        all nodes together name each as often in each place. None before `join`.
        """
        return self._live

    def leave(self) -> None:
        """Deregister this node; waits for a renewal under way."""
        if self._node is None:
            return
        self._leaving.set()
        self._thread.join()
        with suppress(Exception):  # The lease expires by itself.
            self._nodes.leave(self._node.id)

    def _look_for_namesakes(self, address: str) -> None:
        """Warn of another node at the same address: one before this, or one too many."""
        with suppress(Exception):  # The renewal will tell.
            if any(each.address == address for each in self._nodes.live()):
                _logger.warning(
                    "another node was listed at this node's address; if it still runs, clients "
                    "find only one of the two",
                    address=address,
                )

    def _run(self) -> None:
        assert self._node is not None
        while not self._leaving.wait(self._lease_seconds / HEARTBEATS_PER_LEASE):
            self._renew(self._node)

    def _renew(self, node: Node) -> None:
        try:
            live = [each.address for each in self._nodes.renew(node, self._lease_seconds)]
        except WingsError as error:
            self._note_silence(error.message)
            return
        except Exception as error:  # noqa: BLE001 - a heartbeat outlasts all of them.
            # A fault of ours or of a library must not end the heartbeat: the node would serve on
            # and never be listed again.
            self._note_silence(f"{type(error).__name__}: {error}", exc_info=True)
            return
        if not self._heard:
            _logger.info("this node is listed again")
        self._heard = True
        own = live.index(node.address) if node.address in live else 0
        self._live = (*live[own:], *live[:own])

    def _note_silence(self, reason: str, *, exc_info: bool = False) -> None:
        """Log the first of several renewals that failed; the next heartbeat tries again."""
        if self._heard:
            _logger.warning("this node is not listed for now", reason=reason, exc_info=exc_info)
        self._heard = False
