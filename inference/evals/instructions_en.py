"""Instruction checks of English answers: does the text do what it was told? Each takes the answer and its own arguments."""

import re
from collections.abc import Sequence

from inference.evals.instruction_text import holds, num_sentences, paragraphs_of, parts_between, words_of
from inference.evals.languages import language_of

ANSWERS = ("My answer is yes.", "My answer is no.", "My answer is maybe.")


def capital_word_frequency(text: str, *, capital_relation: str, capital_frequency: int) -> bool:
    """Words that are all capitals, `I` and `A` among them."""
    return holds(sum(1 for word in words_of(text) if word.isupper()), capital_relation, capital_frequency)


def english_capital(text: str) -> bool:
    return text.isupper() and language_of(text.lower()) in ("en", "")


def english_lowercase(text: str) -> bool:
    return text.islower() and language_of(text) in ("en", "")


def repeat_prompt(text: str, *, prompt_to_repeat: str) -> bool:
    """It begins with the request, letter case aside."""
    return text.strip().lower().startswith(prompt_to_repeat.strip().lower())


def two_responses(text: str) -> bool:
    """Exactly two, divided by six asterisks, and not the same."""
    parts = parts_between(text, "*" * 6)
    return parts is not None and len(parts) == 2 and parts[0] != parts[1]


def number_placeholders(text: str, *, num_placeholders: int) -> bool:
    return len(re.findall(r"\[[^\[\]\n]+\]", text)) >= num_placeholders


def postscript(text: str, *, postscript_marker: str) -> bool:
    """The marker is there, letter case and blanks between its letters aside."""
    spaced = r"\s?".join(re.escape(char) for char in postscript_marker.strip().rstrip(".").replace(" ", ""))
    return re.search(spaced, text, re.IGNORECASE) is not None


def constrained_response(text: str) -> bool:
    return any(answer in text for answer in ANSWERS)


def multiple_sections(text: str, *, section_spliter: str, num_sections: int) -> bool:
    """Each begins with the word and a number or a letter: SECTION 1."""
    return len(re.findall(rf"{re.escape(section_spliter.strip())}\s?(?:\d+|[A-Z]\b)", text)) >= num_sections


def number_bullet_lists(text: str, *, num_bullets: int) -> bool:
    """Lines that begin with one asterisk or a hyphen."""
    return len(re.findall(r"^[ \t]*(?:\*(?!\*)|-(?!-))[ \t]*\S", text, re.MULTILINE)) == num_bullets


def number_highlighted_sections(text: str, *, num_highlights: int) -> bool:
    """*So* or **so**, on one line."""
    double = re.findall(r"\*\*([^\n*]+)\*\*", text)
    single = re.findall(r"(?<!\*)\*([^\n*]+)\*(?!\*)", text)
    return sum(1 for inside in double + single if inside.strip()) >= num_highlights


def title(text: str) -> bool:
    """<<So>>, on one line."""
    return any(inside.strip() for inside in re.findall(r"<<([^\n<>]+)>>", text))


def existence(text: str, *, keywords: Sequence[str]) -> bool:
    return all(word.lower() in text.lower() for word in keywords)


def forbidden_words(text: str, *, forbidden_words: Sequence[str]) -> bool:
    """As whole words."""
    return not any(re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text, re.IGNORECASE) for word in forbidden_words)


def frequency(text: str, *, keyword: str, relation: str, frequency: int) -> bool:
    return holds(text.lower().count(keyword.lower()), relation, frequency)


def letter_frequency(text: str, *, letter: str, let_relation: str, let_frequency: int) -> bool:
    return holds(text.lower().count(letter.lower()), let_relation, let_frequency)


def response_language(text: str, *, language: str) -> bool:
    return language_of(text) == language


def nth_paragraph_first_word(text: str, *, num_paragraphs: int, nth_paragraph: int, first_word: str) -> bool:
    """So many paragraphs with blank lines between them, and the nth begins with the word."""
    paragraphs = paragraphs_of(text)
    if len(paragraphs) != num_paragraphs or nth_paragraph > num_paragraphs:
        return False
    words = words_of(paragraphs[nth_paragraph - 1])
    return bool(words) and words[0].lower() == first_word.lower()


def number_paragraphs(text: str, *, num_paragraphs: int) -> bool:
    """Divided by three asterisks."""
    parts = parts_between(text, "***")
    return parts is not None and len(parts) == num_paragraphs


def number_sentences(text: str, *, relation: str, num_sentences: int) -> bool:
    return holds(_sentences(text), relation, num_sentences)


def number_words(text: str, *, relation: str, num_words: int) -> bool:
    return holds(len(words_of(text)), relation, num_words)


def no_comma(text: str) -> bool:
    return "," not in text


def end_checker(text: str, *, end_phrase: str) -> bool:
    """Its last words, quotation marks around the whole and letter case aside."""
    return text.strip().strip('"').strip().lower().endswith(end_phrase.strip().lower())


def quotation(text: str) -> bool:
    stripped = text.strip()
    return len(stripped) > 1 and stripped[0] == stripped[-1] == '"'


_sentences = num_sentences
"""By another name, as an argument has this one."""
