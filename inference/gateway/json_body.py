"""Read a client's JSON, strictly: what is checked here is, value for value, what an engine is sent.

| in the body                                           | rule                                                              |
| ----------------------------------------------------- | ----------------------------------------------------------------- |
| not UTF-8; UTF-16 or UTF-32; a byte order mark        | refused                                                           |
| no JSON; text after it; anything but an object        | refused                                                           |
| a name twice in one object, at any depth              | refused: readers differ in which of the two they take             |
| NaN, Infinity, numbers beyond a double (1e999)        | refused                                                           |
| whole numbers beyond 64 bits                          | refused                                                           |
| half of a surrogate pair (`\\ud83d` alone), also in names | refused                                                       |
| more than MAX_DEPTH levels, more than MAX_VALUES values | refused                                                         |
"""

import json
import math
import re
from collections.abc import Iterable
from typing import Any, NoReturn

from inference.gateway.openai_errors import BadRequest

MAX_DEPTH = 64
MAX_VALUES = 1_000_000
"""Commas are counted, those inside texts too: such a body is longer than any context."""
MIN_WHOLE, MAX_WHOLE = -(2**63), 2**63 - 1
BOMS = (b"\xef\xbb\xbf", b"\xfe\xff", b"\xff\xfe")
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def read_object(body: bytes) -> dict[str, Any]:
    """A JSON object. Raises BadRequest."""
    if not body.strip():
        raise BadRequest("The request has no body; send a JSON object.")
    if body.startswith(BOMS):
        raise BadRequest("The body starts with a byte order mark; send plain UTF-8.")
    if body.count(b",") > MAX_VALUES:
        raise BadRequest(f"The body has more than {MAX_VALUES} values.")
    try:
        decoded = _DECODER.decode(body.decode())
    except UnicodeDecodeError:
        raise BadRequest("The body is not UTF-8.") from None
    except RecursionError:
        raise BadRequest(f"The body is nested more than {MAX_DEPTH} levels deep.") from None
    except json.JSONDecodeError as error:
        raise BadRequest(f"The body is not valid JSON: {error.msg} at character {error.pos}.") from None
    except ValueError:  # int(): more digits than Python converts
        raise BadRequest("The body has a whole number beyond 64 bits.") from None
    if not isinstance(decoded, dict):
        raise BadRequest("The body must be a JSON object.")
    _check_values(decoded, may_have_surrogates=_SURROGATE.search(body) is not None)
    return decoded


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in made if names.count(name) > 1)
        shown = twice[:100].encode("utf-8", "replace").decode()
        raise BadRequest(f"The name {shown!r} is in one object twice.", param=shown)
    return made


def _refuse_constant(name: str) -> NoReturn:
    raise BadRequest(f"{name} is no JSON; numbers must be finite.")


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_refuse_constant)


def _check_values(root: dict[str, Any], *, may_have_surrogates: bool) -> None:
    """Level by level, so that depth costs no stack. Raises BadRequest."""
    for name, value in root.items():
        if type(value) in (int, float):
            _check_number(value, name)
    level: list[Any] = [root]
    for _ in range(MAX_DEPTH):
        deeper: list[Any] = []
        for container in level:
            values: Iterable[Any] = container
            if type(container) is dict:
                values = container.values()
                if may_have_surrogates:
                    deeper.append(list(container))
            for value in values:
                kind = type(value)
                if kind is dict or kind is list:
                    deeper.append(value)
                elif kind is int or kind is float:
                    _check_number(value, None)
                elif may_have_surrogates and kind is str:
                    _check_text(value)
        if not deeper:
            return
        level = deeper
    raise BadRequest(f"The body is nested more than {MAX_DEPTH} levels deep.")


def _check_number(number: float, param: str | None) -> None:
    where = f"`{param}`" if param else "The body"
    if not math.isfinite(number) if isinstance(number, float) else not MIN_WHOLE <= number <= MAX_WHOLE:
        raise BadRequest(f"{where} has a number that is too large: whole ones have 64 bits, others are finite.", param=param)


def _check_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise BadRequest("The body has half of a surrogate pair: a text that is no Unicode.") from None
