"""Entry point of the statement process: runs `process.main`, without pandas."""

import sys

from wings_core.runtime import hide_pandas

if __name__ == "__main__":
    hide_pandas()
    from wings_core.sql_process.process import main

    main(sys.argv[1:])
