"""Why a request is ended from outside, what its client is told then, and the line that the log gets of any end."""

from enum import Enum

from billing.services.ledger import UsageDraft
from headway.logs import access
from inference.gateway.openai_errors import Refusal

STOPPING = Refusal(
    status=503,
    message="This gateway is shutting down and the answer did not end in time. Retry.",
    type="server_error",
    code="gateway_stopping",
    retry_after_s=1.0,
)


DETACHED = Refusal(
    status=503,
    message="This gateway was cut off from the rest of the service for too long, so the answer was ended. Retry.",
    type="server_error",
    code="gateway_detached",
    retry_after_s=1.0,
)


class Cut(Enum):
    """Why a request was ended from outside."""

    CLIENT_GONE = "client_gone"
    DRAIN = "drain"
    DETACHED = "detached"  # from the dispatcher, for so long that its slot may be another's


def log_end(draft: UsageDraft, status: int) -> None:
    """The access log: one line a request, without a word of its text."""
    access(
        "inference.gateway.exchange",
        "request_ended",
        route=draft.route,
        status=status,
        end_state=draft.end_state,
        model=draft.model,
        replica=draft.replica,
        attempts=draft.attempts,
        prompt_tokens=draft.prompt_tokens,
        completion_tokens=draft.completion_tokens,
        queue_ms=draft.queue_ms,
        ttft_ms=draft.ttft_ms,
        total_ms=draft.total_ms,
    )
