"""Messages: validation of external JSON into frozen models, with one clear sentence per error.

JSON is parsed strictly: UTF-8, an object, no duplicate keys, no NaN or infinity, no conversions. A
null is invalid unless a model gives it a meaning.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import is_dataclass
from typing import Annotated, Any, ClassVar, Self, cast, get_args, get_type_hints

import pyarrow as pa
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, PydanticCustomError

from wings_core.errors import InvalidArgument, WingsError, suggested
from wings_core.names import check_stage_id
from wings_core.times import parse_timestamp

MESSAGE_BYTES_MAX = 512
"""Longest message of an error, in bytes of UTF-8; longer ones do not survive the transport."""

JSON_BYTES_MAX = 4 * 1024 * 1024
"""Longest external JSON object, in bytes."""

INT64_MAX = (1 << 63) - 1

_INPUT_SHOWN_MAX = 60

_OWN = "wings"
"""Type of the errors of our own validators, whose messages are complete."""

_SENTENCES: Mapping[str, str] = {
    "bool_type": "must be true or false",
    "dict_type": "must be an object",
    "finite_number": "must be a finite number",
    "greater_than": "must be greater than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "int_from_float": "must be an integer",
    "int_type": "must be an integer",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "literal_error": "must be {expected}",
    "model_type": "must be an object",
    "string_too_long": "must be at most {max_length} characters long",
    "string_too_short": "must not be empty",
    "string_type": "must be a string",
    "too_long": "must have at most {max_length} entries",
    "too_short": "must not be empty",
    "tuple_type": "must be a list",
}
"""Our sentences for pydantic's errors by type; other types keep pydantic's text."""


class Message(BaseModel):
    """A JSON object on the wire; the base of all messages."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)

    nullable_keys: ClassVar[frozenset[str]] = frozenset({"partition"})
    """Keys that may be null; a null `partition` is that of a topic without a key."""

    @classmethod
    def parse(cls, raw: bytes, error: type[InvalidArgument], what: str) -> Self:
        """Parse a message.

        Args:
            raw: JSON in UTF-8.
            error: The class of error to raise.
            what: The kind of message, for errors: "ticket".

        Raises:
            InvalidArgument: An error of class `error`; the message names the key and the problem.
        """
        return cls.parse_object(load_object(raw, error, what), raw, error, what)

    @classmethod
    def parse_object(
        cls, found: Mapping[str, Any], raw: bytes, error: type[InvalidArgument], what: str
    ) -> Self:
        """Parse a message whose JSON was loaded by `load_object`; see `parse`."""
        for key, value in found.items():
            if value is None and key not in cls.nullable_keys and _names_field(cls, key):
                raise error(shortened(f"{what}: key {key!r} must not be null"))
        try:
            # From the bytes again: pydantic validates JSON more strictly than Python objects.
            return cls.model_validate_json(raw)
        except ValidationError as problem:
            raise error(shortened(f"{what}: {sentence(problem, cls)}")) from None

    def to_bytes(self) -> bytes:
        """Return the message as JSON, the inverse of `parse`."""
        return dump(self.model_dump(mode="json", by_alias=True, exclude_defaults=True))


class Ticket(Message):
    """A DoGet ticket; each model has a `kind`."""

    def to_bytes(self) -> bytes:
        """Return the ticket's bytes, the inverse of `tickets.parse_ticket`."""
        found = self.model_dump(mode="json", exclude_defaults=True)
        return dump({"kind": type(self).model_fields["kind"].default, **found})


def load_object(raw: bytes, error: type[InvalidArgument], what: str) -> dict[str, Any]:
    """Load a JSON object strictly.

    Raises:
        InvalidArgument: An error of class `error`: the text is not UTF-8, not JSON, too long, not
            an object, or has duplicate keys, NaN or infinities.
    """
    if len(raw) > JSON_BYTES_MAX:
        raise error(f"{what}: longer than {JSON_BYTES_MAX} bytes")
    try:
        # Decoded here, as `json` would accept UTF-16 and UTF-32 as well.
        found = _DECODER.decode(raw.decode("utf-8"))
    except UnicodeDecodeError:
        raise error(f"{what}: not UTF-8") from None
    except RecursionError:
        raise error(f"{what}: nested too deeply") from None
    except ValueError as problem:
        raise error(shortened(f"{what}: not valid JSON: {problem}")) from None
    if not isinstance(found, dict):
        raise error(f"{what}: must be a JSON object")
    return cast("dict[str, Any]", found)


_encoder = json.JSONEncoder(ensure_ascii=False, allow_nan=False)
"""Shared encoder; `json.dumps` would construct one for each call."""


def dump(value: object) -> bytes:
    """Return a value as JSON in UTF-8.

    Raises:
        InvalidArgument: A number is not finite, or a text is invalid Unicode: it has half a
            surrogate pair.
    """
    try:
        text = _encoder.encode(value)
    except ValueError as error:
        raise InvalidArgument(f"not JSON: {error}") from None
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidArgument(
            f"not valid Unicode: {error.object[error.start : error.end]!a:.40}"
        ) from None


def to_bytes(raw: "bytes | pa.Buffer | None") -> bytes:
    """Convert a buffer or bytes, either of which Flight may deliver, to bytes; empty for None."""
    if raw is None:
        return b""
    return raw.to_pybytes() if isinstance(raw, pa.Buffer) else bytes(raw)


def sentence(problem: ValidationError, model: type[BaseModel] | None = None) -> str:
    """Return a sentence for one error: `key 'min_messages': must be at least 1; got 0`.

    Args:
        problem: The errors; the first unknown key is reported, as it may explain the others, or
            else the first error.
        model: The validated model, whose keys are suggested; None for no suggestion.
    """
    errors = problem.errors(include_url=False)
    details = min(errors, key=lambda each: each["type"] != "extra_forbidden")
    if details["type"] == "json_invalid":
        return f"not valid JSON: {details.get('ctx', {}).get('error', details['msg'])}"
    key = _key(details["loc"])
    if details["type"] == "missing":
        return f"key {key!r} is required"
    if details["type"] == "extra_forbidden":
        *place, last = details["loc"]
        return f"unknown key {key!r:.80}{suggested(str(last), keys_at(model, place))}"
    if details["type"] == _OWN:
        return f"key {key!r:.80}: {details['msg']}" if key else details["msg"]
    return f"key {key!r:.80}: {_what_is_wrong(details)}; got {shown(details['input'])}"


def keys_at(model: type[Any] | None, place: Sequence[int | str]) -> list[str]:
    """Return the keys of the model at a path within another; empty if it is not a model."""
    for step in place:
        if isinstance(step, str) and model is not None:
            model = _model_in(_keys_of(model).get(step))
    return [] if model is None else list(_keys_of(model))


def _keys_of(model: type[Any]) -> dict[str, Any]:
    """Return the types of the keys of a model or dataclass."""
    if is_dataclass(model):
        return get_type_hints(model)
    fields: Mapping[str, FieldInfo] = model.model_fields
    return {field.alias or name: field.annotation for name, field in fields.items()}


def _model_in(annotation: object) -> type[Any] | None:
    """Return a type if it is a model, or the first model that it contains."""
    if isinstance(annotation, type) and (
        issubclass(annotation, BaseModel) or is_dataclass(annotation)
    ):
        return annotation
    return next(filter(None, map(_model_in, get_args(annotation))), None)


def shortened(text: str, bytes_max: int = MESSAGE_BYTES_MAX) -> str:
    """Return the text, truncated to `bytes_max` bytes of UTF-8."""
    encoded = text.encode("utf-8", "replace")
    if len(encoded) <= bytes_max:
        return encoded.decode("utf-8")
    return encoded[: bytes_max - 3].decode("utf-8", "ignore") + "..."


def shown(value: object) -> str:
    """Return a value as JSON for an error, truncated to `_INPUT_SHOWN_MAX` characters."""
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        text = type(value).__name__
    return text if len(text) <= _INPUT_SHOWN_MAX else text[: _INPUT_SHOWN_MAX - 3] + "..."


def problem_of(message: str) -> PydanticCustomError:
    """Return an error for validators to raise, with exactly this message.

    Halves of surrogate pairs, which JSON texts may have, are escaped, as pydantic rejects them.
    """
    text = message.encode("utf-8", "backslashreplace").decode("utf-8")
    return PydanticCustomError(_OWN, "{message}", {"message": text})


def in_one_sentence(value: object, handler: Callable[[object], object], expected: str) -> object:
    """Validate a value, raising one error where pydantic would raise one for each alternative."""
    try:
        return handler(value)
    except ValidationError:
        raise problem_of(f"must be {expected}; got {shown(value)}") from None


def accepted_by(check: Callable[[str], object]) -> Callable[[str], str]:
    """Return a validator that fails with the message of the `WingsError` that `check` raises."""

    def validate(text: str) -> str:
        try:
            check(text)
        except WingsError as error:
            raise problem_of(error.message) from None
        return text

    return validate


def check_distinct(values: tuple[str, ...]) -> tuple[str, ...]:
    """Validate that a list has no duplicate and no empty strings."""
    if "" in values:
        raise problem_of("must not contain an empty string")
    if len(set(values)) < len(values):
        twice = next(value for value in values if values.count(value) > 1)
        raise problem_of(f"contains {twice!r:.80} twice")
    return values


Timestamp = Annotated[str, AfterValidator(accepted_by(parse_timestamp))]
"""A time as text: RFC 3339 with a zone."""

OffsetNumber = Annotated[int, Field(ge=0, le=INT64_MAX)]

StageId = Annotated[str, AfterValidator(accepted_by(check_stage_id))]
"""The id of a stage."""

IDENTIFIER_CHARACTERS_MAX = 255
"""Longest name of a producer, consumer, group or owner."""

Identifier = Annotated[str, Field(min_length=1, max_length=IDENTIFIER_CHARACTERS_MAX)]
"""The name of a producer, consumer, group or owner, chosen by the client."""

MEMBER_CHARACTERS_MAX = 256
"""Longest name of a member of a share group."""

MemberName = Annotated[str, Field(min_length=1, max_length=MEMBER_CHARACTERS_MAX)]
"""The name of a member of a share group, chosen by the client."""


def _names_field(model: type[BaseModel], key: str) -> bool:
    return any(key == (field.alias or name) for name, field in model.model_fields.items())


def _unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"duplicate key {twice!r:.80}")
    return found


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    number = float(text)
    if number in (float("inf"), float("-inf")):
        raise ValueError(f"{text:.40} is too large")
    return number


_DECODER = json.JSONDecoder(
    object_pairs_hook=_unique, parse_constant=_no_constant, parse_float=_finite
)


def _key(location: tuple[int | str, ...]) -> str:
    """Return a path like `offsets[0].topic`."""
    path = ""
    for step in location:
        if isinstance(step, int):
            path += f"[{step}]"
        else:
            path += f".{step}" if path else step
    return path


def _what_is_wrong(details: ErrorDetails) -> str:
    template = _SENTENCES.get(details["type"])
    if template is None:
        return details["msg"].replace("Input should be", "must be")
    return template.format(**details.get("ctx", {}))
