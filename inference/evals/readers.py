"""Eval sets as files: our own JSONL, and the shapes of GSM8K and IFEval. An error names its line."""

import json
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from inference.errors import BadEvalSet
from inference.evals.cases import MAX_CASE_CHARS, BadCase, Case, case_of
from inference.evals.number_answers import MARK, number_in

MAX_CASES = 20_000
MAX_FILE_BYTES = 64 * 1024 * 1024
GSM8K_ORDER = f"\n\nSolve this step by step. End with a line that has {MARK} and the answer, which is a number."
GSM8K_MAX_TOKENS = 512
IFEVAL_MAX_TOKENS = 1280


def read_cases(lines: Iterable[bytes], *, format: str = "auto", limit: int | None = None) -> list[Case]:  # noqa: A002
    """At most `limit` of them, the first ones. Raises BadEvalSet."""
    if format != "auto" and format not in FORMATS:
        raise BadEvalSet(f"a format is one of auto, {', '.join(FORMATS)}", param="format")
    cases: dict[str, Case] = {}
    seen: dict[str, int] = {}
    read: Callable[[Any, str], Case] | None = FORMATS.get(format)
    for number, row in _rows(lines):
        read = read or FORMATS[_format_of(row)]
        try:
            case = read(row, str(number))
        except BadCase as error:
            raise BadEvalSet(f"line {number}: {error}", param="file") from None
        if case.id in seen:
            raise BadEvalSet(f"line {number}: the id {case.id!r} is line {seen[case.id]}'s already", param="file")
        if len(cases) >= MAX_CASES:
            raise BadEvalSet(f"line {number}: a set has at most {MAX_CASES} cases", param="file")
        cases[case.id], seen[case.id] = case, number
        if len(cases) == limit:
            break
    if not cases:
        raise BadEvalSet("there is no case in it", param="file")
    return list(cases.values())


def _rows(lines: Iterable[bytes]) -> Iterator[tuple[int, Any]]:
    """(number of the line, object), blank lines left out."""
    read_bytes = 0
    for number, line in enumerate(lines, start=1):
        read_bytes += len(line)
        if read_bytes > MAX_FILE_BYTES:
            raise BadEvalSet(f"line {number}: a file has at most {MAX_FILE_BYTES // 1024 // 1024} MiB", param="file")
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError:
            raise BadEvalSet(f"line {number}: it is not UTF-8", param="file") from None
        if not text.strip():
            continue
        if len(text) > MAX_CASE_CHARS:
            raise BadEvalSet(f"line {number}: a case has at most {MAX_CASE_CHARS} characters", param="file")
        try:
            yield number, json.loads(text, parse_constant=_no_constant, parse_float=_finite)
        except ValueError as error:
            raise BadEvalSet(f"line {number}: it is not JSON: {error}", param="file") from None
        except RecursionError:
            raise BadEvalSet(f"line {number}: it is nested too deep", param="file") from None


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:20]} is too large a number")
    return value


def _format_of(row: Any) -> str:
    keys = row.keys() if isinstance(row, dict) else set()
    if {"question", "answer"} <= keys:
        return "gsm8k"
    return "ifeval" if "instruction_id_list" in keys else "jsonl"


def _own(row: Any, number: str) -> Case:
    return case_of(row, default_id=number)


def _gsm8k(row: Any, number: str) -> Case:
    question, answer = _text(row, "question"), _text(row, "answer")
    _, mark, rest = answer.rpartition(MARK)
    value = number_in(mark + rest) if mark else None
    if value is None:
        raise BadCase(f"answer has no number after {MARK}")
    case = {
        "id": row.get("id", number),
        "prompt": question + GSM8K_ORDER,
        "max_tokens": GSM8K_MAX_TOKENS,
        "checks": [{"type": "number", "value": value}],
    }
    return case_of(case, default_id=number)


def _ifeval(row: Any, number: str) -> Case:
    prompt, ids = _text(row, "prompt"), row.get("instruction_id_list")
    arguments = row.get("kwargs") or [{} for _ in ids or []]
    if not isinstance(ids, list) or not ids or not isinstance(arguments, list) or len(ids) != len(arguments):
        raise BadCase("instruction_id_list is a list of at least one id, and kwargs has an object for each")
    checks = [{"type": "instruction", "id": each, "kwargs": given} for each, given in zip(ids, arguments, strict=True)]
    case = {
        "id": row.get("key", number),
        "prompt": prompt,
        "max_tokens": IFEVAL_MAX_TOKENS,
        "checks": checks,
        "tags": sorted({str(each).rpartition(":")[0][:50] or str(each)[:50] for each in ids}),
    }
    return case_of(case, default_id=number)


def _text(row: Any, name: str) -> str:
    value = row.get(name) if isinstance(row, dict) else None
    if not isinstance(value, str) or not value.strip():
        raise BadCase(f"{name} is a text that says something")
    return value


FORMATS: dict[str, Callable[[Any, str], Case]] = {"jsonl": _own, "gsm8k": _gsm8k, "ifeval": _ifeval}
