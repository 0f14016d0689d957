"""Which statements are known to be bounded."""

from collections.abc import Iterator
from contextlib import closing

import pytest

from wings_core.sql.bounded import NAME_PARTS_MAX, is_bounded
from wings_core.sql.parser import Parsed, Parser
from wings_core.sql.statement import Statement, parse


@pytest.fixture(scope="module")
def parser() -> Iterator[Parser]:
    with closing(Parser()) as opened:
        yield opened


def parsed(parser: Parser, text: str, seconds: float = 0) -> Statement:
    def timed(text: str) -> Parsed:
        found = parser.parse(text, lambda: False)
        return Parsed(found.tree, found.kinds, seconds)

    return parse(text, timed)


def test_a_name_of_many_parts_is_not_planned_in_the_server(parser: Parser) -> None:
    for parts, bounded in ((NAME_PARTS_MAX, True), (NAME_PARTS_MAX + 1, False)):
        text = f"select n from t where {'.'.join('a' * parts)} = 1"
        assert is_bounded(parsed(parser, text), text, frozenset()) == bounded


def test_what_takes_long_to_parse_is_not_parsed_in_the_server(parser: Parser) -> None:
    for seconds, bounded in ((0.01, True), (1, False)):
        text = f"select n + {seconds} from t"
        assert is_bounded(parsed(parser, text, seconds), text, frozenset()) == bounded


def test_a_process_that_has_ended_is_replaced(parser: Parser) -> None:
    parser.parse("select 1", lambda: False)
    parser.close()
    assert not parser.parse("select 1", lambda: False).kinds
    assert parser.parse("drop table x", lambda: False).kinds == ("DROP",)
