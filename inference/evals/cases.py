"""One case of an eval set: what is asked, and what the answer must pass. Kept as `as_plain` says it, checked when imported."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from inference.evals.checks import check_of

MAX_CASE_CHARS = 200_000
MAX_CHECKS = 50
MAX_TAGS = 20
MAX_ID_CHARS = 100
MAX_ANSWER_TOKENS = 32_768
DEFAULT_MAX_TOKENS = 512
ROLES = frozenset({"system", "developer", "user", "assistant"})
FIELDS = frozenset({"id", "messages", "prompt", "max_tokens", "temperature", "top_p", "seed", "stop", "checks", "tags"})
SAMPLING = ("temperature", "top_p", "seed", "stop")
"""What a case may say of how its answer is sampled; without: greedy."""


class BadCase(ValueError):
    """Fix the case; its text says what is wrong."""


@dataclass(frozen=True)
class Case:
    id: str
    messages: list[dict[str, str]]
    checks: list[dict[str, Any]]
    max_tokens: int = DEFAULT_MAX_TOKENS
    sampling: dict[str, Any] | None = None
    tags: tuple[str, ...] = ()

    def as_plain(self) -> dict[str, Any]:
        """What is stored, and what the set's digest is of."""
        return {
            "messages": self.messages,
            "max_tokens": self.max_tokens,
            "sampling": self.sampling or {},
            "checks": self.checks,
            "tags": list(self.tags),
        }


def case_of(row: Any, *, default_id: str) -> Case:
    """A line of our own form. Raises BadCase."""
    if not isinstance(row, dict):
        raise BadCase("a case is an object")
    unknown = sorted(row.keys() - FIELDS)
    if unknown:
        raise BadCase(f"a case has no field {unknown[0][:50]!r}; there are {', '.join(sorted(FIELDS))}")
    for text in _texts_in(row):
        _check_text(text)
    case = Case(
        id=_id_of(row.get("id", default_id)),
        messages=_messages_of(row),
        checks=_checks_of(row.get("checks")),
        max_tokens=_whole("max_tokens", row.get("max_tokens", DEFAULT_MAX_TOKENS), MAX_ANSWER_TOKENS),
        sampling={name: row[name] for name in SAMPLING if row.get(name) is not None},
        tags=_tags_of(row.get("tags", [])),
    )
    _check_sampling(case.sampling or {})
    return case


def _id_of(value: Any) -> str:
    text = str(value) if isinstance(value, str | int) and not isinstance(value, bool) else ""
    if not 1 <= len(text) <= MAX_ID_CHARS:
        raise BadCase(f"id is a text of 1 to {MAX_ID_CHARS} characters, or a number")
    return text


def _messages_of(row: dict[str, Any]) -> list[dict[str, str]]:
    if ("messages" in row) == ("prompt" in row):
        raise BadCase("a case has either messages or a prompt")
    if "prompt" in row:
        messages: Any = [{"role": "user", "content": row["prompt"]}]
    else:
        messages = row["messages"]
    if not isinstance(messages, list) or not messages:
        raise BadCase("messages is a list of at least one message")
    for message in messages:
        if not isinstance(message, dict) or message.keys() != {"role", "content"} or message["role"] not in ROLES:
            raise BadCase(f"a message has a role ({', '.join(sorted(ROLES))}) and a content")
        if not isinstance(message["content"], str) or not message["content"].strip():
            raise BadCase("a message's content (or the prompt) is a text that says something")
    return messages


def _checks_of(value: Any) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not 1 <= len(value) <= MAX_CHECKS:
        raise BadCase(f"checks is a list of 1 to {MAX_CHECKS} checks: a case without any says nothing")
    for number, check in enumerate(value, start=1):
        try:
            check_of(check)
        except ValueError as error:
            raise BadCase(f"check {number}: {error}") from None
    return value


def _tags_of(value: Any) -> tuple[str, ...]:
    is_list = isinstance(value, list) and len(value) <= MAX_TAGS
    if not is_list or not all(isinstance(tag, str) and 1 <= len(tag) <= 50 for tag in value):
        raise BadCase(f"tags is a list of at most {MAX_TAGS} texts of 1 to 50 characters")
    return tuple(dict.fromkeys(value))


def _check_sampling(sampling: dict[str, Any]) -> None:
    for name, most in (("temperature", 2.0), ("top_p", 1.0)):
        value = sampling.get(name, 0)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most:
            raise BadCase(f"{name} is a number from 0 to {most:g}")
    if sampling.get("top_p") == 0:
        raise BadCase("top_p is above 0")
    if "seed" in sampling:
        _whole("seed", sampling["seed"], 2**63 - 1, least=0)
    stop = sampling.get("stop", "x")
    stops = stop if isinstance(stop, list) else [stop]
    if not 1 <= len(stops) <= 4 or not all(isinstance(each, str) and each for each in stops):
        raise BadCase("stop is a text, or a list of at most 4")


def _whole(name: str, value: Any, most: int, *, least: int = 1) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise BadCase(f"{name} is a whole number from {least} to {most}")
    return value


def _texts_in(row: dict[str, Any]) -> Iterator[str]:
    """Every one, names of fields too; without recursion, as it may be nested as deep as a parser allows."""
    left: list[Any] = [row]
    while left:
        each = left.pop()
        if isinstance(each, str):
            yield each
        elif isinstance(each, dict):
            left += [*each.keys(), *each.values()]
        elif isinstance(each, list):
            left += each


def _check_text(text: str) -> None:
    """What no database keeps is refused here, where the line is known."""
    if "\0" in text or any(0xD800 <= ord(char) <= 0xDFFF for char in text):
        raise BadCase("a text has a null character or half a surrogate pair in it")
