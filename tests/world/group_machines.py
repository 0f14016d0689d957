"""Machines of a world that run consumer groups, and abort late transactions, as servers do.

Nodes pass heartbeats on to each other: the client of Flight for that is replaced here, by one whose
calls are late and break.
"""

import json
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow.flight as flight
import world_threads
from world_threads import Scheduler
from world_wire import CUT_CHANCE, DELAY_SECONDS, SLOW_CHANCE, SLOW_SECONDS, Call

from wings_core.contracts.actions import ActionBody
from wings_core.errors import InvalidArgument, WingsError
from wings_core.log import Log
from wings_core.model import Node, PublishResult
from wings_core.security.tokens import PeerAccess
from wings_server import nodes
from wings_server.actions import ACTIONS
from wings_server.nodes import GroupNode
from wings_server.served_log import encoded

if TYPE_CHECKING:
    from log_world import World

EXPIRE_SECONDS = 1.0
"""How often late transactions are looked for, as Kafka's listener does."""

EXPIRED_MAX = 100


class GroupLog(Log):
    """A log whose machine runs consumer groups; closed together."""

    consumer_groups: GroupNode | None = None
    _is_closing = False
    _expires = False

    def on_publish(self, published: PublishResult) -> None:
        """Count nothing."""

    def serve(self, world: "World", number: int, name: str) -> None:
        """Begin to run groups, as a machine and a life of it, by name."""
        node = Node(name, f"machine{number}:1")
        self.consumer_groups = GroupNode(self, node, PeerAccess(), tls=False)
        self._expires = True
        world.scheduler.start("expiry", lambda: self._expire(world))

    def close(self) -> None:
        """End what `serve` began, then close the log."""
        self._is_closing = True
        while self._expires:
            world_threads.sleep(EXPIRE_SECONDS)
        if self.consumer_groups is not None:
            self.consumer_groups.close()
        super().close()

    def _expire(self, world: "World") -> None:
        """Abort late transactions until the log closes."""
        while not self._is_closing:
            world_threads.sleep(EXPIRE_SECONDS)
            began_ns = world.scheduler.now_ns
            try:
                self.metadata.transactions.expire(EXPIRED_MAX)
            except WingsError:
                continue
            world.groups.looks.append((began_ns, world.scheduler.now_ns))
        self._expires = False


def run_action(log: Log, name: str, body: ActionBody) -> Any:
    """Run an action; returns its JSON."""
    found: Any = log
    return json.loads(encoded(ACTIONS[name].run(found, body)))


def connect(world: "World") -> None:
    """Have machines of a world call each other."""

    def options(timeout: float, headers: object) -> float:
        del headers
        return timeout

    replaced: Any = SimpleNamespace(
        Action=flight.Action,
        FlightError=flight.FlightError,
        FlightCallOptions=options,
        FlightClient=partial(PeerClient, world),
    )
    nodes.flight = replaced  # pyright: ignore[reportPrivateImportUsage]


class PeerClient:
    """A client of another machine, by the part of Flight's that nodes use."""

    def __init__(self, world: "World", location: str) -> None:
        self._world = world
        self._number = int(location.removeprefix("grpc://machine").removesuffix(":1"))

    def do_action(self, action: flight.Action, seconds: float) -> Iterator[Any]:
        """Run an action there; yields its one result."""
        scheduler: Scheduler = self._world.scheduler
        call = Call(scheduler, scheduler.now_ns + int(seconds * 1e9))
        machine = self._world.machine(self._number)
        if not machine.is_up:
            raise flight.FlightUnavailableError("failed to connect")
        log = machine.log
        assert log is not None

        def serve() -> None:
            self._pass()
            try:
                given = action.body.to_pybytes()
                body = ACTIONS[action.type].body.parse(given, InvalidArgument, action.type)
                response = json.dumps(run_action(log, action.type, body)).encode()
            except WingsError as error:
                text = json.dumps(error.to_json()).encode()
                call.end(error=flight.FlightServerError(error.message, text))
                return
            finally:
                under_way.remove(machine.life)
            self._pass()
            call.end(response)

        under_way = self._world.groups.passed_on.setdefault(action.type, [])
        under_way.append(machine.life)
        scheduler.start(action.type, serve, machine.life)
        if self._fails(CUT_CHANCE):
            raise flight.FlightUnavailableError("the connection was cut")
        call.wait()
        if call.response is None:
            if isinstance(call.error, flight.FlightError):
                raise call.error
            raise flight.FlightTimedOutError("Deadline Exceeded")
        yield flight.Result(call.response)

    def close(self) -> None:
        """Do nothing."""

    def _fails(self, chance: float) -> bool:
        return self._world.wire.fails and self._world.scheduler.random.random() < chance

    def _pass(self) -> None:
        seconds = SLOW_SECONDS if self._fails(SLOW_CHANCE) else DELAY_SECONDS
        world_threads.sleep(self._world.scheduler.random.uniform(*seconds))
