"""What became of a replica's job: its result, or why it failed and whether trying again could mend that."""

from dataclasses import dataclass
from typing import Any

import structlog

from headway.errors import ConfigurationError, InvalidInput, Unavailable
from inference.engines.client import EngineRefused
from inference.node.child import Cancelled, ChildFailed
from inference.node.golden import GoldenMismatch
from inference.node.jobs import Job

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Outcome:
    """`failure`: empty where there is a `result`."""

    result: Any = None
    failure: str = ""
    is_final: bool = False


def outcome_of(job: Job[Any], *, replica: str, state: str) -> Outcome:
    """Of one that is done."""
    try:
        return Outcome(job.result())
    except (GoldenMismatch, EngineRefused, InvalidInput) as error:
        return Outcome(failure=str(error), is_final=True)
    except (ChildFailed, Cancelled, ConfigurationError, Unavailable, OSError) as error:
        return Outcome(failure=str(error) or type(error).__name__)
    except Exception as error:  # a job is a boundary: whatever it ran into is this replica's trouble alone
        log.exception("replica_job_failed", replica=replica, state=state)
        return Outcome(failure=f"the node agent failed on it ({type(error).__name__}); see its log", is_final=True)
