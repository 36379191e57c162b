"""Instruction checks of Japanese answers. Those that do not depend on the language are English's."""

import re
from collections.abc import Sequence

from inference.evals.instruction_text import holds, paragraphs_of

ANSWERS = ("はい、そうです。", "いいえ、違います。", "どちらとも言えません。")
_KANJI = "一-鿿㐀-䶿々〆"
_HIRAGANA = "ぁ-ゖ"
_KATAKANA = "ァ-ヺｦ-ｯｱ-ﾝ"
"""Without the long vowel mark, which hiragana use too."""
_LATIN = "A-Za-zＡ-Ｚａ-ｚ"
_SENTENCE_END = re.compile(r"[。！？!?\n]+")
_CLOSERS = '」』）)"”》】 \t　'


def sentences_of(text: str) -> list[str]:
    """Without what ends them and without brackets behind; a line that ends without a full stop is one too."""
    pieces = (piece.strip(_CLOSERS + "・*-#「『（(") for piece in _SENTENCE_END.split(text))
    return [piece for piece in pieces if piece]


def nominal_ending(text: str, *, count: int) -> bool:
    """At least so many sentences that end in a noun: here, in a kanji or in katakana."""
    return sum(1 for each in sentences_of(text) if re.search(rf"[{_KANJI}{_KATAKANA}ー]$", each)) >= count


def multiple_sections(text: str, *, section_spliter: str, num_sections: int) -> bool:
    """第1章"""
    return len(re.findall(rf"第\s?[0-9０-９一二三四五六七八九十]+\s?{re.escape(section_spliter)}", text)) >= num_sections


def number_bullet_lists(text: str, *, num_bullets: int) -> bool:
    """Lines that begin with ・"""
    return len(re.findall(r"^[ \t　]*・", text, re.MULTILINE)) == num_bullets


def number_numbered_lists(text: str, *, num_items: int) -> bool:
    """Lines that begin with 1."""
    return len(re.findall(r"^[ \t　]*[0-9０-９]+[.．](?![0-9０-９])", text, re.MULTILINE)) == num_items


def number_highlighted_sections(text: str, *, num_highlights: int) -> bool:
    return len(re.findall(r"《[^《》\n]+》", text)) >= num_highlights


def title(text: str) -> bool:
    return any(inside.strip() for inside in re.findall(r"『([^『』\n]+)』", text))


def constrained_response(text: str) -> bool:
    return any(answer in text for answer in ANSWERS)


def existence(text: str, *, keywords: Sequence[str]) -> bool:
    return all(word in text for word in keywords)


def forbidden_words(text: str, *, forbidden_words: Sequence[str]) -> bool:
    """Nowhere, as words have no blanks between them."""
    return not any(word in text for word in forbidden_words)


def frequency(text: str, *, keyword: str, relation: str, frequency: int) -> bool:
    return holds(text.count(keyword), relation, frequency)


def letter_frequency(text: str, *, letter: str, let_relation: str, let_frequency: int) -> bool:
    return holds(text.count(letter), let_relation, let_frequency)


def nth_paragraph_first_word(text: str, *, num_paragraphs: int, nth_paragraph: int, first_word: str) -> bool:
    paragraphs = paragraphs_of(text)
    if len(paragraphs) != num_paragraphs or nth_paragraph > num_paragraphs:
        return False
    return paragraphs[nth_paragraph - 1].startswith(first_word)


def number_letters(text: str, *, relation: str, num_letters: int) -> bool:
    """Characters, blanks and line ends left out."""
    return holds(len(re.sub(r"\s", "", text)), relation, num_letters)


def number_sentences(text: str, *, relation: str, num_sentences: int) -> bool:
    return holds(len(sentences_of(text)), relation, num_sentences)


def furigana(text: str) -> bool:
    """Every run of kanji has its reading behind it: 漢字（かんじ）."""
    runs = len(re.findall(rf"[{_KANJI}]+", text))
    read = len(re.findall(rf"(?<![{_KANJI}])[{_KANJI}]++（[{_HIRAGANA}{_KATAKANA}ー]+）", text))
    return runs == read > 0


def hiragana_only(text: str) -> bool:
    """Digits, blanks and punctuation aside."""
    return _has(_HIRAGANA, text) and not _has(_KANJI + _KATAKANA + _LATIN, text)


def katakana_only(text: str) -> bool:
    return _has(_KATAKANA, text) and not _has(_KANJI + _HIRAGANA + _LATIN, text)


def no_hiragana(text: str) -> bool:
    return bool(text.strip()) and not _has(_HIRAGANA, text)


def no_katakana(text: str) -> bool:
    return bool(text.strip()) and not _has(_KATAKANA, text)


def kanji(text: str, *, relation: str, kanji_limit: int) -> bool:
    return holds(len(re.findall(rf"[{_KANJI}]", text)), relation, kanji_limit)


def kansuuji(text: str) -> bool:
    """Numbers in kanji alone."""
    return _has("〇一二三四五六七八九十百千万億兆", text) and not _has("0-9０-９", text)


def no_comma(text: str) -> bool:
    return not _has("、，,", text)


def no_period(text: str) -> bool:
    return not _has("。", text)


def end_checker(text: str, *, end_phrase: str) -> bool:
    return text.strip().rstrip('」"”').endswith(end_phrase.strip())


def quotation(text: str) -> bool:
    stripped = text.strip()
    return len(stripped) > 1 and stripped[0] == "「" and stripped[-1] == "」"


def sentence_unified_end(text: str, *, ending: str) -> bool:
    sentences = sentences_of(text)
    return bool(sentences) and all(each.endswith(ending) for each in sentences)


def _has(characters: str, text: str) -> bool:
    return re.search(f"[{characters}]", text) is not None
