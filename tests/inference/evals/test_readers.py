"""Files of cases: three shapes, errors by line."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from inference.errors import BadEvalSet
from inference.evals.readers import read_cases

CHECK = {"type": "exact", "value": "ok"}


def lines(*rows: Any) -> list[bytes]:
    return [(row if isinstance(row, str) else json.dumps(row)).encode() + b"\n" for row in rows]


def test_our_own_shape() -> None:
    row = {
        "id": "a",
        "messages": [{"role": "system", "content": "Be short"}, {"role": "user", "content": "Say ok"}],
        "max_tokens": 5,
        "temperature": 0.5,
        "checks": [CHECK],
        "tags": ["short", "short"],
    }
    first, second = read_cases([b"\n", *lines(row, {"prompt": "Say ok", "checks": [CHECK]})])
    assert (first.id, first.max_tokens, first.sampling, first.tags) == ("a", 5, {"temperature": 0.5}, ("short",))
    assert second.id == "3", "what has no id is called by its line"
    assert second.messages == [{"role": "user", "content": "Say ok"}]
    assert second.sampling == {}


def test_gsm8k() -> None:
    answer = "He has 2+3=<<2+3=5>>5.\n#### 1,205"
    (case,) = read_cases(lines({"question": "How many?", "answer": answer}))
    assert case.checks == [{"type": "number", "value": 1205.0}]
    assert case.messages[0]["content"].startswith("How many?\n")
    with pytest.raises(BadEvalSet, match="line 1: answer has no number after ####"):
        read_cases(lines({"question": "How many?", "answer": "five"}))


def test_ifeval() -> None:
    ids = ["en:punctuation:no_comma", "length_constraints:number_words"]
    given = [{}, {"relation": "at least", "num_words": 300, "num_bullets": None}]
    (case,) = read_cases(lines({"key": 7, "prompt": "Write", "instruction_id_list": ids, "kwargs": given}))
    assert case.id == "7"
    assert [check["id"] for check in case.checks] == ids
    with pytest.raises(BadEvalSet, match="line 1: check 1: there is no instruction 'en:dance'"):
        read_cases(lines({"key": 7, "prompt": "Write", "instruction_id_list": ["en:dance"], "kwargs": [{}]}))
    with pytest.raises(BadEvalSet, match="kwargs has an object for each"):
        read_cases(lines({"key": 7, "prompt": "Write", "instruction_id_list": ids, "kwargs": [{}]}))


GOOD = {"prompt": "Say ok", "checks": [CHECK]}


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ("{", "line 2: it is not JSON"),
        ("[]", "line 2: a case is an object"),
        ('{"prompt": NaN}', "line 2: it is not JSON: NaN"),
        ('{"prompt": 1e999}', "line 2: it is not JSON: 1e999 is too large"),
        ("[" * 100_000, "line 2: it is nested too deep"),
        (GOOD | {"id": "1"}, "line 2: the id '1' is line 1's already"),
        (GOOD | {"promt": "x"}, "line 2: a case has no field 'promt'"),
        (GOOD | {"id": ""}, "line 2: id is a text"),
        (GOOD | {"messages": []}, "line 2: a case has either messages or a prompt"),
        ({"messages": [{"role": "wizard", "content": "x"}], "checks": [CHECK]}, "line 2: a message has a role"),
        (GOOD | {"prompt": " "}, "line 2: a message's content"),
        (GOOD | {"prompt": "a\0b"}, "line 2: a text has a null character"),
        (GOOD | {"checks": [{"type": "exact", "value": "\ud800"}]}, "line 2: a text has a null character or half"),
        (GOOD | {"checks": []}, "line 2: checks is a list"),
        (GOOD | {"checks": [CHECK, {"type": "exact"}]}, "line 2: check 2: value is a text"),
        (GOOD | {"max_tokens": 0}, "line 2: max_tokens is a whole number from 1"),
        (GOOD | {"max_tokens": True}, "line 2: max_tokens is a whole number from 1"),
        (GOOD | {"temperature": 3}, "line 2: temperature is a number from 0 to 2"),
        (GOOD | {"stop": []}, "line 2: stop is a text"),
        (GOOD | {"tags": "x"}, "line 2: tags is a list"),
        (GOOD | {"prompt": "x" * 250_000}, "line 2: a case has at most"),
    ],
)
def test_an_error_names_its_line(row: Any, says: str) -> None:
    with pytest.raises(BadEvalSet) as refused:
        read_cases(lines(GOOD, row), format="jsonl")
    assert says in refused.value.message


def test_what_is_not_text_or_has_no_case_is_refused() -> None:
    with pytest.raises(BadEvalSet, match="line 1: it is not UTF-8"):
        read_cases([b"\xff\xfe\n"])
    with pytest.raises(BadEvalSet, match="there is no case in it"):
        read_cases([b"\n", b"  \n"])
    with pytest.raises(BadEvalSet, match="a format is one of auto, jsonl, gsm8k, ifeval"):
        read_cases(lines(GOOD), format="csv")


def test_the_limit_takes_the_first_and_reads_no_further() -> None:
    cases = read_cases(lines(GOOD, GOOD, "{ broken"), limit=2)
    assert [case.id for case in cases] == ["1", "2"]


SAMPLE = Path(__file__).resolve().parents[2] / "data" / "evals"


@pytest.mark.parametrize(("name", "number"), [("gsm8k_test", 30), ("ifeval_en", 30), ("ifeval_ja", 36)])
def test_rows_of_the_public_sets_are_read_as_they_are(name: str, number: int) -> None:
    with (SAMPLE / f"{name}.jsonl").open("rb") as lines:
        cases = read_cases(lines)
    assert len(cases) == number
    kinds = {check["type"] for case in cases for check in case.checks}
    assert kinds == {"number" if name == "gsm8k_test" else "instruction"}


@pytest.mark.soak
@pytest.mark.parametrize(("name", "number"), [("gsm8k_test", 1319), ("ifeval_en", 541), ("ifeval_ja", 172)])
def test_the_whole_public_sets_are_read(name: str, number: int) -> None:
    with (Path(os.environ["EVAL_DIR"]) / f"{name}.jsonl").open("rb") as lines:
        assert len(read_cases(lines)) == number
