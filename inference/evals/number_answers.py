"""The number that an answer comes to."""

import re

MARK = "####"
_NUMBER = re.compile(r"(?<![\w.])[-−–]?\$?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?![\w]|\.\d)|(?<![\w.])[-−]?\$?\.\d+")
_MAX_DIGITS = 40


def number_in(text: str) -> float | None:
    """What follows the last ####, else the last number there is. Dollar signs and commas between thousands are left out."""
    _, mark, rest = text.rpartition(MARK)
    found = (_NUMBER.search(rest) if mark else None) or _last(text)
    return _value(found.group()) if found else None


def _last(text: str) -> re.Match[str] | None:
    last = None
    for last in _NUMBER.finditer(text):  # noqa: B007  the last one is wanted
        pass
    return last


def _value(text: str) -> float | None:
    digits = re.sub(r"[$,]", "", text).replace("−", "-").replace("–", "-")
    return float(digits) if len(digits) <= _MAX_DIGITS else None
