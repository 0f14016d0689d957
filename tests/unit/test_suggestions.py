"""What an error about an unknown name suggests."""

from wings_core.suggestions import LISTED_CHARACTERS_MAX, nearest, suggested


def test_names_like_the_one_asked_for_are_suggested() -> None:
    names = ["flights", "users", "Flights-2"]
    assert nearest("fligths", names) == ["flights", "Flights-2"]
    assert nearest("FLIGHTS-2", names) == ["Flights-2", "flights"]
    assert nearest("zzz", names) == []


def test_all_names_are_listed_where_there_is_room() -> None:
    assert suggested("topci", ["topic", "x\ny"]) == (
        "; did you mean 'topic'? There are topic, 'x\\ny'"
    )
    assert suggested("zzz", ["topic", "offset"]) == "; there are topic, offset"
    many = [f"column {number}" for number in range(LISTED_CHARACTERS_MAX)]
    assert suggested("column77", many).startswith("; did you mean 'column 77' or 'column ")
    assert suggested("zzz", many) == ""
    assert suggested("zzz", []) == ""
