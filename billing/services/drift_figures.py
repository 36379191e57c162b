"""What the last reconciliation has found, as figures to be watched. No tenant is in them."""

from collections import Counter
from dataclasses import dataclass

from billing.models import Verdict
from billing.services.reconciliation_reads import findings_of, newest_finished
from inference.selectors import kinds_of_replicas

UNKNOWN = "unknown"
"""The kind of an engine whose replica is not on record any more."""


@dataclass(frozen=True)
class DriftFigures:
    finished_s: float
    """When it was done, unix seconds."""
    unexplained_tokens: dict[tuple[str, str], int]
    """By kind of engine and of token ("prompt", "completion"), without signs: too much here does not make up for too little
    there. A kind that was compared and has none is 0."""
    inconsistent_requests: int
    not_counted: int


def drift_figures() -> DriftFigures | None:
    """Of the newest run that was finished; None before the first."""
    run = newest_finished()
    if run is None or run.finished_at is None:
        return None
    findings = findings_of(run)
    kinds = kinds_of_replicas({each["replica"] for each in findings})
    tokens: Counter[tuple[str, str]] = Counter()
    for each in findings:
        if each["verdict"] == Verdict.NOT_COUNTED:
            continue
        for token_kind in ("prompt", "completion"):
            tokens[kinds.get(each["replica"], UNKNOWN), token_kind] += abs(each[f"unexplained_{token_kind}_tokens"])
    return DriftFigures(run.finished_at.timestamp(), dict(tokens), run.inconsistent_requests, run.not_counted)
