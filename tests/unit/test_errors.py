"""Errors: one tree, stable codes, facts as attributes, and the way over a wire and back."""

import copy
import json
import pickle

import pytest
from tables import each

import wings_core.errors as errors
from wings_core.errors import (
    ERRORS_BY_CODE,
    Conflict,
    Internal,
    InvalidArgument,
    NotFound,
    OffsetMismatch,
    WingsError,
    error_from_json,
)

DESIGN_CODES = {
    "INVALID_ARGUMENT", "INVALID_NAME", "INVALID_TICKET", "INVALID_SCHEMA", "SCHEMA_MISMATCH",
    "PARTITION_REQUIRED", "PARTITION_NOT_ALLOWED", "PARTITION_TYPE_MISMATCH", "INVALID_FILTER",
    "NAMESPACE_NOT_FOUND", "TOPIC_NOT_FOUND", "GROUP_NOT_FOUND", "STAGE_NOT_FOUND",
    "ALREADY_EXISTS", "NAMESPACE_NOT_EMPTY", "OFFSET_MISMATCH", "OUT_OF_ORDER_SEQUENCE",
    "PUBLISH_FENCED", "FENCED_MEMBER", "INVALID_RECORD_STATE",
    "OFFSET_OUT_OF_RANGE", "BATCH_TOO_LARGE",
    "UNAUTHENTICATED", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "UNAVAILABLE",
    "STORAGE_CORRUPT", "INTERNAL", "TOKEN_NOT_FOUND", "INVALID_SQL",
}  # fmt: skip


def test_every_code_of_the_contract_has_its_class_and_no_other_exists() -> None:
    assert set(ERRORS_BY_CODE) == DESIGN_CODES
    for code, cls in ERRORS_BY_CODE.items():
        assert cls.code == code
        assert getattr(errors, cls.__name__) is cls


def test_the_tree_in_the_docstring_is_the_tree() -> None:
    drawn = {
        (parts[-2], parts[-1])
        for line in (errors.__doc__ or "").splitlines()
        if len(parts := line.replace("─", " ").replace("│", " ").split()) >= 2
        and parts[-1] in DESIGN_CODES
    }
    assert drawn == {(cls.__name__, code) for code, cls in ERRORS_BY_CODE.items()}


@each("cls", ERRORS_BY_CODE.values())
def test_an_error_survives_json_with_its_class_and_facts(cls: type[WingsError]) -> None:
    error = cls("what was wrong", next_offset=7, column="é", nested={"a": [1, None]})
    again = error_from_json(json.loads(json.dumps(error.to_json())))
    assert type(again) is cls
    assert again.message == str(again) == "what was wrong"
    assert again.facts == error.facts
    assert again.next_offset == 7


@each("cls", ERRORS_BY_CODE.values())
def test_an_error_survives_pickle_and_copy(cls: type[WingsError]) -> None:
    error = cls("what was wrong", next_offset=7)
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert type(again) is cls
        assert again.to_json() == error.to_json()


def test_json_begins_with_code_and_message_and_has_the_facts_beside_them() -> None:
    assert list(OffsetMismatch("m", next_offset=7).to_json().items()) == [
        ("code", "OFFSET_MISMATCH"),
        ("message", "m"),
        ("next_offset", 7),
    ]


def test_a_fact_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="OffsetMismatch has no fact 'next_offset'"):
        _ = OffsetMismatch("m").next_offset


def test_a_code_that_this_version_does_not_know_becomes_internal_and_is_told() -> None:
    error = error_from_json({"code": "NEW_CODE", "message": "m", "fact": 1})
    assert type(error) is Internal
    assert error.message == "NEW_CODE: m"
    assert error.fact == 1


@pytest.mark.parametrize("body", [{}, {"message": "m"}, {"code": "INTERNAL"}, {"code": None}])
def test_a_body_without_code_or_message_is_still_an_error(body: dict[str, object]) -> None:
    assert isinstance(error_from_json(body), Internal)


def test_facts_with_awkward_names_do_no_harm() -> None:
    body = {"code": "INVALID_ARGUMENT", "message": "m", "self": 1, "cls": 2, "args": 3, "facts": 4}
    error = error_from_json(body)
    assert error.to_json() == body
    assert error.message == "m"


def test_groups_of_errors_can_be_caught_together() -> None:
    assert issubclass(ERRORS_BY_CODE["INVALID_TICKET"], InvalidArgument)
    assert issubclass(ERRORS_BY_CODE["TOPIC_NOT_FOUND"], NotFound)
    assert issubclass(ERRORS_BY_CODE["OFFSET_MISMATCH"], Conflict)
    assert NotFound not in ERRORS_BY_CODE.values()
