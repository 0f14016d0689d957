"""RPCs of the metadata service, each declared once: as a method of the client's class.

    class RemoteStages(RemotePart, Stages):
        sweep = rpc("StageService.SweepStages", Stages.sweep, Calls.ONCE, stages_max=StepSize())

The method of the interface gives the types: its parameters are the fields of the request, and its
result the response. The client's method encodes the arguments, calls the service and decodes the
response; the service makes its handler from the same `Rpc`: it decodes the request, calls the
method of its own metadata and encodes the result.

A parameter is the field of its name, or of that name with the suffix `_us`. Fields that are named
or encoded in another way are given to `rpc`. None is an absent field, and the empty value of a
field that is never absent.

A list comes in pages. A page holds the items whose keys come next after that of its token, and ends
with a token of the last of them; the store finds them by their keys, so items may come and go
between two pages. To clients of other makes tokens are opaque.
"""

import base64
import binascii
import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property, wraps
from types import NoneType, UnionType
from typing import Any, Generic, Protocol, TypeVar, cast, get_args, get_origin, get_type_hints

from google.protobuf import descriptor_pool
from google.protobuf.descriptor import FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from wings_core.errors import InvalidArgument
from wings_core.metadata.interfaces import POSITIONS_MAX
from wings_core.metadata.maintenance import Finished, MaintenanceLease, TableSegment
from wings_core.metadata.remote.channel import CALL_SECONDS, ServiceChannel
from wings_core.model import Replacement
from wings_core.names import NamespaceName, TopicName
from wings_core.partitions import Partition, canonical_partition
from wings_core.protocol import messages
from wings_core.protocol.codec import Convert, codec_of, converter_of

KeyT = TypeVar("KeyT")

PAGE_SIZE_MAX = 10_000
"""Items in one answer, where they are small."""

Key = tuple[str, ...]
"""Tells items of a list apart, and orders them; each text by its bytes in UTF-8."""

OffsetKey = tuple[TopicName, Partition]


@dataclass(frozen=True, slots=True)
class KeyKind(Generic[KeyT]):
    """Kind of key that tells the items of a list apart, and how a token holds it."""

    texts: int
    """How many texts a key has."""
    texts_of: Callable[[KeyT], Key]
    key_of: Callable[..., KeyT]
    """Returns the key of so many texts; raises InvalidArgument where it is none."""

    def token(self, key: KeyT | None) -> str:
        """Return the token of the page after a key; of None, that of the first page."""
        if key is None:
            return ""
        return base64.urlsafe_b64encode(json.dumps(self.texts_of(key)).encode()).decode("ascii")

    def after(self, token: str) -> KeyT | None:
        """Return the key that a token was made of; None for that of the first page.

        Raises:
            InvalidArgument: `token` is not one of such a list.
        """
        texts = _texts_of(token, self.texts)
        try:
            return None if texts is None else self.key_of(*texts)
        except InvalidArgument as error:
            raise InvalidArgument(f"{token[:80]!r} is not a page token: {error}") from None


def _namespace_of(tenant: str, namespace: str) -> NamespaceName:
    return NamespaceName.parse(f"tenants/{tenant}/namespaces/{namespace}")


def _offset_key(tenant: str, namespace: str, topic: str, partition: str) -> OffsetKey:
    return (_namespace_of(tenant, namespace).topic(topic), canonical_partition(partition))


BY_TEXT: KeyKind[str] = KeyKind(1, lambda text: (text,), str)
BY_PARTITION: KeyKind[Partition] = KeyKind(1, lambda partition: (partition,), canonical_partition)
BY_NAMESPACE: KeyKind[NamespaceName] = KeyKind(
    2, lambda name: (name.tenant, name.namespace), _namespace_of
)
BY_OFFSET: KeyKind[OffsetKey] = KeyKind(
    4,
    lambda key: (key[0].namespace.tenant, key[0].namespace.namespace, key[0].topic, key[1]),
    _offset_key,
)
"""Key of the offset at which a named consumer reads on."""


class ListRequest(Protocol):
    """A request for a page of a list."""

    page_size: int
    """Most items wanted; 0: as many as the service likes."""
    page_token: str
    """Token from the page before; empty: the first page."""


STEP_MAX = 10_000
"""Pages purged, and stages swept, by one call: in one transaction, which others wait for."""

F = TypeVar("F", bound=Callable[..., Any])


class Calls(Enum):
    """How the client calls."""

    LOOK = "look"
    """Once; the call changes nothing."""
    ONCE = "once"
    """Once; the error of a lost response has the fact `in_doubt`."""
    REPEAT = "repeat"
    """Repeated while its response is lost, for up to `channel.DOUBT_SECONDS_MAX`."""


@dataclass(frozen=True, slots=True)
class Field:
    """The field of a parameter, where its name or its encoding is not that of the type."""

    name: str | None = None
    """None: the parameter's name."""
    encode: Callable[[Any], Any] | None = None
    decode: Callable[[Any], Any] | None = None


@dataclass(frozen=True, slots=True)
class StepSize:
    """A parameter that says how much one call does: at least 1, and at most `STEP_MAX`."""


@dataclass(frozen=True, slots=True)
class Fields:
    """The fields of a parameter that is encoded in several."""

    names: tuple[str, ...]
    encode: Callable[[Any], Mapping[str, Any]]
    decode: Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Paged(Generic[KeyT]):
    """A list of which one call returns a page; the parameters `after` and `*_max` bound it."""

    kind: KeyKind[KeyT]
    key: Callable[[Any], KeyT]
    size_max: int = PAGE_SIZE_MAX
    """Most keys in one response."""
    arrange: Callable[[list[Any]], Any] = list
    """Makes the client's result of the items of all pages."""


def positions(places: str) -> Fields:
    """Return the fields of partitions with a place in each, at most `POSITIONS_MAX`.

    Args:
        places: The field of the places.
    """

    def encode(given: Sequence[tuple[Partition, int]]) -> Mapping[str, Any]:
        return {
            "partitions": [partition for partition, _ in given],
            places: [messages.int64(place) for _, place in given],
        }

    def decode(request: Any) -> list[tuple[Partition, int]]:
        found = getattr(request, places)
        if len(request.partitions) != len(found):
            raise InvalidArgument(f"{places} has one value for each partition")
        if len(found) > POSITIONS_MAX:
            raise InvalidArgument(f"at most {POSITIONS_MAX} partitions are located at once")
        return list(zip(map(canonical_partition, request.partitions), found, strict=True))

    return Fields(("partitions", places), encode, decode)


def _encode_finished(finished: Finished | None) -> Mapping[str, Any]:
    if finished is None:
        return {}
    return {
        "finished_before": messages.int64(finished.before),
        "group_uuids": sorted(finished.groups),
    }


def _decode_finished(request: Any) -> Finished | None:
    if not request.HasField("finished_before"):
        return None
    return Finished(request.finished_before, frozenset(request.group_uuids))


def _canonical(decode: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a decoder that also makes the value's partition canonical."""
    return lambda message: replace(
        decode(message), partition=canonical_partition(message.partition)
    )


_BY_TYPE: Mapping[object, Field | Fields] = {
    Partition: Field(decode=canonical_partition),
    Replacement: Field(
        None,
        messages.REPLACEMENT.fields,
        _canonical(lambda each: messages.REPLACEMENT.decode(each)),
    ),
    TableSegment: Field(
        None,
        messages.TABLE_SEGMENT.fields,
        _canonical(lambda each: messages.TABLE_SEGMENT.decode(each)),
    ),
    MaintenanceLease: Fields(
        ("lease", "holder", "token"),
        lambda lease: {"lease": lease.name, "holder": lease.holder, "token": lease.token},
        lambda request: MaintenanceLease(request.lease, request.holder, request.token),
    ),
    Finished: Fields(("finished_before", "group_uuids"), _encode_finished, _decode_finished),
}
"""Parameters that are not encoded as everywhere, by type: requests are checked, responses not."""


class Rpc:
    """An RPC: the codec of its request and response, and how the client calls. Thread-safe.

    Args:
        name: The service and its method.
        function: The method of the interface.
        calls: How the client calls.
        call_seconds: Longest time of one call.
        paged: Pages of a list; None: one call answers all.
        answer: The conversion of the result to the response, where the types do not give it.
        arguments: The fields of parameters, by the parameters' names, where the types do not give
            them.

    Attributes:
        method: The RPC's descriptor.
    """

    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        calls: Calls,
        *,
        call_seconds: float = CALL_SECONDS,
        paged: Paged[Any] | None = None,
        answer: Convert | None = None,
        **arguments: Field | Fields | StepSize,
    ) -> None:
        self.method: MethodDescriptor = descriptor_pool.Default().FindMethodByName(
            f"wings.v1.{name}"
        )
        self.function = function
        self.paged = paged
        self._calls = calls
        self._seconds = call_seconds
        self._answer = answer
        self._given = arguments
        self._signature = inspect.signature(function)

    def call(
        self,
        channel: ServiceChannel,
        arguments: Sequence[Any],
        named: Mapping[str, Any],
        gone: Any = None,
    ) -> Any:
        """Call the service; returns what the method of the interface returns.

        Args:
            channel: To the service.
            arguments: Arguments by position.
            named: Arguments by name.
            gone: Result of a deletion whose repetition finds nothing.

        Raises:
            InvalidArgument: An argument cannot be sent.
        """
        bound = self._signature.bind(None, *arguments, **named)
        bound.apply_defaults()
        try:
            fields: dict[str, Any] = {}
            for parameter, argument in self._arguments.items():
                fields.update(argument.encode(bound.arguments[parameter]))
            request: Any = GetMessageClass(self.method.input_type)(**fields)
        except UnicodeEncodeError as error:
            raise InvalidArgument(
                f"the name or text {error.object[:80]!a} is not valid Unicode"
            ) from None
        except ValueError as error:
            raise InvalidArgument(f"{self.method.name} cannot be sent: {error}") from None
        stub: Any = channel.unary(self.method)
        encode, decode = self._result
        if self.paged is not None:
            request.page_token = self.paged.kind.token(bound.arguments["after"])
            items_max = bound.arguments[self._items_max]
            return self.paged.arrange(self._items(channel, request, self.paged.key, items_max))
        if self._calls is Calls.REPEAT:
            response = channel.call_repeatedly(
                stub, request, None if gone is None else encode(gone)
            )
        else:
            changes = self._calls is Calls.ONCE
            response = channel.call(stub, request, self._seconds, changes=changes)
        return decode(response)

    def arguments_of(self, request: Message) -> dict[str, Any]:
        """Return the arguments of the method, by name; for a list, without those of the page.

        Raises:
            InvalidArgument: The request is invalid.
        """
        return {name: argument.decode(request) for name, argument in self._arguments.items()}

    def page_arguments(self, after: object, items_max: int) -> dict[str, Any]:
        """Return the arguments for one page of a list."""
        return {"after": after, self._items_max: items_max}

    def response(self, result: Any) -> Any:
        """Encode the result of the method, or the items of a page."""
        return self._result[0](result)

    def _items(
        self,
        channel: ServiceChannel,
        request: Any,
        key: Callable[[Any], object],
        items_max: int | None,
    ) -> list[Any]:
        """Ask for the pages of a list, one after the other; blocks for as many calls.

        Args:
            channel: To the service.
            request: For the first page; its size, and the tokens of further ones, are set here.
            key: The key of an item; several may have the same.
            items_max: The items of the first so many keys; None: all.
        """
        found: list[Any] = []
        keys: set[object] = set()
        while items_max is None or len(keys) < items_max:
            request.page_size = (
                0 if items_max is None else min(items_max - len(keys), PAGE_SIZE_MAX)
            )
            page = channel.look(channel.unary(self.method), request)
            items = self._result[1](page)
            found += items
            keys.update(map(key, items))
            request.page_token = page.next_page_token
            if not request.page_token:
                break
        return found

    @cached_property
    def _hints(self) -> Mapping[str, Any]:
        return get_type_hints(self.function)

    @cached_property
    def _items_max(self) -> str:
        """The parameter that bounds how many items of a list are returned."""
        return next(name for name in self._signature.parameters if name.endswith("_max"))

    @cached_property
    def _arguments(self) -> Mapping[str, Fields]:
        targets = dict(self.method.input_type.fields_by_name)
        own = list(self._signature.parameters)[1:]
        if self.paged is not None:
            own = [name for name in own if name not in ("after", self._items_max)]
            del targets["page_size"], targets["page_token"]
        found = {
            name: _argument(name, self._hints[name], self.method, self._given.get(name))
            for name in own
        }
        left = set(targets) - {name for each in found.values() for name in each.names}
        assert not left, f"{self.method.full_name} lacks {sorted(left)}"
        return found

    @cached_property
    def _result(self) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
        """The functions that encode the result and decode the response."""
        message, hint = GetMessageClass(self.method.output_type), self._hints["return"]
        if self._answer is not None:
            assert self._answer.encode is not None
            assert self._answer.decode is not None
            return self._answer.encode, self._answer.decode
        if hint is NoneType:
            return lambda _: message(), lambda _: None
        codec = codec_of(hint)
        if codec is not None and codec.message is message:
            return codec.encode, codec.decode
        (target,) = (
            field for field in self.method.output_type.fields if field.name != "next_page_token"
        )
        field = _single(target, hint, None)
        kind = get_origin(hint)
        if kind is set:
            return (
                lambda result: message(**field.encode(sorted(result))),
                lambda response: set(field.decode(response)),
            )
        return lambda result: message(**field.encode(result)), field.decode


def _argument(
    name: str,
    hint: Any,
    rpc_method: MethodDescriptor,
    given: Field | Fields | StepSize | None,
) -> Fields:
    """Return the fields of a parameter."""
    found = given or _BY_TYPE.get(_item_type(hint))
    if isinstance(found, Fields):
        return found
    if isinstance(found, StepSize):
        return Fields((name,), lambda number: {name: number}, lambda request: _step(name, request))
    targets = rpc_method.input_type.fields_by_name
    codec = codec_of(hint)
    if codec is not None and codec.message.DESCRIPTOR is rpc_method.input_type:
        return Fields(tuple(targets), codec.fields, codec.decode)
    field = (found.name if found else None) or (name if name in targets else f"{name}_us")
    return _single(targets[field], hint, found)


def _item_type(hint: Any) -> Any:
    """Return the type of a value, without None, or of each item of a sequence."""
    if get_origin(hint) is UnionType:
        (hint,) = (kind for kind in get_args(hint) if kind is not NoneType)
    if get_origin(hint) in (list, set, tuple, Sequence):
        hint = get_args(hint)[0]
    return hint


def _single(target: FieldDescriptor, hint: Any, given: Field | None) -> Fields:
    """Return the one field of a parameter or result."""
    name, kind = target.name, _item_type(hint)
    convert = Convert(given.encode, given.decode) if given else Convert()
    if convert.encode is None and convert.decode is None:
        convert = converter_of(kind, target)
    encode, decode = convert.encode or _same, convert.decode or _same
    if target.is_repeated:
        return Fields(
            (name,),
            lambda values: {name: [encode(each) for each in values]},
            lambda message: [decode(each) for each in getattr(message, name)],
        )
    if get_origin(hint) is not UnionType:
        return Fields(
            (name,),
            lambda value: {name: encode(value)},
            lambda message: decode(getattr(message, name)),
        )

    def is_absent(message: Message) -> bool:
        return not (message.HasField(name) if target.has_presence else getattr(message, name))

    return Fields(
        (name,),
        lambda value: {name: None if value is None else encode(value)},
        lambda message: None if is_absent(message) else decode(getattr(message, name)),
    )


def _texts_of(token: str, texts: int) -> Key | None:
    """Return the key that a token was made of; None for the empty token of the first page.

    Args:
        token: Token given by a client.
        texts: How many the key has.

    Raises:
        InvalidArgument: It is no token of such a list.
    """
    if not token:
        return None
    try:
        found = json.loads(base64.urlsafe_b64decode(token.encode("ascii")))
    except (binascii.Error, ValueError):
        found = None
    key = cast("list[object]", found) if isinstance(found, list) else []
    if len(key) == texts and all(isinstance(text, str) and _is_storable(text) for text in key):
        return tuple(cast("list[str]", key))
    raise InvalidArgument(f"{token[:80]!r} is not a page token")


def _is_storable(text: str) -> bool:
    if "\0" in text:  # No name holds it; see `checks.check_text`.
        return False
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:  # JSON can carry half a surrogate pair.
        return False
    return True


def _same(value: Any) -> Any:
    return value


def _step(name: str, request: Message) -> int:
    """Return how much one call does.

    Raises:
        InvalidArgument: The request says less than one.
    """
    number: int = getattr(request, name)
    if number < 1:
        raise InvalidArgument(f"{name} is {number}, expected 1 or more")
    return min(number, STEP_MAX)


class RemotePart:
    """A part of a service's metadata.

    Args:
        channel: To the service.
    """

    def __init__(self, channel: ServiceChannel) -> None:
        self._channel = channel


def rpc(
    name: str,
    function: F,
    calls: Calls,
    *,
    call_seconds: float = CALL_SECONDS,
    paged: Paged[Any] | None = None,
    answer: Convert | None = None,
    **arguments: Field | Fields | StepSize,
) -> F:
    """Return the method of a `RemotePart` that makes an RPC; see `Rpc`."""
    declared = Rpc(
        name, function, calls, call_seconds=call_seconds, paged=paged, answer=answer, **arguments
    )

    @wraps(function)
    def method(self: RemotePart, *given: Any, **named: Any) -> Any:
        return declared.call(self._channel, given, named)  # pyright: ignore[reportPrivateUsage]

    method.__dict__["rpc"] = declared
    return cast("F", method)


def declared_rpcs(part: type[RemotePart]) -> Iterator[Rpc]:
    """Return the RPCs that a class declares, by `rpc` or as an `Rpc`."""
    for value in vars(part).values():
        found = value if isinstance(value, Rpc) else getattr(value, "rpc", None)
        if isinstance(found, Rpc):
            yield found
