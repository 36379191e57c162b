"""What instruction checks of every language count: relations, sentences, paragraphs, words, fenced JSON."""

import json
import re

AT_LEAST = frozenset({"at least", "以上"})
LESS_THAN = frozenset({"less than", "未満"})
RELATIONS = AT_LEAST | LESS_THAN
_ABBREVIATIONS = re.compile(
    r"\b(?:mr|mrs|ms|dr|prof|sr|jr|st|vs|etc|inc|ltd|co|no|fig|approx|e\.g|i\.e|u\.s|u\.k|a\.m|p\.m|p\.s|p\.p\.s|ph\.d)\.",
    re.IGNORECASE,
)
_SENTENCE_END = re.compile(r"(?<![.!?…])[.!?…]++[\"'”’)\]]*+(?=\s|$)")
_FENCE = re.compile(r"^```[a-zA-Z]*[ \t]*\n(.*?)\n?```$", re.DOTALL)
_WORD = re.compile(r"\w+(?:['’-]\w+)*")


def holds(count: int, relation: str, bound: int) -> bool:
    return count >= bound if relation in AT_LEAST else count < bound


def words_of(text: str) -> list[str]:
    return _WORD.findall(text)


def num_sentences(text: str) -> int:
    """Of a text with full stops; what ends a line without one is a sentence too, unless it has no word."""
    plain = _ABBREVIATIONS.sub(lambda found: found.group().replace(".", ""), text)
    plain = re.sub(r"^[ \t]*\d+\.(?=\s)", "", plain, flags=re.MULTILINE)  # the numbers of a list
    pieces = [piece for line in plain.splitlines() for piece in _SENTENCE_END.split(line)]
    return sum(1 for piece in pieces if _WORD.search(piece))


def parts_between(text: str, divider: str) -> list[str] | None:
    """Parts without blanks around them. An empty one is allowed at the ends alone; None: there is one between."""
    parts = [part.strip() for part in text.split(divider)]
    inner = parts[1 if not parts[0] else 0 : len(parts) - 1 if len(parts) > 1 and not parts[-1] else len(parts)]
    return inner if all(inner) else None


def paragraphs_of(text: str) -> list[str]:
    """Divided by blank lines."""
    return [part.strip() for part in re.split(r"\n\s*\n", text) if part.strip()]


def unfenced(text: str) -> str:
    """What is inside a Markdown fence, if all of the text is one."""
    found = _FENCE.match(text.strip())
    return found.group(1) if found else text.strip()


def is_json(text: str) -> bool:
    try:
        json.loads(unfenced(text))
    except (ValueError, RecursionError):
        return False
    return True
