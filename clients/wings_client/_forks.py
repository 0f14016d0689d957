"""Forked children: a client belongs to the process that made it.

A fork copies gRPC's memory and shares its sockets, but none of its threads: a call in the child
waits for ever, that of a new connection too (measured, also with gRPC's fork support switched on),
and one that is cancelled there may end the parent's. So a child of a process that has connected
gets an error at once where it connects, or uses what it inherited, and nothing that it closes or
drops touches what the parent uses.
"""

import ctypes
import os
import weakref
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Protocol, TypeVar

from wings_core.errors import InvalidArgument

T = TypeVar("T")


_VERBOSITY = "GRPC_VERBOSITY"


class Owner(Protocol):
    """Objects that a forked child inherits, and must not use."""

    is_inherited: bool

    def abandon(self) -> None:
        """Keep connections from being closed; called once, in the child."""
        ...


class _Grpc:
    """State of gRPC in this process."""

    is_started = False
    is_inherited = False


_grpc = _Grpc()
_owners: weakref.WeakKeyDictionary[Owner, None] = weakref.WeakKeyDictionary()


def living(references: "weakref.WeakKeyDictionary[T, None]") -> list[T]:
    """Return what is still alive, whatever other threads add or drop meanwhile.

    An iteration of a `WeakSet` may fail then.
    """
    return [found for each in references.keyrefs() if (found := each()) is not None]


def register(owner: Owner) -> None:
    """Have `is_inherited` of an owner set, and `abandon` called, in each forked child."""
    _owners[owner] = None


@contextmanager
def starting_grpc() -> Generator[None]:
    """Make a connection in the block.

    gRPC, which looks at its environment when it starts, does not write to standard error what the
    errors of its calls say.

    Raises:
        InvalidArgument: This is a forked child of a process that had made one.
    """
    if _grpc.is_inherited:
        raise inherited_error()
    quiet = not _grpc.is_started and _VERBOSITY not in os.environ
    _grpc.is_started = True
    if quiet:
        os.environ[_VERBOSITY] = "NONE"
    try:
        yield
    finally:
        if quiet:
            del os.environ[_VERBOSITY]


def inherited_error() -> InvalidArgument:
    """Return the error of a call on what a forked child inherited, and of a connection there."""
    return InvalidArgument(
        f"process {os.getpid()} was forked from one that had connected to Wings, and gRPC does not "
        "work in it: start it by multiprocessing's 'spawn' or 'forkserver', or fork before the "
        "first client is used"
    )


def keep(*objects: object) -> None:
    """Keep objects from being freed, also when the process ends.

    A connection that is freed in a child is taken out of the set of sockets that both processes
    wait on (measured: the parent's reads then hang).
    """
    for each in objects:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(each))


def finalize(owned: object, owner: Owner, call: Callable[[], object]) -> Callable[[], object]:
    """Call a function once: when `owned` is garbage-collected, at exit, or by what this returns.

    In a forked child it is never called.
    """

    def unless_inherited() -> None:
        if not owner.is_inherited:
            call()

    return weakref.finalize(owned, unless_inherited)


def _after_fork_in_child() -> None:
    _grpc.is_inherited = _grpc.is_started
    for owner in living(_owners):
        owner.is_inherited = True
        owner.abandon()


if hasattr(os, "register_at_fork"):  # Where there are forks.
    os.register_at_fork(after_in_child=_after_fork_in_child)
