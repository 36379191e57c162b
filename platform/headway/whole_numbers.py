"""Numbers as commands take them: read with one clear line for what is none."""

from headway.errors import InvalidInput

NONE = "none"


def whole_or_none(text: str, *, param: str) -> int | None:
    """ "none" removes what the number would set. Raises InvalidInput."""
    if text.lower() == NONE:
        return None
    if not text.isascii() or not text.isdigit() or int(text[:20]) == 0:
        raise InvalidInput(f"{param} must be a whole number above 0, or none: {text!r}", param=param)
    return int(text[:20])
