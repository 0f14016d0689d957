"""Arguments of public calls: checked by their names, and built into messages of the contracts.

A name means the same in every call. Bounds beyond the type of an argument, such as the longest name
or the largest number, are checked by the messages of `wings_core.contracts`.
"""

import base64
import inspect
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import is_dataclass
from datetime import UTC, datetime, timedelta
from functools import cache, wraps
from itertools import chain, repeat
from numbers import Integral, Real
from types import NoneType
from typing import Any, Literal, TypeVar, cast, get_args, get_type_hints

from pydantic import BaseModel, ValidationError

from wings_client._model import PartitionValue, Staged, Topic
from wings_core.contracts.messages import sentence, shortened
from wings_core.contracts.reads import TimestampOffset
from wings_core.contracts.tickets import ScanTicket
from wings_core.errors import InvalidArgument, InvalidTicket, did_you_mean
from wings_core.partitions import JsonScalar
from wings_core.times import duration_in, format_timestamp, moment_of, parse_timestamp

C = TypeVar("C", bound=Callable[..., Any])

Check = Callable[[Any], Any]
"""Returns the argument, or a copy of it; raises `InvalidArgument` without the parameter's name."""

NUMBER_MAX = 1e15
"""The largest number of seconds, or of anything else that is a float."""

_TEXTS = (str, bytes, bytearray)

M = TypeVar("M", bound=BaseModel)

OffsetValue = int | str | datetime
"""Where to begin: an offset; a negative number, which counts from the end of each partition;
`"earliest"`, `"latest"`; or a time with a zone, also as text of RFC 3339, or as `"-1h"`, that long
before now by this machine's clock: the first message at or after it, else the end of the log."""

TimeValue = datetime | str
"""A time with a zone, or its text as RFC 3339."""


def that_is(what: str, is_so: Callable[[Any], object]) -> Check:
    """Return the check of an argument that must be `what`, of which `is_so` is true."""

    def check(value: Any) -> Any:
        if not is_so(value):
            raise InvalidArgument(f"must be {what}; got {value!r:.80}")
        return value

    return check


def instance_of(what: str, *types: type) -> Check:
    """Return the check of an argument of one of `types`."""
    return that_is(what, lambda value: isinstance(value, types))


def one_of(*words: str) -> Check:
    """Return the check of an argument that is one of some words."""
    what = " or ".join(f'"{word}"' for word in words)
    return that_is(what, lambda value: isinstance(value, str) and value in words)


def list_of(what: str, *types: type) -> Check:
    """Return the check of a list of instances of `types`; an iterator is read."""

    def check(value: Any) -> Any:
        if isinstance(value, Iterable) and not isinstance(value, (*_TEXTS, Mapping)):
            found = tuple(cast("Iterable[Any]", value))
            if all(isinstance(each, types) for each in found):
                return found
        raise InvalidArgument(f"must be a list of {what}; got {value!r:.80}")

    return check


def _either(types: type | tuple[type, ...], check: Check, other: Check) -> Check:
    return lambda value: (check if isinstance(value, types) else other)(value)


def _made_on_use(make: Callable[[], Check]) -> Check:
    """Return a check that is made by its first use."""
    made = cache(make)
    return lambda value: made()(value)


# Most clients share no topic; these classes take as long to import as all that a read needs.
def _delivery() -> Check:
    from wings_client._share_model import Delivery

    return instance_of("a Delivery", Delivery)


def _entries() -> Check:
    from wings_core.contracts.share import AcknowledgementEntry

    return list_of("AcknowledgementEntry", AcknowledgementEntry)


def _time(value: Any) -> Any:
    wire_time(value)
    return value


def _partitions(value: Any) -> Any:
    if isinstance(value, str) and value == "all":
        return value
    if isinstance(value, Collection) and not isinstance(value, (*_TEXTS, Mapping)):
        return [PARTITION(each) for each in cast("Collection[Any]", value)]
    raise InvalidArgument(f'must be "all" or a list of partition values; got {value!r:.80}')


def _is_integer(value: Any) -> bool:
    return not isinstance(value, bool) and isinstance(value, Integral)


def _is_finite(value: Any) -> bool:
    is_number = not isinstance(value, bool) and isinstance(value, Real)
    return is_number and -NUMBER_MAX < cast("float", value) < NUMBER_MAX


def _is_named(value: Any) -> bool:
    is_mapping = isinstance(value, Mapping)
    return is_mapping and all(isinstance(name, str) for name in cast("Mapping[Any, Any]", value))


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, _TEXTS)


def _is_rows(value: Any) -> bool:
    return isinstance(value, Iterable) and not isinstance(value, (str, bytes))


def _is_offset(value: Any) -> bool:
    return _is_integer(value) or isinstance(value, (str, Mapping, Topic))


def _is_partition(value: Any) -> bool:  # A float is no value of a key, as the server says.
    return value is None or isinstance(value, (str, bytes, int)) or _is_finite(value)


TEXT = instance_of("a text", str)


COUNT = that_is("an integer", _is_integer)


FLAG = instance_of("True or False", bool)


NUMBER = that_is("a finite number", _is_finite)


NUMBER_OR_INFINITY = that_is(
    "a number", lambda value: _is_finite(value) or (isinstance(value, float) and value > 0)
)


PARTITION = that_is("an integer, a text, bytes, a boolean or None", _is_partition)


TIME = _either((datetime, str), _time, instance_of("a time with a zone", datetime))


OFFSET = that_is('an offset, "earliest", "latest" or a time with a zone', _is_offset)


PARAMETERS = that_is("a list of values, or a mapping of them by name", _is_list)


NAMED = that_is("a mapping by name", _is_named)


PEM = instance_of("a file's path, or its bytes, in PEM", str, bytes, os.PathLike)


TOPIC = instance_of("a topic's name or a Topic", str, Topic)


CHECKS: dict[str, Check] = {
    name: check
    for check, names in [
        (TEXT, "after consumer filter instance member name namespace partition_key prefix"),
        (TEXT, "producer_id reason source stage_id text token writer"),
        (FLAG, "ack discover if_not_exists system_columns wait"),
        (COUNT, "attempts batch batch_bytes batch_rows concurrency count count_max end_offset"),
        (COUNT, "member_epoch expected_offset limit max_messages min_messages parallel reads_max"),
        (COUNT, "schema_version sequence splits window_batches window_bytes"),
        (NUMBER, "age_seconds backoff backoff_max delay delay_max interval_seconds linger_ms"),
        (NUMBER, "poll_timeout session"),
        (NUMBER, "rate reconnect_seconds seconds seconds_max stale_seconds stall_timeout timeout"),
        (_either(bool, FLAG, NUMBER), "auto_commit auto_renew"),
        (_either(bool, FLAG, COUNT), "prefetch"),
        (_either(bool, FLAG, TEXT), "group"),
        (TIME, "timestamp"),
        (TOPIC, "dlq_topic topic"),
        (PARTITION, "partition"),
        (_partitions, "partitions"),
        (list_of("names", str), "columns nullable"),
        (list_of("ids of shards", str), "shards"),
        (list_of("ids of stages, or of Staged", str, Staged), "stages"),
        (_made_on_use(_entries), "entries"),
        (NAMED, "claims config tables"),
        (instance_of("a mapping by partition value", Mapping), "offsets"),
        (PEM, "tls_ca tls_cert tls_key"),
        (that_is("a function", callable), "handler on_assigned on_end on_reply on_revoked"),
        (_made_on_use(_delivery), "delivery"),
        (instance_of("a ScanTicket", ScanTicket), "ticket"),
        (one_of("row", "batch"), "each"),
        (one_of("error", "skip"), "on_data_loss"),
        (one_of("end", "continue"), "on_error"),
        (_either(datetime, _time, OFFSET), "offset start to"),
        (_either(str, TEXT, list_of("addresses", str)), "endpoint"),
        (_either(Mapping, NAMED, PARAMETERS), "parameters"),
        (that_is("an iterable of rows", _is_rows), "rows"),
    ]
    for name in names.split()
}
"""The checks by the name of the parameter."""


UNCHECKED = frozenset(
    {"add", "catalog", "data", "row", "schema", "self", "sentinel", "state", "widen"}
)
"""Parameters that take many kinds of objects: refused where they are used."""


def check_of(call: str, name: str) -> Check:
    """Return the check of one parameter, whose error names it and the call."""
    return _argument(call, name, CHECKS[name])


def _argument(call: str, name: str, check: Check, *, is_optional: bool = False) -> Check:
    def argument(value: Any) -> Any:
        if value is None and is_optional:
            return None
        try:
            return check(value)
        except InvalidArgument as error:
            raise InvalidArgument(shortened(f"{call}: {name}: {error.message}")) from None

    return argument


def checked_with(**more: Check) -> Callable[[C], C]:
    """Return a decorator that checks the arguments of a function, or of a class's public methods.

    A dataclass is checked when it is made. A parameter takes None where that is its default.

    Args:
        more: Checks by the name of the parameter, before those of `CHECKS`.
    """
    checks = CHECKS | more

    def decorate(target: C) -> C:
        if not isinstance(target, type):
            return cast("C", _checked(target, target.__name__, checks))
        if is_dataclass(target):
            target.__init__ = _checked(target.__init__, target.__name__, checks)
        for name, method in list(vars(target).items()):
            is_done = hasattr(method, "__wrapped__")
            if inspect.isfunction(method) and not name.startswith("_") and not is_done:
                setattr(target, name, _checked(method, name, checks))
        return cast("C", target)

    return decorate


checked = checked_with()
"""Checks the arguments of a function, or of a class's public methods; see `checked_with`."""


def _checked(call: Any, label: str, checks: Mapping[str, Check]) -> Any:
    parameters = inspect.signature(call).parameters.values()
    arguments = {
        each.name: _argument(label, each.name, checks[each.name], is_optional=each.default is None)
        for each in parameters
        if each.name not in UNCHECKED and each.kind is not each.VAR_KEYWORD
    }
    options = [hint for each in parameters for hint in _options_of(each).items()]
    for name, hint in options:
        is_optional = NoneType in get_args(hint)
        arguments[name] = _argument(label, name, checks[name], is_optional=is_optional)
    own = [each.name for each in parameters if each.kind is not each.VAR_KEYWORD]
    known = [*own, *(name for name, _ in options)]
    if not arguments:
        return call
    positional = [
        arguments.get(each.name, _as_it_is)
        for each in parameters
        if each.kind is each.POSITIONAL_OR_KEYWORD
    ]

    @wraps(call)
    def checked_call(*args: Any, **keys: Any) -> Any:
        # Python itself refuses arguments that are too many.
        taken = [
            check(value)
            for check, value in zip(chain(positional, repeat(_as_it_is)), args, strict=False)
        ]
        # Without options, Python itself refuses an unknown one.
        unknown = next((name for name in keys if name not in known), None) if options else None
        if unknown is not None:
            hint = did_you_mean(unknown, known)
            raise TypeError(f"{label}() got an unexpected keyword argument {unknown!r}{hint}")
        keys = {name: arguments.get(name, _as_it_is)(value) for name, value in keys.items()}
        return call(*taken, **keys)

    if not inspect.iscoroutinefunction(call):
        return checked_call

    @wraps(call)
    async def checked_coroutine(*args: Any, **keys: Any) -> Any:
        return await checked_call(*args, **keys)

    return checked_coroutine


def _options_of(parameter: inspect.Parameter) -> dict[str, Any]:
    """Return the types of the keyword arguments of `**options: Unpack[…]`, by name."""
    if parameter.kind is not parameter.VAR_KEYWORD:
        return {}
    (keywords,) = get_args(parameter.annotation)
    return get_type_hints(keywords)


def _as_it_is(value: Any) -> Any:
    return value


def build(
    model: type[M], what: str, /, *, error: type[InvalidArgument] = InvalidArgument, **keys: Any
) -> M:
    """Build a message; keys that are None are left out.

    Raises:
        InvalidArgument: Of class `error`; names the key and the problem.
    """
    given = {key: value for key, value in keys.items() if value is not None}
    try:
        return model(**given)
    except ValidationError as problem:
        raise error(shortened(f"{what}: {sentence(problem, model)}")) from None


def wire_partition(value: PartitionValue) -> JsonScalar:
    """Return a partition value in its wire form: bytes as base64."""
    return base64.b64encode(value).decode("ascii") if isinstance(value, bytes) else value


def offset_of(text: str) -> Literal["earliest", "latest"] | datetime:
    """Parse the text of an offset: a word, a time with a zone, or a time before now, like `-1h`.

    Raises:
        InvalidTicket: It is none of these.
    """
    if text == "earliest" or text == "latest":
        return text
    try:
        if text[:1] == "-" and not text[-1].isdigit():  # A plain number is an offset from the end.
            ago_ms = duration_in("ms", text[1:])
            if ago_ms is not None:
                return datetime.now(UTC) - timedelta(milliseconds=ago_ms)
        return moment_of(parse_timestamp(text, up=True))
    except (InvalidArgument, OverflowError):
        raise InvalidTicket(
            f"{text!r:.80} is not an offset: expected a number, earliest, latest, a time with a "
            "zone, like 2026-11-20T12:00:00Z, or one before now, like -30m, -1h or -7d"
        ) from None


def wire_offset(value: OffsetValue) -> int | str | TimestampOffset:
    """Return an offset in its wire form: numbers and words as they are, times wrapped.

    Raises:
        InvalidTicket: A text is no word and no time.
    """
    if isinstance(value, str):
        value = offset_of(value)
    if isinstance(value, datetime):
        return TimestampOffset(timestamp=wire_time(value))
    return value


def wire_time(value: TimeValue) -> str:
    """Return a time as RFC 3339 in UTC.

    Raises:
        InvalidArgument: Without a zone, or not RFC 3339, or outside of the years 1 to 9999.
    """
    if isinstance(value, str):
        return format_timestamp(parse_timestamp(value))
    if value.tzinfo is None:
        raise InvalidArgument(f"the time {value.isoformat()} has no zone: give one, like UTC")
    try:
        utc = value.astimezone(UTC)
    except (OverflowError, ValueError):
        raise InvalidArgument(
            f"the time {value.isoformat()} is outside of the years 1 to 9999 of UTC"
        ) from None
    return utc.isoformat(timespec="microseconds").replace("+00:00", "Z")
