"""What somebody calls a thing that is to be done once: given again, with the same wish, it is what was made then."""

from headway.errors import InvalidInput

MAX_REFERENCE_CHARS = 200


def tidy_reference(reference: str) -> str:
    """A blank: each wish is another. Raises InvalidInput."""
    tidy = " ".join(reference.split())
    if len(tidy) > MAX_REFERENCE_CHARS or not tidy.isprintable():
        raise InvalidInput(f"a reference has at most {MAX_REFERENCE_CHARS} printable characters", param="reference")
    return tidy
