"""Splitting typed SQL into statements, and quoting names."""

import re

_PARTS = re.compile(
    r"""
    '(?:[^']|'')*(?:'|\Z) | "(?:[^"]|"")*(?:"|\Z)   # a text, a name
    | --[^\n]*(?:\n|\Z) | /\*.*?(?:\*/|\Z)          # comments
    | \$(?P<tag>\w*)\$.*?(?:\$(?P=tag)\$|\Z)        # a text between dollars
    | (?P<end>;) | .
    """,
    re.VERBOSE | re.DOTALL,
)

_COMMENTS = ("--", "/*")

_BARE = re.compile(r"[a-z_][a-z0-9_]*")

KEYWORDS = (
    "all",
    "and",
    "any",
    "as",
    "asc",
    "between",
    "by",
    "case",
    "cast",
    "count",
    "desc",
    "describe",
    "distinct",
    "else",
    "end",
    "except",
    "exists",
    "false",
    "from",
    "full",
    "group",
    "having",
    "in",
    "inner",
    "intersect",
    "is",
    "join",
    "left",
    "like",
    "limit",
    "max",
    "min",
    "not",
    "null",
    "offset",
    "on",
    "or",
    "order",
    "over",
    "partition",
    "qualify",
    "right",
    "select",
    "sum",
    "summarize",
    "then",
    "true",
    "union",
    "using",
    "values",
    "when",
    "where",
    "window",
    "with",
)
"""Keywords, which are completed, and quoted as names."""


def split_statements(text: str) -> tuple[list[str], str]:
    """Return the statements terminated by `;`, without it, and the rest of the text.

    A `;` in a text, a quoted name or a comment does not terminate. Blank statements, and those with
    only comments, are skipped.
    """
    statements: list[str] = []
    start, says = 0, False
    for part in _PARTS.finditer(text):
        if part["end"]:
            if says:
                statements.append(text[start : part.start()].strip())
            start, says = part.end(), False
        elif part[0].strip() and not part[0].startswith(_COMMENTS):
            says = True
    return statements, text[start:] if says else ""


def is_open(text: str) -> bool:
    """Return whether a text, a quoted name, a comment or a statement is unterminated."""
    return bool(split_statements(text + "\n")[1]) or split_statements(text + "\n;x")[1] != "x"


def name_in_sql(name: str) -> str:
    """Return a name for a statement, quoted if needed."""
    if _BARE.fullmatch(name) and name not in (*KEYWORDS, "default"):
        return name
    return '"' + name.replace('"', '""') + '"'
