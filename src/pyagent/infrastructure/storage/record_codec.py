"""Events as bytes: without the names that each record would repeat, and with large values kept beside them.

    checksum | [shape, value, value, ...]        a shape is a kind of event and the names of its fields, kept once

A record is a list in MessagePack behind a CRC-32; fields at its end that have their defaults are left out, and so is
the run; an agent and its parent are 0 where the step names them; times are microseconds, `at` since the run's epoch. A
shape belongs to the database: fields may come and go between releases. Values over 256 bytes are blobs, lists of
structs chains of blobs. What MessagePack cannot carry is carried as JSON, or named in its place, and the record is then
not exact.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from math import isfinite
from typing import Any, NamedTuple, cast

import msgspec
from msgspec.msgpack import Ext

from pyagent.core.fleet.events import Event
from pyagent.core.fleet.journal import JournalRecord
from pyagent.infrastructure.storage.blobs import Blobs
from pyagent.infrastructure.storage.database import Database

_INLINE_BYTES = 256
_CHECK_BYTES = 4
_TICKS = 1_000_000
_SECONDS = "seconds"
_STRUCT, _BLOB, _CHAIN, _JSON, _NAMED = 1, 2, 3, 4, 5
_SKIPPED = ("run",)
_SIMPLE = frozenset((str, int, bool, type(None)))
"""Types of values that are kept as they are."""
_STEP, _AGENT, _PARENT = 2, 3, "parent"
_STEP_AND_AGENT = ("step", "agent")
"""Second and third in each event that has both, after the shape and the time."""
_Shape = tuple[int, tuple[str, ...], tuple[object, ...], tuple[int, ...]]
"""A type's number, the names of its fields, their defaults, and the places of its floats."""


class Draft(NamedTuple):
    """An event's values, and all of them as one body; `is_small` bodies are records as they are."""

    values: list[object]
    body: bytes

    @property
    def is_small(self) -> bool:
        """Whether no value has to be put elsewhere."""
        return len(self.body) <= _INLINE_BYTES


class RecordCodec:
    """Encodes and decodes the records of a database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._blobs = Blobs(database)
        self._shape_of_type: dict[type[msgspec.Struct], _Shape] = {}
        self._names_of_shape: dict[int, list[str]] = {}
        self._encoder = msgspec.msgpack.Encoder(enc_hook=_named)

    # -- writing ------------------------------------------------------------------------------------------------------

    def draft(self, epoch: float, event: Event) -> Draft:
        """Return an event as it is encoded before large values are put elsewhere."""
        kind = type(event)
        values = self._values(event)
        values[1] = round((event.at - epoch) * _TICKS)
        _leave_out_names(self._shape_of_type[kind][1], values)
        try:
            body = self._encoder.encode(values)
        except Exception:  # noqa: BLE001 - outputs are of other people's types
            values = [_carried(value) for value in values]
            body = self._encoder.encode(values)
        return Draft(values, body)

    def record(self, run: int, draft: Draft) -> bytes:
        """Return a draft's record; what is large goes to the blobs of the run, in the transaction under way."""
        body = draft.body
        if not draft.is_small:
            shape, *values = draft.values
            body = self._encoder.encode([shape, *(self._outlined(run, value) for value in values)])
        return zlib.crc32(body).to_bytes(_CHECK_BYTES) + body

    def _values(self, struct: msgspec.Struct) -> list[object]:
        """Return a struct's shape and its values, without those at the end that have their defaults."""
        shape, names, defaults, zeros = self._shape(type(struct))
        values = [
            value if type(value := getattr(struct, name)) in _SIMPLE else _plain(name, value, self._values)
            for name in names
        ]
        for place in zeros:
            values[place] = values[place] or 0  # a number of one byte, where 0.0 is of nine
        while values and _is_same(values[-1], defaults[len(values) - 1]):
            values.pop()
        return [shape, *values]

    def _shape(self, kind: type[msgspec.Struct]) -> _Shape:
        if kind not in self._shape_of_type:
            fields = [field for field in msgspec.structs.fields(kind) if field.name not in _SKIPPED]
            fields.sort(key=lambda field: (field.name != "at", not field.required, field.name != _SECONDS))
            tag = str(kind.__struct_config__.tag or "")
            names = msgspec.json.encode([tag, *(field.encode_name for field in fields)]).decode()
            self._database.execute("INSERT OR IGNORE INTO shapes (names) VALUES (?)", (names,))
            [(shape,)] = self._database.rows("SELECT id FROM shapes WHERE names = ?", (names,))
            defaults = tuple(_plain(field.name, _default(field), self._values) for field in fields)
            defaults = tuple(0 if each == 0 and isinstance(each, float) else each for each in defaults)
            zeros = tuple(place for place, field in enumerate(fields) if field.type is float and place)
            self._shape_of_type[kind] = (cast("int", shape), tuple(field.name for field in fields), defaults, zeros)
        return self._shape_of_type[kind]

    def _outlined(self, run: int, value: object) -> object:
        """Return a value, or where it is large what stands for it."""
        encoded = self._encoder.encode(value)
        if len(encoded) <= _INLINE_BYTES:
            return msgspec.Raw(encoded)
        if isinstance(value, list) and all(isinstance(each, Ext) for each in cast("list[object]", value)):
            entries = [self._encoder.encode(each) for each in cast("list[object]", value)]
            return Ext(_CHAIN, self._blobs.put_chain(run, entries))
        return Ext(_BLOB, self._blobs.put(run, encoded))

    def forget(self) -> None:
        """Know no shapes any more: the transaction that kept them was taken back."""
        self._shape_of_type.clear()

    # -- reading ------------------------------------------------------------------------------------------------------

    def decode(self, run: str, epoch: float, number: int, record: bytes) -> JournalRecord | None:
        """Return a record; None when it is damaged, or of a kind that this release does not know."""
        body, named = record[_CHECK_BYTES:], list[object]()
        if zlib.crc32(body).to_bytes(_CHECK_BYTES) != record[:_CHECK_BYTES]:
            return None
        try:
            values = self._read(body, named)
            fields = _with_names({**self._named(cast("Sequence[object]", values)), "run": run})
            fields["at"] = epoch + fields["at"] / _TICKS
            return JournalRecord(number, msgspec.convert(fields, Event), is_exact=not named)
        except (ValueError, TypeError, LookupError, RecursionError):  # msgspec's are ValueErrors
            return None

    def _read(self, body: bytes, named: list[object]) -> object:
        def hook(code: int, data: memoryview) -> object:
            match code:
                case 1:
                    return self._named(cast("Sequence[object]", self._read(bytes(data), named)))
                case 2:
                    return self._read(self._blobs.get(bytes(data)), named)
                case 3:
                    return [self._read(entry, named) for entry in self._blobs.get_chain(bytes(data))]
                case 4:
                    return msgspec.json.decode(data)
                case _:
                    named.append(code)
                    return str(data, "utf-8", "replace")

        return msgspec.msgpack.decode(body, ext_hook=hook)

    def _named(self, values: Sequence[object]) -> dict[str, Any]:
        shape = cast("int", values[0])
        if shape not in self._names_of_shape:
            [(names,)] = self._database.rows("SELECT names FROM shapes WHERE id = ?", (shape,))
            self._names_of_shape[shape] = msgspec.json.decode(str(names), type=list[str])
        tag, *names = self._names_of_shape[shape]
        fields = dict(zip(names, values[1:], strict=False))
        if isinstance(seconds := fields.get(_SECONDS), int):
            fields[_SECONDS] = seconds / _TICKS
        return {"event": tag, **fields} if tag else fields


def _leave_out_names(names: Sequence[str], values: list[object]) -> None:
    """Put 0 for the agent and the parent where the step says them: `loop/4.noop` is `noop`'s, in `loop`."""
    if len(values) <= _AGENT or names[_STEP - 1 : _AGENT] != _STEP_AND_AGENT:
        return
    step = values[_STEP]
    if not isinstance(step, str):
        return
    if values[_AGENT] == _agent_in(step):
        values[_AGENT] = 0
    for place, name in enumerate(names[: len(values) - 1], 1):
        if name == _PARENT and values[place] == _parent_in(step):
            values[place] = 0


def _with_names(fields: dict[str, Any]) -> dict[str, Any]:
    """Return a record's fields with the names that `_leave_out_names` left out."""
    for name, find in (("agent", _agent_in), (_PARENT, _parent_in)):
        if type(fields.get(name)) is int:
            fields[name] = find(fields["step"])
    return fields


def _agent_in(step: str) -> str:
    return step.rpartition(".")[2]


def _parent_in(step: str) -> str:
    return step.rpartition("/")[0]


def _plain(name: str, value: object, values_of: Callable[[msgspec.Struct], list[object]]) -> object:
    """Return a struct without tag as its shape and values, also in a list; a time as a number; else the value."""
    if name == _SECONDS and isinstance(value, float) and isfinite(value):
        return round(value * _TICKS)
    if isinstance(value, msgspec.Struct):
        config = type(value).__struct_config__
        if config.tag is None and not config.array_like:
            return Ext(_STRUCT, msgspec.msgpack.encode(values_of(value), enc_hook=_named))
    elif isinstance(value, list | tuple) and value and isinstance(value[0], msgspec.Struct):
        return [_plain("", each, values_of) for each in cast("Sequence[object]", value)]
    return cast("object", value)


def _named(value: object) -> object:
    """Return what stands for a value of a type that no format carries: its own words."""
    return Ext(_NAMED, str(value).encode(errors="replace"))


def _carried(value: object) -> object:
    """Return a value as JSON where MessagePack cannot carry it, or what stands for it; a mapping keeps what it can."""
    try:
        msgspec.msgpack.encode(value, enc_hook=_named)
    except Exception:  # noqa: BLE001 - as above
        return _as_json(value)
    return value


def _as_json(value: object) -> object:
    try:
        return Ext(_JSON, msgspec.json.encode(value))
    except Exception:  # noqa: BLE001 - as above
        if isinstance(value, dict):
            items = cast("dict[object, object]", value).items()
            return {key: _carried(each) for key, each in items if isinstance(key, str)}
        return Ext(_NAMED, f"<a {type(value).__name__} that cannot be written>".encode())


def _is_same(value: object, default: object) -> bool:
    """Whether a value is its field's default. Only for equal types: other people's may compare oddly."""
    return type(value) is type(default) and value == default


def _default(field: Any) -> object:
    if field.default is not msgspec.NODEFAULT:
        return field.default
    return field.default_factory() if field.default_factory is not msgspec.NODEFAULT else msgspec.NODEFAULT
