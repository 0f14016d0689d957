"""File descriptors: what the process may open, and how listeners leave enough for files."""

import resource

OPEN_MAX = 65_536
"""The soft limit is raised to this where the hard one allows it; more would serve no purpose."""

HTTP_SHARE = 4
"""HTTP takes at most one descriptor in so many."""

RPC_SHARE = 2
"""Flight, or a gRPC service, takes at most one descriptor in so many."""


def raise_limit() -> None:
    """Raise the soft limit of open files to the hard one, at most `OPEN_MAX`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_MAX if hard == resource.RLIM_INFINITY else min(OPEN_MAX, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def connections_max(setting: int, share: int) -> int:
    """Return how many connections a listener may hold: its setting, or its share if that is less.

    Args:
        setting: The most that are wanted.
        share: `HTTP_SHARE` or `RPC_SHARE`.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return setting if soft == resource.RLIM_INFINITY else max(1, min(setting, soft // share))
