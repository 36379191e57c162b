"""Which instruction is checked by what, and which arguments it takes: read once, when a set is imported.

Ids are those of IFEval's files, with or without a language in front (without: English).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from inference.evals import instructions_en as en
from inference.evals import instructions_ja as ja
from inference.evals.instruction_text import RELATIONS, is_json
from inference.evals.languages import LANGUAGES

MAX_TEXT_CHARS = 10_000
MAX_COUNT = 1_000_000


class BadInstruction(ValueError):
    """Fix the instruction's id, or its arguments; its text says what is wrong."""


def _count(value: Any) -> str:
    is_count = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_COUNT
    return "" if is_count else "is a whole number"


def _text(value: Any) -> str:
    return "" if isinstance(value, str) and 0 < len(value) <= MAX_TEXT_CHARS else "is a text"


def _texts(value: Any) -> str:
    is_list = isinstance(value, list) and 0 < len(value) <= 100 and not any(map(_text, value))
    return "" if is_list else "is a list of texts"


def _relation(value: Any) -> str:
    return "" if value in RELATIONS else f"is one of {', '.join(sorted(RELATIONS))}"


def _language(value: Any) -> str:
    return "" if value in LANGUAGES else f"{value!r} is none that we tell apart: {', '.join(sorted(LANGUAGES))}"


@dataclass(frozen=True)
class Instruction:
    check: Callable[..., bool]
    arguments: Mapping[str, Callable[[Any], str]]
    """By name: says what is wrong with a value, or nothing."""


_RELATED = {"relation": _relation}
_BOTH: dict[str, Instruction] = {
    "combination:repeat_prompt": Instruction(en.repeat_prompt, {"prompt_to_repeat": _text}),
    "combination:two_responses": Instruction(en.two_responses, {}),
    "detectable_content:number_placeholders": Instruction(en.number_placeholders, {"num_placeholders": _count}),
    "detectable_content:postscript": Instruction(en.postscript, {"postscript_marker": _text}),
    "detectable_format:json_format": Instruction(is_json, {}),
    "language:response_language": Instruction(en.response_language, {"language": _language}),
    "length_constraints:number_paragraphs": Instruction(en.number_paragraphs, {"num_paragraphs": _count}),
}
_PARAGRAPH = {"num_paragraphs": _count, "nth_paragraph": _count, "first_word": _text}
_SECTIONS = {"section_spliter": _text, "num_sections": _count}
_FREQUENCY = {"keyword": _text, "relation": _relation, "frequency": _count}
_LETTERS = {"letter": _text, "let_relation": _relation, "let_frequency": _count}
_EN: dict[str, Instruction] = {
    "change_case:capital_word_frequency": Instruction(
        en.capital_word_frequency, {"capital_relation": _relation, "capital_frequency": _count}
    ),
    "change_case:english_capital": Instruction(en.english_capital, {}),
    "change_case:english_lowercase": Instruction(en.english_lowercase, {}),
    "detectable_format:constrained_response": Instruction(en.constrained_response, {}),
    "detectable_format:multiple_sections": Instruction(en.multiple_sections, _SECTIONS),
    "detectable_format:number_bullet_lists": Instruction(en.number_bullet_lists, {"num_bullets": _count}),
    "detectable_format:number_highlighted_sections": Instruction(en.number_highlighted_sections, {"num_highlights": _count}),
    "detectable_format:title": Instruction(en.title, {}),
    "keywords:existence": Instruction(en.existence, {"keywords": _texts}),
    "keywords:forbidden_words": Instruction(en.forbidden_words, {"forbidden_words": _texts}),
    "keywords:frequency": Instruction(en.frequency, _FREQUENCY),
    "keywords:letter_frequency": Instruction(en.letter_frequency, _LETTERS),
    "length_constraints:nth_paragraph_first_word": Instruction(en.nth_paragraph_first_word, _PARAGRAPH),
    "length_constraints:number_sentences": Instruction(en.number_sentences, _RELATED | {"num_sentences": _count}),
    "length_constraints:number_words": Instruction(en.number_words, _RELATED | {"num_words": _count}),
    "punctuation:no_comma": Instruction(en.no_comma, {}),
    "startend:end_checker": Instruction(en.end_checker, {"end_phrase": _text}),
    "startend:quotation": Instruction(en.quotation, {}),
}
_JA: dict[str, Instruction] = {
    "detectable_format:constrained_response": Instruction(ja.constrained_response, {}),
    "detectable_format:multiple_sections": Instruction(ja.multiple_sections, _SECTIONS),
    "detectable_format:nominal_ending": Instruction(ja.nominal_ending, {"count": _count}),
    "detectable_format:number_bullet_lists": Instruction(ja.number_bullet_lists, {"num_bullets": _count}),
    "detectable_format:number_highlighted_sections": Instruction(ja.number_highlighted_sections, {"num_highlights": _count}),
    "detectable_format:number_numbered_lists": Instruction(ja.number_numbered_lists, {"num_items": _count}),
    "detectable_format:title": Instruction(ja.title, {}),
    "keywords:existence": Instruction(ja.existence, {"keywords": _texts}),
    "keywords:forbidden_words": Instruction(ja.forbidden_words, {"forbidden_words": _texts}),
    "keywords:frequency": Instruction(ja.frequency, _FREQUENCY),
    "keywords:letter_frequency": Instruction(ja.letter_frequency, _LETTERS),
    "length_constraints:nth_paragraph_first_word": Instruction(ja.nth_paragraph_first_word, _PARAGRAPH),
    "length_constraints:number_letters": Instruction(ja.number_letters, _RELATED | {"num_letters": _count}),
    "length_constraints:number_sentences": Instruction(ja.number_sentences, _RELATED | {"num_sentences": _count}),
    "letters:furigana": Instruction(ja.furigana, {}),
    "letters:hiragana_only": Instruction(ja.hiragana_only, {}),
    "letters:kanji": Instruction(ja.kanji, _RELATED | {"kanji_limit": _count}),
    "letters:kansuuji": Instruction(ja.kansuuji, {}),
    "letters:katakana_only": Instruction(ja.katakana_only, {}),
    "letters:no_hiragana": Instruction(ja.no_hiragana, {}),
    "letters:no_katakana": Instruction(ja.no_katakana, {}),
    "punctuation:no_comma": Instruction(ja.no_comma, {}),
    "punctuation:no_period": Instruction(ja.no_period, {}),
    "startend:end_checker": Instruction(ja.end_checker, {"end_phrase": _text}),
    "startend:quotation": Instruction(ja.quotation, {}),
    "startend:sentence_unified_end": Instruction(ja.sentence_unified_end, {"ending": _text}),
}
INSTRUCTIONS: dict[str, Instruction] = {
    **{f"en:{name}": each for name, each in (_BOTH | _EN).items()},
    **{f"ja:{name}": each for name, each in (_BOTH | _JA).items()},
}


def instruction_with(instruction_id: str, arguments: dict[str, Any]) -> tuple[Instruction, dict[str, Any]]:
    """With the arguments it takes; those that are null are as if not given. Raises BadInstruction."""
    known = INSTRUCTIONS.get(instruction_id) or INSTRUCTIONS.get(f"en:{instruction_id}")
    if known is None:
        raise BadInstruction(f"there is no instruction {instruction_id[:100]!r}")
    given = {name: value for name, value in arguments.items() if value is not None}
    for name in sorted(known.arguments.keys() | given.keys()):
        if name not in known.arguments:
            raise BadInstruction(f"{instruction_id} takes no {name[:50]!r}")
        if name not in given:
            raise BadInstruction(f"{instruction_id} needs {name!r}")
        if wrong := known.arguments[name](given[name]):
            raise BadInstruction(f"{name} of {instruction_id} {wrong}")
    return known, given
