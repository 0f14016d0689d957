"""The memory of a process, bounded by the kernel."""

import resource


def bound_memory(more: int) -> None:
    """Let the kernel refuse memory of this process beyond what it has now and so many bytes."""
    try:
        with open("/proc/self/status", encoding="ascii") as status:  # noqa: PTH123 - pathlib takes a while to import.
            kib = next(int(line.split()[1]) for line in status if line.startswith("VmData:"))
    except OSError:
        return  # Not Linux: DuckDB's own bound has to do.
    limit = kib * 1024 + more
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
