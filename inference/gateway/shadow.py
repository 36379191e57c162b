"""Mirror live requests to a candidate, after their answers, from memory, and hold the two answers against each other.

A request that the stable version has answered well and whole is asked again of the candidate: as batch work on our own
account, under an id of its own (`shadow-...`), at most a few at a time, dropped when the candidate has no slot soon. Its
client has its answer by then, pays nothing for it and never notices. What the candidate says goes nowhere: scores are kept
(inference/services/shadow_scores.py), texts only until they were compared.
"""

import asyncio
import threading
import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import structlog
from django.db import DatabaseError, InterfaceError

from headway import env
from headway.logs import REQUEST_ID
from inference.gateway.continuation import TAIL_CHARS
from inference.gateway.ends import Cut
from inference.gateway.exchange import Exchange
from inference.gateway.key_rows import UNRESTRICTED
from inference.gateway.metrics import Metrics
from inference.gateway.prompt_size import bound_of
from inference.gateway.record import CUT_BY_DRAIN, DONE, GATEWAY_LOST, REFUSED
from inference.gateway.requests import GenerationRequest
from inference.gateway.shadow_budget import ShadowBudget
from inference.gateway.shadow_output import NoOutput
from inference.gateway.state import Principal
from inference.gateway.tracing import NoSpans
from inference.gateway.version_wish import VERSION_HEADER
from inference.policy.decisions import TokenPrice
from inference.policy.split import Versions, point_of
from inference.services.shadow_scores import Answer, Mirrored, write_scores

if TYPE_CHECKING:
    from inference.gateway.parts import GatewayParts

log = structlog.get_logger(__name__)

ROUTE, KEY_ID = "shadow", "shadow"


@dataclass(frozen=True, slots=True)
class ShadowTunables:
    max_at_once: int = 4
    """Mirrored requests of one gateway process; further ones are not mirrored."""
    wait_s: float = 2.0
    """How long one may wait for a slot of the candidate."""
    max_prompt_tokens: int = 32_768
    """Longer prompts are not mirrored."""
    max_scores: int = 256
    """That wait to be written; further ones are lost."""

    @classmethod
    def from_env(cls) -> "ShadowTunables":
        return cls(max_at_once=env.whole("HEADWAY_SHADOW_AT_ONCE", cls().max_at_once, at_most=1000))


class ShadowScores:
    """From the event loop to the thread that carries records to the ledger. Best effort: what cannot be written is lost."""

    def __init__(self, max_scores: int = ShadowTunables().max_scores, write: Callable[[list[Mirrored]], None] = write_scores):
        self._write, self._lock = write, threading.Lock()
        self._waiting: deque[Mirrored] = deque(maxlen=max_scores)

    def put(self, one: Mirrored) -> None:
        with self._lock:
            self._waiting.append(one)

    def flush(self) -> None:
        """On that thread."""
        with self._lock:
            taken = list(self._waiting)
            self._waiting.clear()
        if not taken:
            return
        try:
            self._write(taken)
        except (DatabaseError, InterfaceError) as error:
            log.warning("shadow_scores_lost", count=len(taken), reason=type(error).__name__)


class Shadower:
    """Its methods belong to the event loop."""

    def __init__(
        self, parts: "GatewayParts", scores: ShadowScores, budget: ShadowBudget, tunables: ShadowTunables | None = None
    ) -> None:
        self._tunables, self._scores, self._budget = tunables or ShadowTunables(), scores, budget
        self.running: set[Exchange] = set()
        # Apart from what customers' requests count, and from those that a drain waits for; one attempt is enough.
        self._parts = replace(
            parts,
            metrics=Metrics(),
            tracer=NoSpans(),
            running=self.running,
            tunables=replace(parts.tunables, max_attempts=1),
            shadow=None,
        )
        self._tasks: set[asyncio.Task[None]] = set()
        parts.on_draining.append(self._drain)
        self._is_draining = False

    def consider(self, exchange: Exchange, request: GenerationRequest) -> None:
        """After its answer has gone to the client."""
        model = self._parts.state.model(request.model)
        if model is None or not model.shadow.share_ppm or model.versions is None:
            return
        if not self._may_mirror(exchange, request, model.versions):
            return
        if point_of(model.versions.salt, "shadow", exchange.request_id.encode()) >= model.shadow.share_ppm:
            return
        operator, left_micros = self._parts.state.operator_id(), model.shadow.max_usd_micros_left
        if not operator or not left_micros:
            return
        price = self._parts.state.price(model.public_id, "batch", now_s=self._parts.clock.now().timestamp())[1]
        most_picos = _most_picos(request, price)
        if not self._budget.take(model.versions.salt, most_picos, left_micros=left_micros):
            return
        # The salt stays its own tenant's: nobody else finds its prompt in the candidate's cache.
        principal = replace(
            exchange.principal, tenant_id=operator, tenant_name="", key_id=KEY_ID, member_id=None, key=UNRESTRICTED
        )
        mirror = _Mirror(exchange, replace(request, tier="batch"), model.versions, principal, price, most_picos)
        task = asyncio.get_running_loop().create_task(self._run(mirror))
        self._tasks.add(task)
        task.add_done_callback(partial(self._ended, mirror))

    def _may_mirror(self, exchange: Exchange, request: GenerationRequest, versions: Versions) -> bool:
        """Was it answered as the stable version answers, and may its tenant's requests be mirrored?"""
        record, kept = exchange.record, exchange.continuation
        facts = self._parts.state.facts(exchange.principal.tenant_id)
        return (
            not (self._is_draining or facts.no_shadow or facts.is_operator)
            and len(self._tasks) < self._tunables.max_at_once
            and record.end_state == DONE
            and record.version == versions.stable
            and (record.attempts, record.parks) == (1, 0)
            and request.prompt_tokens_bound <= self._tunables.max_prompt_tokens
            and kept is not None
            and not kept.is_spoiled
        )

    async def _run(self, mirror: "_Mirror") -> None:
        request, versions = mirror.request, mirror.versions
        of_stable, request_id = _answer_of(mirror.original), f"shadow-{uuid.uuid4().hex[:24]}"
        REQUEST_ID.set(request_id)
        mirrored = mirror.exchange = Exchange(
            self._parts,
            principal=mirror.principal,
            request_id=request_id,
            route=ROUTE,
            output=NoOutput(),
            trace=self._parts.tracer.request(ROUTE, request_id, []),
            headers=[(VERSION_HEADER, versions.candidate.encode())],
            max_wait_s=self._tunables.wait_s,
        )
        await mirrored.run(lambda: request)
        if not _says_something(mirrored):
            return
        end_state = mirrored.record.end_state
        self._scores.put(
            Mirrored(
                rollout=versions.salt,
                model=request.model,
                stable=versions.stable,
                candidate=versions.candidate,
                at_s=self._parts.clock.now().timestamp(),
                error="" if end_state == DONE else end_state,
                of_stable=of_stable,
                of_candidate=_answer_of(mirrored),
                cost_picos=mirror.spent_picos(),
            )
        )

    def _ended(self, mirror: "_Mirror", task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        self._budget.settle(mirror.versions.salt, taken_picos=mirror.most_picos, spent_picos=mirror.spent_picos())
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.error("shadow_failed", exc_info=error)

    def _drain(self) -> None:
        """Nobody waits for these."""
        self._is_draining = True
        self._budget.close()
        for exchange in list(self.running):
            exchange.cut(Cut.DRAIN)


@dataclass(slots=True)
class _Mirror:
    """One request that is mirrored, at the price that held when it began."""

    original: Exchange
    request: GenerationRequest
    versions: Versions
    principal: Principal
    price: TokenPrice
    most_picos: int
    exchange: Exchange | None = None

    def spent_picos(self) -> int:
        """The most it can be where an engine worked and nobody knows how much."""
        if self.exchange is None or not self.exchange.record.attempts:
            return 0
        usage = self.exchange.record.usage
        if usage is None:
            return self.most_picos
        return self.price.amount_picos(
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens,
            completion_tokens=usage.completion_tokens,
        )


def _most_picos(request: GenerationRequest, price: TokenPrice) -> int:
    """Whatever tokeniser and template the candidate has: the bound that holds for prompts nobody counts."""
    prompt_tokens = max(request.prompt_tokens_bound, bound_of(request).total)
    return price.at_most_picos(prompt_tokens=prompt_tokens, completion_tokens=request.max_tokens)


def _answer_of(exchange: Exchange) -> Answer:
    usage, kept = exchange.record.usage, exchange.continuation
    return Answer(
        ttft_ms=exchange.notes.ttft_ms(),
        inter_token_ms=exchange.notes.inter_token_ms(),
        completion_tokens=usage.completion_tokens if usage is not None else 0,
        finish_reason=exchange.record.finish_reason,
        text="" if kept is None or kept.is_spoiled else kept.tail(TAIL_CHARS),
    )


def _says_something(mirrored: Exchange) -> bool:
    """Of the candidate: not where it had no slot in time, was parked, or ended for our reasons."""
    record = mirrored.record
    is_ours = record.end_state in (CUT_BY_DRAIN, GATEWAY_LOST) or (record.end_state == REFUSED and not record.attempts)
    return not (is_ours or record.parks)
