"""Entry point of one of a server's processes: runs `child.main`, without numpy and pandas."""

from wings_core.runtime import hide_numpy

if __name__ == "__main__":
    hide_numpy()
    from wings_server.processes.child import main

    main()
