"""Entry point of one of a server's processes: runs `child.main`, without pandas."""

from wings_core.runtime import hide_pandas

if __name__ == "__main__":
    hide_pandas()
    from wings_server.processes.child import main

    main()
