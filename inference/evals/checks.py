"""What an answer must pass. `check_of` reads and checks a check once; `run_check` asks a text. No check reads another's result.

{"type": "exact", "value": "Paris", "ignore_case": true}        value: a text, or a list of which one will do
{"type": "number", "value": 18, "tolerance": 0}                  the number after the last ####, else the last number
{"type": "contains", "value": ["a", "b"], "any": false}          all of them, or any
{"type": "regex", "pattern": "^yes", "ignore_case": true}        linear time: see patterns.py
{"type": "json_schema", "schema": {...}}                         the answer is JSON (a fence around it is allowed)
{"type": "instruction", "id": "en:punctuation:no_comma", "kwargs": {}}
Each may have "is_not": true, and passes then where it would not.
"""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from inference.evals.instruction_text import unfenced
from inference.evals.instructions import instruction_with
from inference.evals.number_answers import number_in
from inference.evals.patterns import pattern_of, schema_of

MAX_VALUES = 100
Judge = Callable[[str], str]
"""What is wrong with an answer, in a few words; empty: nothing."""


class BadCheck(ValueError):
    """Fix the check; its text says what is wrong."""


@dataclass(frozen=True)
class Check:
    kind: str
    judge: Judge


@dataclass(frozen=True)
class CheckResult:
    kind: str
    has_passed: bool
    reason: str


def check_of(spec: Any) -> Check:
    """Raises BadCheck, BadPattern, BadInstruction, all of them ValueErrors."""
    if not isinstance(spec, dict):
        raise BadCheck("a check is an object")
    made = _KINDS.get(spec.get("type", ""))
    if made is None:
        raise BadCheck(f"there is no check {str(spec.get('type'))[:50]!r}; there are {', '.join(_KINDS)}")
    make, fields = made
    unknown = sorted(spec.keys() - fields - {"type", "is_not"})
    if unknown:
        raise BadCheck(f"{spec['type']} has no {unknown[0][:50]!r}; it has {', '.join(sorted(fields))}")
    kind, judge = make(spec)
    if _truth(spec, "is_not"):
        return Check(f"not {kind}", lambda text: "" if judge(text) else "it does")
    return Check(kind, judge)


def run_checks(specs: list[dict[str, Any]], text: str) -> list[CheckResult]:
    """The specs are those that `check_of` took."""
    results = []
    for spec in specs:
        check = check_of(spec)
        reason = check.judge(text)
        results.append(CheckResult(check.kind, not reason, reason[:300]))
    return results


def _exact(spec: dict[str, Any]) -> tuple[str, Judge]:
    ignores_case = _truth(spec, "ignore_case")
    values = {_folded(value.strip(), ignores_case) for value in _texts(spec)}
    return "exact", lambda text: "" if _folded(text.strip(), ignores_case) in values else "it is another text"


def _number(spec: dict[str, Any]) -> tuple[str, Judge]:
    wanted, tolerance = _real(spec, "value"), _real(spec, "tolerance", default=0.0)
    if tolerance < 0:
        raise BadCheck("tolerance is not below 0")

    def judge(text: str) -> str:
        found = number_in(text)
        if found is None:
            return "there is no number in it"
        return "" if abs(found - wanted) <= tolerance + 1e-9 * abs(wanted) else f"it says {found:.15g}, not {wanted:.15g}"

    return "number", judge


def _contains(spec: dict[str, Any]) -> tuple[str, Judge]:
    ignores_case, needs_any = _truth(spec, "ignore_case"), _truth(spec, "any")
    values = _texts(spec)

    def judge(text: str) -> str:
        folded = _folded(text, ignores_case)
        missing = [value for value in values if _folded(value, ignores_case) not in folded]
        is_fine = len(missing) < len(values) if needs_any else not missing
        return "" if is_fine else f"{missing[0][:100]!r} is missing"

    return "contains", judge


def _regex(spec: dict[str, Any]) -> tuple[str, Judge]:
    if not isinstance(spec.get("pattern"), str) or not spec["pattern"]:
        raise BadCheck("regex needs a pattern")
    pattern = pattern_of(spec["pattern"], ignores_case=_truth(spec, "ignore_case"))
    return "regex", lambda text: "" if pattern.is_found_in(text) else "the pattern is not in it"


def _json_schema(spec: dict[str, Any]) -> tuple[str, Judge]:
    if "schema" not in spec:
        raise BadCheck("json_schema needs a schema")
    schema = schema_of(spec["schema"])

    def judge(text: str) -> str:
        try:
            value = json.loads(unfenced(text))
        except (ValueError, RecursionError):
            return "it is not JSON"
        return schema.error_of(value)

    return "json_schema", judge


def _instruction(spec: dict[str, Any]) -> tuple[str, Judge]:
    arguments = spec.get("kwargs") or {}
    if not isinstance(spec.get("id"), str) or not isinstance(arguments, dict):
        raise BadCheck("instruction needs an id, and kwargs is an object")
    instruction, given = instruction_with(spec["id"], arguments)
    # An answer that says nothing follows nothing, though it has no comma either.
    return spec["id"], lambda text: "" if text.strip() and instruction.check(text, **given) else "it does not"


_KINDS: dict[str, tuple[Callable[[dict[str, Any]], tuple[str, Judge]], frozenset[str]]] = {
    "exact": (_exact, frozenset({"value", "ignore_case"})),
    "number": (_number, frozenset({"value", "tolerance"})),
    "contains": (_contains, frozenset({"value", "ignore_case", "any"})),
    "regex": (_regex, frozenset({"pattern", "ignore_case"})),
    "json_schema": (_json_schema, frozenset({"schema"})),
    "instruction": (_instruction, frozenset({"id", "kwargs"})),
}


def _texts(spec: dict[str, Any]) -> list[str]:
    value = spec.get("value")
    values: list[Any] = value if isinstance(value, list) else [value]
    if not 1 <= len(values) <= MAX_VALUES or not all(isinstance(each, str) and each.strip() for each in values):
        raise BadCheck(f"value is a text, or a list of 1 to {MAX_VALUES} texts")
    return values


def _real(spec: dict[str, Any], name: str, *, default: float | None = None) -> float:
    value = spec.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise BadCheck(f"{name} is a number")
    return float(value)


def _truth(spec: dict[str, Any], name: str) -> bool:
    value = spec.get(name, False)
    if not isinstance(value, bool):
        raise BadCheck(f"{name} is true or false")
    return value


def _folded(text: str, ignores_case: bool) -> str:
    return text.casefold() if ignores_case else text
