"""The errors every part shares. Each app draws its own tree below these.

HeadwayError
├── ConfigurationError      fix the setting it names
├── InvalidInput            fix the request
├── NotFound                fix the name: there is no such thing
├── Conflict                look again: someone else got there first, or it exists already
└── Unavailable             retry after a while

An error carries `code`, `http_status`, `retry_after_s` and `data`; each edge turns it into its own form once
(the OpenAI error object on /v1, a form error on a page, one line from a command).
"""

from typing import ClassVar


class HeadwayError(Exception):
    """Page someone: a rule of ours was broken."""

    code: ClassVar[str] = "internal_error"
    http_status: ClassVar[int] = 500
    error_type: ClassVar[str] = "server_error"

    def __init__(self, message: str, *, param: str | None = None, retry_after_s: float | None = None, **data: object) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s
        self.data = data


class ConfigurationError(HeadwayError):
    """Fix the setting it names; nothing was started."""

    code = "bad_configuration"


class InvalidInput(HeadwayError):
    """Fix the request; nothing was changed."""

    code = "invalid_value"
    http_status = 400
    error_type = "invalid_request_error"


class NotFound(HeadwayError):
    """Fix the name; there is no such thing."""

    code = "not_found"
    http_status = 404
    error_type = "invalid_request_error"


class Conflict(HeadwayError):
    """Look again; it exists already, or its state has moved on."""

    code = "conflict"
    http_status = 409
    error_type = "invalid_request_error"


class Unavailable(HeadwayError):
    """Retry after a while; nothing was changed."""

    code = "unavailable"
    http_status = 503
    error_type = "server_error"
