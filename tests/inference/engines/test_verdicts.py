"""The engine's parser is asked once for an environment and arguments."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from inference.engines.environments import EngineEnvironment, EngineKind
from inference.engines.verdicts import Question, check
from inference.errors import BadEngineArguments
from inference.launchers.base import LaunchFailed


class Parser:
    """Says what it is told to, and remembers what it was asked."""

    def __init__(self, refused: str = "") -> None:
        self.refused = refused
        self.asked: list[list[str]] = []

    def __call__(self, arguments: Sequence[str]) -> str:
        self.asked.append(list(arguments))
        return self.refused


@pytest.fixture
def question(tmp_path: Path) -> Question:
    environment = EngineEnvironment("vllm-cpu-1", tmp_path / "env", EngineKind.CPU)
    return Question(environment, tmp_path / "weights", "hf:org/m@v1", "auto", 8, ("--max-model-len", "512"))


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    return tmp_path / "verdicts"


def test_arguments_that_are_taken_are_asked_about_once(question: Question, kept: Path) -> None:
    parser = Parser()
    for _ in range(3):
        check(question, kept, parser)
    (asked,) = parser.asked
    assert asked[asked.index("--model") + 1] == str(question.weights / "hf-org-m-v1")
    assert asked[-2:] == ["--max-model-len", "512"]


def test_a_refusal_has_the_parsers_words_and_is_remembered(question: Question, kept: Path) -> None:
    parser = Parser("Value error, argument --max-model-len: invalid value")
    for _ in range(2):
        with pytest.raises(BadEngineArguments) as refused:
            check(question, kept, parser)
        assert refused.value.message == "vllm-cpu-1 refuses its arguments: argument --max-model-len: invalid value"
    assert len(parser.asked) == 1


def test_other_arguments_another_environment_or_weights_that_have_come_are_asked_about_anew(
    question: Question, kept: Path
) -> None:
    parser = Parser()
    others = [
        question,
        replace(question, engine_args=()),
        replace(question, dtype="float32"),
        replace(question, max_num_seqs=9),
        replace(question, environment=replace(question.environment, folder=Path("/elsewhere"))),
    ]
    for other in others:
        check(other, kept, parser)
    assert len(parser.asked) == len(others)
    folder = question.weights / "hf-org-m-v1"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    check(question, kept, parser)
    assert len(parser.asked) == len(others) + 1


def test_a_parser_that_could_not_be_asked_is_asked_again(question: Question, kept: Path) -> None:
    def fail(_arguments: Sequence[str]) -> str:
        raise LaunchFailed("the engine's parser could not be asked")

    with pytest.raises(LaunchFailed):
        check(question, kept, fail)
    parser = Parser()
    check(question, kept, parser)
    assert len(parser.asked) == 1


def test_a_damaged_verdict_is_no_verdict(question: Question, kept: Path) -> None:
    parser = Parser()
    check(question, kept, parser)
    (kept / question.key()).write_text('{"refu')
    check(question, kept, parser)
    assert len(parser.asked) == 2
