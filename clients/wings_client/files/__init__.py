"""Files of rows, read in batches of a topic's schema, however large the files are.

    from wings_client.files import open_file

    with open_file(Path("flights.csv")) as file:
        for part in file.parts(topic.schema):
            client.push(topic, part.batch)

A file may be JSON lines, JSON, CSV, Parquet or Arrow IPC, compressed or not (`formats`); several
readers may share one by sections (`sections`). A row that does not fit raises `SchemaMismatch`,
whose message begins with the file and the line or number of the row. Submodules are public
too: `wings ingest` uses `csv_rows`, `json_rows`, `json_integers` and `arrow_batches` to keep rows
that do not fit as text, and to choose the parts of a remote file that it downloads.
"""

from wings_client.files.formats import FileFormat, Section, compression_of, format_by_name
from wings_client.files.opened import OpenFile, infer_schema, open_file
from wings_client.files.parts import Part, PartCheck, Rows

__all__ = [
    "FileFormat",
    "OpenFile",
    "Part",
    "PartCheck",
    "Rows",
    "Section",
    "compression_of",
    "format_by_name",
    "infer_schema",
    "open_file",
]
