"""What a client presents."""

import pytest

from wings_client._access import TOKEN_VARIABLE, Access
from wings_core.errors import InvalidArgument


def test_a_token_as_a_file_holds_it_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Access.of("secret\n").token == "secret"
    monkeypatch.setenv(TOKEN_VARIABLE, "other\r\n")
    assert Access.of().token == "other"
    for wrong in ("", " \n", "two\nlines", "é"):
        with pytest.raises(InvalidArgument, match="printable ASCII"):
            Access.of(wrong)
