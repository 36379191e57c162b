"""Shapes of values: each can check a value, say itself in words (docs/api.md) and as a JSON Schema (OpenAPI).

`take(value, path)` returns the value as it is to be sent on and raises BadRequest whose `param` is the path of what is
wrong (`messages[2].content`). Rules of all shapes: texts are never read as numbers or truths, truths never as numbers; a
whole number may be written with a fraction of zero (8.0) and is sent on as 8; null in an optional field of an object
counts as absent.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

import msgspec

from inference.gateway.openai_errors import BadRequest, UnknownParameter, UnsupportedParameter

Schema = dict[str, Any]
SHOWN_CHARS = 60


class Shape(Protocol):
    def fits(self, value: object) -> bool:
        """Is it of this kind at all? Chooses among the shapes of an Either."""

    def take(self, value: Any, path: str) -> Any:
        """Raises BadRequest."""

    def words(self) -> str: ...

    def schema(self) -> Schema: ...


class Fate(Enum):
    """What becomes of a field."""

    OURS = "understood by Headway"
    PASSED = "passed on"
    VLLM_ONLY = "passed on to vLLM, left out for other engines"
    IGNORED = "accepted and ignored"
    REFUSED = "refused"


@dataclass(frozen=True)
class Field:
    name: str
    shape: Shape
    text: str = ""
    """One sentence for the documents; for a refused field, what to do instead."""
    fate: Fate = Fate.PASSED
    is_required: bool = False


def wrong(path: str, must: str) -> BadRequest:
    return BadRequest(f"`{path}` must be {must}.", param=path)


@dataclass(frozen=True)
class Whole:
    low: int
    high: int

    def fits(self, value: object) -> bool:
        return type(value) is int or (type(value) is float and value.is_integer())

    def take(self, value: Any, path: str) -> int:
        if not self.fits(value) or not self.low <= value <= self.high:
            raise wrong(path, self.words())
        return int(value)

    def words(self) -> str:
        return f"a whole number from {self.low} to {self.high}"

    def schema(self) -> Schema:
        return {"type": "integer", "minimum": self.low, "maximum": self.high}


@dataclass(frozen=True)
class Number:
    low: float
    high: float
    is_above_low: bool = False
    """The lower bound itself is not taken."""

    def fits(self, value: object) -> bool:
        return type(value) in (int, float)

    def take(self, value: Any, path: str) -> float:
        is_in = self.fits(value) and self.low <= value <= self.high and not (self.is_above_low and value == self.low)
        if not is_in:
            raise wrong(path, self.words())
        number: float = value
        return number

    def words(self) -> str:
        return f"a number {'above' if self.is_above_low else 'from'} {self.low:g}, up to {self.high:g}"

    def schema(self) -> Schema:
        return {"type": "number", "exclusiveMinimum" if self.is_above_low else "minimum": self.low, "maximum": self.high}


@dataclass(frozen=True)
class Truth:
    def fits(self, value: object) -> bool:
        return isinstance(value, bool)

    def take(self, value: Any, path: str) -> bool:
        if not self.fits(value):
            raise wrong(path, self.words())
        return bool(value)

    def words(self) -> str:
        return "true or false"

    def schema(self) -> Schema:
        return {"type": "boolean"}


@dataclass(frozen=True)
class Text:
    """`max_chars` None: bounded by the body alone."""

    max_chars: int | None = None
    min_chars: int = 0

    def fits(self, value: object) -> bool:
        return isinstance(value, str)

    def take(self, value: Any, path: str) -> str:
        if not isinstance(value, str) or len(value) < self.min_chars or (self.max_chars and len(value) > self.max_chars):
            raise wrong(path, self.words())
        return value

    def words(self) -> str:
        if self.max_chars is not None:
            return f"a text of {self.min_chars} to {self.max_chars} characters"
        return f"a text of at least {self.min_chars} characters" if self.min_chars else "a text"

    def schema(self) -> Schema:
        bounds = {"minLength": self.min_chars or None, "maxLength": self.max_chars}
        return {"type": "string", **{name: bound for name, bound in bounds.items() if bound is not None}}


@dataclass(frozen=True)
class Word:
    """One of a few texts."""

    one_of: tuple[str, ...]

    def fits(self, value: object) -> bool:
        return isinstance(value, str)

    def take(self, value: Any, path: str) -> str:
        if not isinstance(value, str) or value not in self.one_of:
            raise wrong(path, self.words())
        return value

    def words(self) -> str:
        quoted = [f'"{word}"' for word in self.one_of]
        return quoted[0] if len(quoted) == 1 else f"{', '.join(quoted[:-1])} or {quoted[-1]}"

    def schema(self) -> Schema:
        return {"type": "string", "enum": list(self.one_of)}


@dataclass(frozen=True)
class Items:
    of: Shape
    high: int
    low: int = 0

    def fits(self, value: object) -> bool:
        return isinstance(value, list) and (not value or self.of.fits(value[0]))

    def take(self, value: Any, path: str) -> list[Any]:
        if not isinstance(value, list) or not self.low <= len(value) <= self.high:
            raise wrong(path, self.words())
        take = self.of.take
        return [take(item, f"{path}[{number}]") for number, item in enumerate(value)]

    def words(self) -> str:
        return f"a list of {self.low} to {self.high}: {self.of.words()}"

    def schema(self) -> Schema:
        bounds = {"minItems": self.low or None, "maxItems": self.high}
        return {"type": "array", "items": self.of.schema(), **{name: bound for name, bound in bounds.items() if bound}}


@dataclass(frozen=True)
class TokenIds:
    """As Items(Whole(0, max_id)), without a call for each of what may be a hundred thousand numbers."""

    high: int
    low: int = 1
    max_id: int = 2**31 - 1

    def fits(self, value: object) -> bool:
        return isinstance(value, list) and bool(value) and type(value[0]) in (int, float)

    def take(self, value: Any, path: str) -> list[int]:
        if not isinstance(value, list) or not self.low <= len(value) <= self.high:
            raise wrong(path, self.words())
        if set(map(type, value)) != {int}:
            return [Whole(0, self.max_id).take(item, f"{path}[{number}]") for number, item in enumerate(value)]
        if min(value) < 0 or max(value) > self.max_id:
            raise wrong(path, self.words())
        return value

    def words(self) -> str:
        return f"a list of {self.low} to {self.high} token ids (0 to {self.max_id})"

    def schema(self) -> Schema:
        item = {"type": "integer", "minimum": 0, "maximum": self.max_id}
        return {"type": "array", "items": item, "minItems": self.low, "maxItems": self.high}


@dataclass(frozen=True)
class Either:
    shapes: tuple[Shape, ...]

    def fits(self, value: object) -> bool:
        return any(shape.fits(value) for shape in self.shapes)

    def take(self, value: Any, path: str) -> Any:
        for shape in self.shapes:
            if shape.fits(value):
                return shape.take(value, path)
        raise wrong(path, self.words())

    def words(self) -> str:
        return ", or ".join(shape.words() for shape in self.shapes)

    def schema(self) -> Schema:
        return {"anyOf": [shape.schema() for shape in self.shapes]}


@dataclass(frozen=True)
class Table:
    """An object whose names are free."""

    key: Callable[[str], bool]
    key_words: str
    key_pattern: str
    of: Shape
    high: int

    def fits(self, value: object) -> bool:
        return isinstance(value, dict)

    def take(self, value: Any, path: str) -> dict[str, Any]:
        if not isinstance(value, dict) or len(value) > self.high or not all(map(self.key, value)):
            raise wrong(path, self.words())
        return {name: self.of.take(item, f"{path}.{name}") for name, item in value.items()}

    def words(self) -> str:
        return f"an object of up to {self.high}: {self.key_words} to {self.of.words()}"

    def schema(self) -> Schema:
        return {
            "type": "object",
            "maxProperties": self.high,
            "propertyNames": {"pattern": self.key_pattern},
            "additionalProperties": self.of.schema(),
        }


@dataclass(frozen=True)
class Document:
    """Any JSON object, bounded: a schema, a grammar, a template's arguments. `forbids`: names it must not hold."""

    max_bytes: int = 65_536
    max_depth: int = 32
    max_names: int = 1_000
    forbids: tuple[str, ...] = ()

    def fits(self, value: object) -> bool:
        return isinstance(value, dict)

    def take(self, value: Any, path: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise wrong(path, self.words())
        for name in self.forbids:
            if name in value:
                raise UnsupportedParameter(f"`{path}.{name}` cannot be given; leave it out.", param=f"{path}.{name}")
        if not self._is_small(value):
            raise wrong(path, self.words())
        return value

    def _is_small(self, value: dict[str, Any]) -> bool:
        level: list[Any] = [value]
        num_names = 0
        for _ in range(self.max_depth):
            num_names += sum(len(part) for part in level if isinstance(part, dict))
            children = (part.values() if isinstance(part, dict) else part for part in level)
            level = [child for group in children for child in group if isinstance(child, dict | list)]
            if not level:
                return num_names <= self.max_names and len(msgspec.json.encode(value)) <= self.max_bytes
        return False

    def words(self) -> str:
        bounds = f"{self.max_bytes} bytes, {self.max_depth} levels, {self.max_names} names"
        return f"an object of at most {bounds}" + (f", without {', '.join(self.forbids)}" if self.forbids else "")

    def schema(self) -> Schema:
        return {"type": "object", **({"properties": dict.fromkeys(self.forbids, False)} if self.forbids else {})}


class Anything:
    def fits(self, value: object) -> bool:
        return True

    def take(self, value: Any, path: str) -> Any:
        return value

    def words(self) -> str:
        return "anything"

    def schema(self) -> Schema:
        return {}


class Record:
    """An object with named fields. Fields without a name here are refused, or dropped where `drops_unknown`."""

    def __init__(self, *fields: Field, drops_unknown: bool = False) -> None:
        self.fields = fields
        self._by_name = {field.name: field for field in fields}
        self._required = [field.name for field in fields if field.is_required]
        self._drops_unknown = drops_unknown

    def fits(self, value: object) -> bool:
        return isinstance(value, dict)

    def take(self, value: Any, path: str) -> dict[str, Any]:
        """Without nulls, without ignored fields."""
        if not isinstance(value, dict):
            raise wrong(path, "an object")
        prefix = path + "." if path else ""
        taken: dict[str, Any] = {}
        for name, given in value.items():
            field = self._by_name.get(name)
            if field is None:
                if not self._drops_unknown:
                    raise _unknown(prefix, name)
            elif given is not None:
                if field.fate is Fate.REFUSED:
                    raise UnsupportedParameter(f"`{prefix}{name}` is not supported. {field.text}", param=prefix + name)
                if field.fate is not Fate.IGNORED:
                    taken[name] = field.shape.take(given, prefix + name)
        for name in self._required:
            if name not in taken:
                raise BadRequest(f"`{prefix}{name}` is missing.", param=prefix + name)
        return taken

    def words(self) -> str:
        return "an object: " + ", ".join(
            f"`{field.name}`{'' if field.is_required else '?'}" for field in self.fields if field.fate is not Fate.REFUSED
        )

    def schema(self) -> Schema:
        schema: Schema = {"type": "object", "properties": {field.name: _property(field) for field in self.fields}}
        if self._required:
            schema["required"] = list(self._required)
        return schema if self._drops_unknown else {**schema, "additionalProperties": False}


@dataclass(frozen=True)
class Variants:
    """Objects told apart by the text in one of their fields."""

    tag: str
    records: Mapping[str, Record]

    def fits(self, value: object) -> bool:
        return isinstance(value, dict)

    def take(self, value: Any, path: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise wrong(path, "an object")
        tag = value.get(self.tag)
        record = self.records.get(tag) if isinstance(tag, str) else None
        if record is None:
            raise wrong(f"{path}.{self.tag}", Word(tuple(self.records)).words())
        return record.take(value, path)

    def words(self) -> str:
        return f"objects whose `{self.tag}` is {Word(tuple(self.records)).words()}"

    def schema(self) -> Schema:
        schemas = [record.schema() for record in self.records.values()]
        return schemas[0] if len(schemas) == 1 else {"oneOf": schemas}


def _unknown(prefix: str, name: str) -> UnknownParameter:
    shown = prefix + name[:SHOWN_CHARS]
    return UnknownParameter(f"There is no parameter `{shown}`. docs/api.md lists what there is.", param=shown)


def _property(field: Field) -> Schema:
    schema = {"type": "null"} if field.fate is Fate.REFUSED else {} if field.fate is Fate.IGNORED else field.shape.schema()
    if schema and not field.is_required and field.fate is not Fate.REFUSED:
        schema = _or_null(schema)
    about = {
        Fate.OURS: "",
        Fate.PASSED: "",
        Fate.VLLM_ONLY: "For engines of kind vLLM; left out for others.",
        Fate.IGNORED: "Accepted and ignored.",
        Fate.REFUSED: "Not supported.",
    }[field.fate]
    description = " ".join(part for part in (field.text, about) if part)
    return {**schema, "description": description} if description else schema


def _or_null(schema: Schema) -> Schema:
    if "anyOf" in schema and len(schema) == 1:
        return {"anyOf": [*schema["anyOf"], {"type": "null"}]}
    if "enum" in schema or "oneOf" in schema or isinstance(schema.get("type"), list):
        return {"anyOf": [schema, {"type": "null"}]}
    return {**schema, "type": [schema["type"], "null"]}
