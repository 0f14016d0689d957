"""Files of rows: read in batches of a topic's schema, however large they are."""

from wings_client.cli.files.formats import FileFormat
from wings_client.cli.files.opened import OpenFile, infer_schema, open_file

__all__ = ["FileFormat", "OpenFile", "infer_schema", "open_file"]
