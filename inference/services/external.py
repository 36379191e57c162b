"""External replicas: they take traffic only after a real one-token answer, and lose it when they stop giving one.

An engine listens, and says 200 on /health, long before it has loaded its weights; only a token proves anything.
Several processes may sweep at once: whoever moves a replica's `probed_at` forward does the probe.
"""

import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import httpx
import structlog
from django.db import connection
from django.db.models import F, Q
from django.utils import timezone

from headway.errors import InvalidInput
from inference.errors import IllegalTransition, UnknownReplica
from inference.models import ExternalProbe, Replica, ReplicaState
from inference.services.replicas import MAX_REASON_CHARS, advance

log = structlog.get_logger(__name__)

_MAX_ANSWER_BYTES = 1024 * 1024
_MAX_PROBES_AT_ONCE = 8
_DUE = """
    SELECT 1 FROM inference_replica r LEFT JOIN inference_externalprobe p ON p.replica_id = r.id
    WHERE r.node = '' AND ((NOT r.is_wanted AND r.state <> 'stopped') OR (
        r.is_wanted AND r.state IN ('certifying', 'ready') AND (
            p.probed_at IS NULL OR p.probed_at <= CASE WHEN r.state = 'ready' AND p.failures = 0 THEN %s ELSE %s END)))
    LIMIT 1
"""
_CHAT = ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]})
_COMPLETION = ("/v1/completions", {"prompt": "Hi"})


@dataclass(frozen=True, slots=True)
class ExternalTunables:
    connect_timeout_s: float = 3.0
    """How long a replica may take to accept a connection."""
    answer_timeout_s: float = 30.0
    """How long it may take to answer with one token."""
    retry_s: float = 1.0
    """How often one that does not answer is asked again."""
    recheck_s: float = 10.0
    """How often one that serves is asked again."""
    max_failures: int = 3
    """After this many failures in a row one that serves takes no more traffic."""


@dataclass(frozen=True, slots=True)
class ProbeResult:
    is_ok: bool
    reason: str = ""
    is_busy: bool = False
    """It answered that it has too much to do: alive, but no proof of a token."""


Probe = Callable[[Replica], ProbeResult]


def probe_external(replica: Replica, tunables: ExternalTunables = ExternalTunables()) -> ProbeResult:
    """Ask for one token, as a chat and, where the engine has no chat, as a completion. No database."""
    path = replica.url.removeprefix("unix:") if replica.url.startswith("unix:") else None
    # Reading the CA bundle takes 30 ms of CPU: only where there is a certificate to check.
    transport = httpx.HTTPTransport(uds=path, trust_env=False, verify=replica.url.startswith("https:"))
    timeout = httpx.Timeout(tunables.answer_timeout_s, connect=tunables.connect_timeout_s)
    base_url = "http://localhost" if path else replica.url
    deadline_s = time.monotonic() + tunables.answer_timeout_s
    try:
        with httpx.Client(transport=transport, base_url=base_url, timeout=timeout, trust_env=False) as client:
            status, body = _ask(client, _CHAT, replica.upstream_model, deadline_s)
            if _has_no_chat(status, body):
                status, body = _ask(client, _COMPLETION, replica.upstream_model, deadline_s)
    except httpx.ConnectError:
        return ProbeResult(False, f"nothing listens at {replica.url}")
    except httpx.TimeoutException:
        return ProbeResult(False, f"no token within {tunables.answer_timeout_s:g} s")
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        return ProbeResult(False, f"the connection broke ({type(error).__name__})")
    return _judge(status, body)


def _ask(client: httpx.Client, route: tuple[str, dict[str, Any]], model: str, deadline_s: float) -> tuple[int, bytes]:
    """Status and body, of which no more is read than an answer of one token has. Raises httpx.HTTPError."""
    path, prompt = route
    body = b""
    with client.stream("POST", path, json={"model": model, "max_tokens": 1, "stream": False, **prompt}) as response:
        for part in response.iter_bytes():
            body += part
            # httpx limits the wait for each part; one that trickles must not hold the sweep.
            if len(body) > _MAX_ANSWER_BYTES or time.monotonic() > deadline_s:
                raise httpx.ReadTimeout("too long an answer")
        return response.status_code, body


def _has_no_chat(status: int, body: bytes) -> bool:
    return status in {404, 405} or (status == 400 and b"chat template" in body.lower())


def _judge(status: int, body: bytes) -> ProbeResult:
    try:
        answer = json.loads(body)
    except ValueError:
        answer = None
    if status == 200:
        if isinstance(answer, dict) and isinstance(answer.get("choices"), list) and answer["choices"]:
            return ProbeResult(True)
        return ProbeResult(False, "it answered 200, but without a token")
    said = _error_message(answer)
    why = f"a one-token request was answered with HTTP {status}" + (f": {said}" if said else "")
    return ProbeResult(False, why, is_busy=status == 429)


def _error_message(answer: object) -> str:
    """What the engine says is wrong, in either of the forms that engines use."""
    if isinstance(answer, dict):
        error = answer.get("error")
        message = error.get("message") if isinstance(error, dict) else answer.get("message") or error
        if isinstance(message, str):
            return "".join(char if char.isprintable() else " " for char in message[:200])
    return ""


def certify_external(replica_id: str, *, probe: Probe = probe_external) -> Replica:
    """Probe one now: `certifying` becomes `ready`, or keeps its state with the reason. Returns it as it is then.

    Raises UnknownReplica, and InvalidInput for a managed one (its node agent certifies it).
    """
    replica = _find(replica_id)
    if replica.node:
        raise InvalidInput(f"replica {replica_id} is managed: its node agent certifies it", param="replica")
    _claim(replica, timezone.now(), not_since=None)
    _settle(replica, probe(replica), ExternalTunables())
    return _find(replica_id)


def _find(replica_id: str) -> Replica:
    replica = Replica.objects.filter(pk=replica_id).first()
    if replica is None:
        raise UnknownReplica(f"there is no replica {replica_id!r}; `manage.py status` lists them")
    return replica


def sweep_external(
    now: datetime,
    *,
    probe: Probe = probe_external,
    tunables: ExternalTunables = ExternalTunables(),
) -> list[str]:
    """Probe every external replica that is due, and put away those that are not wanted. Returns the ids probed."""
    if not _is_anything_due(now, tunables):
        return []
    _retire_unwanted()
    claimed = [replica for replica in _candidates() if _is_claimed(replica, now, tunables)]
    if not claimed:
        return []
    # The network only: database work stays in this thread, which has the connection.
    with ThreadPoolExecutor(max_workers=min(_MAX_PROBES_AT_ONCE, len(claimed)), thread_name_prefix="probe") as threads:
        under_way = {threads.submit(probe, replica): replica for replica in claimed}
        for done in as_completed(under_way):  # one that hangs holds up no other
            _settle(under_way[done], done.result(), tunables)
    return [replica.id for replica in claimed]


def _is_anything_due(now: datetime, tunables: ExternalTunables) -> bool:
    """Asked every second by every gateway, so it goes round the ORM."""
    adapt = connection.ops.adapt_datetimefield_value
    with connection.cursor() as cursor:
        cursor.execute(
            _DUE, [adapt(now - timedelta(seconds=tunables.recheck_s)), adapt(now - timedelta(seconds=tunables.retry_s))]
        )
        return cursor.fetchone() is not None


def _candidates() -> list[Replica]:
    return list(
        Replica.objects.filter(node="", is_wanted=True, state__in=(ReplicaState.CERTIFYING, ReplicaState.READY)).order_by("id")
    )


def _is_claimed(replica: Replica, now: datetime, tunables: ExternalTunables) -> bool:
    probe = ExternalProbe.objects.filter(pk=replica.pk).first()
    is_serving_well = replica.state == ReplicaState.READY and (probe is None or probe.failures == 0)
    not_since = now - timedelta(seconds=tunables.recheck_s if is_serving_well else tunables.retry_s)
    if probe is not None and probe.probed_at is not None and probe.probed_at > not_since:
        return False  # nothing is written, every second, for one that is not due
    return _claim(replica, now, not_since=not_since)


def _claim(replica: Replica, now: datetime, *, not_since: datetime | None) -> bool:
    """Move `probed_at` forward if nobody has probed since then (None: in any case). One process of many succeeds."""
    ExternalProbe.objects.bulk_create([ExternalProbe(replica_id=replica.pk)], ignore_conflicts=True)
    mine = ExternalProbe.objects.filter(pk=replica.pk)
    if not_since is not None:
        mine = mine.filter(Q(probed_at=None) | Q(probed_at__lte=not_since))
    return bool(mine.update(probed_at=now))


def _settle(replica: Replica, result: ProbeResult, tunables: ExternalTunables) -> None:
    """Draw the consequence; someone else may have moved the replica meanwhile, and then theirs holds."""
    record = ExternalProbe.objects.filter(pk=replica.pk)
    is_ready = replica.state == ReplicaState.READY
    try:
        if result.is_ok or (result.is_busy and is_ready):
            record.update(failures=0)
            if replica.state == ReplicaState.CERTIFYING:
                advance(replica_id=replica.id, expected=ReplicaState.CERTIFYING, to=ReplicaState.READY)
                log.info("external_replica_ready", replica=replica.id)
            return
        record.update(failures=F("failures") + 1)
        if is_ready:
            failures = record.values_list("failures", flat=True).first() or 0
            if failures >= tunables.max_failures:
                advance(replica_id=replica.id, expected=ReplicaState.READY, to=ReplicaState.CERTIFYING, reason=result.reason)
                log.warning("external_replica_lost", replica=replica.id, reason=result.reason, failures=failures)
            return
        reason = result.reason[:MAX_REASON_CHARS]
        Replica.objects.filter(pk=replica.pk, state=ReplicaState.CERTIFYING).exclude(reason=reason).update(reason=reason)
    except (IllegalTransition, UnknownReplica) as error:
        log.info("external_replica_moved_on", replica=replica.id, reason=error.message)


def _retire_unwanted() -> None:
    """No agent looks after an external replica, so whoever sweeps stops routing to one that is not wanted."""
    onward = {
        ReplicaState.READY: ReplicaState.DRAINING,
        ReplicaState.DRAINING: ReplicaState.STOPPED,
        ReplicaState.CERTIFYING: ReplicaState.STOPPED,
        ReplicaState.REQUESTED: ReplicaState.STOPPED,
        ReplicaState.FAILED: ReplicaState.STOPPED,
    }
    for replica in Replica.objects.filter(node="", is_wanted=False, state__in=list(onward)):
        state = ReplicaState(replica.state)
        try:
            advance(replica_id=replica.id, expected=state, to=onward[state], reason="not wanted any more")
        except (IllegalTransition, UnknownReplica) as error:
            log.info("external_replica_moved_on", replica=replica.id, reason=error.message)
