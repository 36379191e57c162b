"""Regular expressions and JSON schemas that anybody may have written: the one module that imports jsonschema_rs.

Its engine for patterns (Rust's `regex`) takes time linear in the text and refuses what would be large when compiled, so that
no pattern hangs a worker; the price is that look-around and back-references are refused too. References to other documents
are never fetched. Schemas have a bounded depth, as they are compiled by recursion.
"""

import json
from dataclasses import dataclass
from typing import Any

import jsonschema_rs

MAX_PATTERN_CHARS = 2_000
MAX_SCHEMA_CHARS = 64_000
MAX_DEPTH = 64
"""Of schemas, and of answers that are held against one."""
_PATTERNS = jsonschema_rs.RegexOptions()


class BadPattern(ValueError):
    """Fix the pattern, or the schema; its text says what is wrong."""


@dataclass(frozen=True)
class Pattern:
    """A regular expression, as JSON Schema's `pattern` has it: it may match anywhere."""

    validator: Any

    def is_found_in(self, text: str) -> bool:
        return bool(self.validator.is_valid(text))


@dataclass(frozen=True)
class Schema:
    validator: Any

    def error_of(self, value: Any) -> str:
        """What is wrong with it first, in a sentence; empty: nothing."""
        if not _is_shallow(value, MAX_DEPTH):
            return f"it is nested more than {MAX_DEPTH} deep"
        error = next(iter(self.validator.iter_errors(value)), None)
        if error is None:
            return ""
        place = "/".join(str(part) for part in error.instance_path)
        return f"{error.message[:200]}{f' (at {place[:100]})' if place else ''}"


def pattern_of(text: str, *, ignores_case: bool = False) -> Pattern:
    """Raises BadPattern."""
    if len(text) > MAX_PATTERN_CHARS:
        raise BadPattern(f"a pattern has at most {MAX_PATTERN_CHARS} characters")
    schema = {"type": "string", "pattern": f"(?i){text}" if ignores_case else text}
    try:
        return Pattern(jsonschema_rs.Draft202012Validator(schema, pattern_options=_PATTERNS, offline=True))
    except jsonschema_rs.ValidationError:
        raise BadPattern(
            f"{text[:80]!r} is no pattern that takes linear time: look-around, back-references and very large repeats are not"
        ) from None


def schema_of(schema: Any) -> Schema:
    """By the draft it names, else 2020-12. Raises BadPattern."""
    if not isinstance(schema, dict | bool):
        raise BadPattern("a schema is an object")
    if not _is_shallow(schema, MAX_DEPTH):
        raise BadPattern(f"a schema is nested at most {MAX_DEPTH} deep")
    if len(json.dumps(schema)) > MAX_SCHEMA_CHARS:
        raise BadPattern(f"a schema has at most {MAX_SCHEMA_CHARS} characters")
    try:
        return Schema(jsonschema_rs.validator_for(schema, pattern_options=_PATTERNS, offline=True))
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError) as error:
        raise BadPattern(f"this is no JSON schema: {str(error).splitlines()[0][:200]}") from None


def _is_shallow(value: Any, depth: int) -> bool:
    """Without recursion of its own, as it may be as deep as a parser allows."""
    level = [value]
    for _ in range(depth):
        level = [
            inner
            for each in level
            for inner in (each.values() if isinstance(each, dict) else each if isinstance(each, list) else ())
        ]
        if not level:
            return True
    return False
