"""File descriptors: the process's limit, and the shares of listeners."""

import resource

OPEN_MAX = 65_536
"""Value to raise the soft limit to, if the hard limit allows; more is never needed."""

HTTP_SHARE = 4
"""Divisor of the limit for HTTP's connections."""

RPC_SHARE = 2
"""Divisor of the limit for the connections of Flight, or of a gRPC service."""


def raise_limit() -> None:
    """Raise the soft limit of open files to the hard one, at most `OPEN_MAX`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_MAX if hard == resource.RLIM_INFINITY else min(OPEN_MAX, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def connections_max(setting: int, share: int) -> int:
    """Return the most connections of a listener: its setting, or its share if less.

    Args:
        setting: Configured maximum.
        share: `HTTP_SHARE` or `RPC_SHARE`.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return setting if soft == resource.RLIM_INFINITY else max(1, min(setting, soft // share))
