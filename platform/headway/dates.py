"""Days as commands take them."""

from datetime import date

from headway.errors import InvalidInput


def day_named(text: str, *, param: str) -> date:
    """ "2026-11-30". Raises InvalidInput."""
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise InvalidInput(f"{param} must be a day, YYYY-MM-DD: {text!r}", param=param) from None
