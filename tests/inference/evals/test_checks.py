"""What an answer must pass, and what is refused at import."""

from typing import Any

import pytest

from inference.evals.checks import check_of, run_checks
from inference.evals.number_answers import number_in


def passes(spec: dict[str, Any], text: str) -> bool:
    (result,) = run_checks([spec], text)
    assert bool(result.reason) is not result.has_passed
    return result.has_passed


def test_exact_is_the_whole_text_but_for_blanks_around_it() -> None:
    spec = {"type": "exact", "value": ["Paris", "Lutetia"]}
    assert passes(spec, "  Paris\n")
    assert passes(spec, "Lutetia")
    assert not passes(spec, "Paris.")
    assert not passes(spec, "paris")
    assert passes(spec | {"ignore_case": True}, "paris")


def test_contains_wants_all_or_any() -> None:
    spec = {"type": "contains", "value": ["red", "blue"]}
    assert passes(spec, "a red and a blue one")
    assert not passes(spec, "a red one")
    assert passes(spec | {"any": True}, "a red one")
    assert not passes(spec | {"any": True}, "a green one")


def test_a_check_may_be_turned_round() -> None:
    spec = {"type": "contains", "value": "sorry", "is_not": True}
    assert passes(spec, "Here you are")
    assert not passes(spec, "I am sorry")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("That makes 7 apples, so 3 + 4 = 7.\n#### 18", 18),
        ("#### 5\nno, wait\n#### $1,234.50", 1234.5),
        ("The answer is **-12**.", -12),
        ("He pays $70,000 in 3 years. So: $70,000.", 70000),
        ("It is 18.", 18),
        ("x2 is not a number but 3 is, v1.2.3 is not", 3),
        ("#### none\nwell, 4", 4),
        ("There is none", None),
        ("", None),
        ("9" * 5000, None),
    ],
)
def test_the_number_of_an_answer(text: str, value: float | None) -> None:
    assert number_in(text) == value


def test_number_allows_a_tolerance() -> None:
    assert passes({"type": "number", "value": 0.333, "tolerance": 0.001}, "about 0.3333")
    assert not passes({"type": "number", "value": 0.333}, "about 0.3333")


def test_json_schema_takes_a_fence_around_the_answer() -> None:
    schema = {"type": "object", "required": ["city"], "properties": {"city": {"type": "string"}}}
    spec = {"type": "json_schema", "schema": schema}
    assert passes(spec, '```json\n{"city": "Oslo"}\n```')
    assert not passes(spec, '{"city": 3}')
    assert not passes(spec, 'Sure: {"city": "Oslo"}')
    assert not passes(spec, "[" * 100_000), "nested deeper than any parser allows"


def test_a_hostile_pattern_takes_linear_time() -> None:
    """It ends at all: with a backtracking engine each of these takes longer than the age of the universe."""
    text = "a" * 100_000 + "b"
    for pattern in ("(a+)+$", "(a|a)*c", "(a|aa)+$", "^(([a-z])+.)+[A-Z]([a-z])+$"):
        assert not passes({"type": "regex", "pattern": pattern}, text)
        schema = {"type": "string", "pattern": pattern}
        assert not passes({"type": "json_schema", "schema": schema}, f'"{text}"')


@pytest.mark.parametrize("pattern", ["(?=a)b", r"(a)\1", "(a{1000}){1000}", "(", "", "a" * 3000])
def test_a_pattern_that_cannot_be_held_to_linear_time_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="pattern"):
        check_of({"type": "regex", "pattern": pattern})


def deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "null"}
    for _ in range(levels):
        schema = {"not": schema}
    return schema


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "http://127.0.0.1:1/never-fetched"},
        {"$ref": "file:///etc/passwd"},
        {"type": "nope"},
        {"pattern": "(?=x)"},
        deep(100),
        deep(50_000),
        "text",
        {"enum": ["x" * 70_000]},
    ],
)
def test_a_schema_that_fetches_or_is_none_is_refused(schema: Any) -> None:
    with pytest.raises(ValueError, match="schema"):
        check_of({"type": "json_schema", "schema": schema})


def test_a_schema_that_refers_to_itself_ends() -> None:
    lists = {"$ref": "#/$defs/list", "$defs": {"list": {"type": "array", "items": {"$ref": "#/$defs/list"}}}}
    spec = {"type": "json_schema", "schema": lists}
    assert passes(spec, "[" * 60 + "]" * 60)
    assert not passes(spec, "[" * 900 + "]" * 900)
    assert passes({"type": "json_schema", "schema": {"$ref": "#"}}, "1")


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ({"type": "vibes"}, "there is no check 'vibes'"),
        ({}, "there is no check"),
        ("exact", "is an object"),
        ({"type": "exact"}, "value is a text"),
        ({"type": "exact", "value": "a", "colour": 1}, "has no 'colour'"),
        ({"type": "exact", "value": "a", "is_not": "yes"}, "is_not is true or false"),
        ({"type": "number", "value": "18"}, "value is a number"),
        ({"type": "number", "value": 1, "tolerance": -1}, "tolerance is not below 0"),
        ({"type": "contains", "value": []}, "value is a text"),
        ({"type": "instruction", "id": "en:sing_it", "kwargs": {}}, "there is no instruction 'en:sing_it'"),
        ({"type": "instruction", "id": "keywords:existence", "kwargs": {}}, "needs 'keywords'"),
        ({"type": "instruction", "id": "punctuation:no_comma", "kwargs": {"n": 1}}, "takes no 'n'"),
        (
            {"type": "instruction", "id": "length_constraints:number_words", "kwargs": {"relation": "about", "num_words": 3}},
            "relation of length_constraints:number_words is one of",
        ),
        ({"type": "instruction", "id": "language:response_language", "kwargs": {"language": "xx"}}, "none that we tell apart"),
    ],
)
def test_a_check_that_cannot_be_asked_is_refused_with_what_is_wrong(spec: Any, says: str) -> None:
    with pytest.raises(ValueError) as refused:
        check_of(spec)
    assert says in str(refused.value)
