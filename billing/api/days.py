"""Ranges of whole days, as the API names them: `first` and `last`, which is in the range."""

from collections.abc import Iterator
from contextlib import contextmanager

from headway.errors import InvalidInput

PARAMS = {"from": "first", "to": "last", "group": "group_by"}
"""What services call them, as pages do."""


@contextmanager
def named_as_asked() -> Iterator[None]:
    """An error names the parameter that was asked with."""
    try:
        yield
    except InvalidInput as error:
        error.param = PARAMS.get(error.param or "", error.param)
        raise
