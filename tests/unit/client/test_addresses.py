"""Which addresses a client is given, and which it uses."""

import pytest

from wings_client._access import TOKEN_VARIABLE, Access
from wings_client._errors import Connection, client_closed, lost
from wings_client._transport import ADDRESSES_MAX, Addresses, addresses_of
from wings_core.errors import Internal, InvalidArgument, ResourceExhausted, Unavailable

A, B, C = "grpc://a:1", "grpc://b:1", "grpc://c:1"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (A, (A,)),
        ("grpc://a:1,b:1, grpc://c:1", (A, B, C)),
        ([A, B], (A, B)),
        (["grpc://a:1,b:1", C, A], (A, B, C)),
        ("grpc+tls://a:1,b:1", ("grpc+tls://a:1", "grpc+tls://b:1")),
        ("a:1,b:1", ("a:1", "b:1")),
    ],
)
def test_addresses_come_in_a_string_or_a_list(
    given: str | list[str], expected: tuple[str, ...]
) -> None:
    assert addresses_of(given) == expected


@pytest.mark.parametrize(
    "given", ["", ",", "grpc://a:1,", [], [A, ""], [f"grpc://a:{n}" for n in range(101)]]
)
def test_what_names_no_address_an_empty_one_or_too_many_is_refused(given: str | list[str]) -> None:
    assert ADDRESSES_MAX == 100
    with pytest.raises(InvalidArgument, match=r"empty one|1 to 100"):
        addresses_of(given)


def test_the_next_address_is_used_once_the_current_one_fails() -> None:
    addresses = Addresses([A, B, C])
    first = addresses.current
    seen = [first]
    for _ in range(3):
        failed = addresses.current
        addresses.note(lost("gone", failed), failed)
        addresses.note(lost("gone", failed), failed)  # Heard of by two threads.
        seen.append(addresses.current)
    assert sorted(seen[:3]) == [A, B, C]
    assert seen[3] == first


def test_refusals_and_the_closing_of_the_client_are_no_reason_to_move() -> None:
    addresses = Addresses([A, B])
    first = addresses.current
    for error in (Internal("x"), ResourceExhausted("x"), client_closed(first)):
        addresses.note(error, first)
        assert addresses.current == first
    addresses.note(Unavailable("the server is stopping"), first)
    assert addresses.current != first


def test_clients_of_one_list_begin_at_different_addresses() -> None:
    assert {Addresses([A, B, C]).current for _ in range(200)} == {A, B, C}


def test_reads_are_spread_over_the_addresses_that_did_not_fail_lately() -> None:
    addresses = Addresses([A, B, C])
    assert sorted(addresses.for_read(number) for number in range(6)) == [A, A, B, B, C, C]
    unreachable = Unavailable("x", connection=Connection.UNREACHABLE.value)
    addresses.note(unreachable, B)
    assert {addresses.for_read(number) for number in range(6)} == {A, C}
    for each in (A, C):
        addresses.note(unreachable, each)
    assert {addresses.for_read(number) for number in range(6)} == {A, B, C}


# What a client presents. ##########################################################################


def test_a_token_as_a_file_holds_it_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Access.of("secret\n").token == "secret"
    monkeypatch.setenv(TOKEN_VARIABLE, "other\r\n")
    assert Access.of().token == "other"
    for wrong in ("", " \n", "two\nlines", "é"):
        with pytest.raises(InvalidArgument, match="printable ASCII"):
            Access.of(wrong)
