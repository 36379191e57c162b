"""Publish to the feed that the data plane polls (DESIGN §2). The door other apps use.

Payloads are whole objects, so a reader needs the newest row of each (kind, key) and nothing else:

    tenant   key = tenant id     {name, cache_salt, is_active}
    key      key = key id        {tenant_id, member_id, secret_sha256, expires_at (unix s or null), scopes, models ([]: all),
                                  addresses (CIDR; []: any), tier_ceiling ("": the plan's), is_disabled}
    member   key = "<tenant id>/<user id>"  {role}; no row: not a member (or switched off), whose keys and tickets are refused
    model    key = public id     {created (unix s), pool, version, max_in_flight, min_in_flight, max_queued,
                                  hold_limit_s (a request waits so long for the pool to wake; 0: it is not woken),
                                  start_s (what a start usually takes),
                                  targets_ms: {"<tier>_ttft_ms" | "<tier>_inter_token_ms": ms}: those that are no default,
                                  versions: {stable, candidate (label or null), candidate_share_ppm, shadow_share_ppm,
                                  shadow_max_usd_micros_left, salt (the rollout's id), pinned: [labels]}; absent: all
                                  replicas that are ready serve}
    replica  key = replica id    {model, pool, version, kind, url, remote_url (tls://...: for gateways
                                  that do not find the socket `url` names; ""), upstream_model, state, max_in_flight, epoch,
                                  zone, tokeniser (digest or ""), max_model_len (0: not known)}
    terms    key = tenant id     {plan, weight, tier_ceiling ("interactive" | "standard" | "batch"), time_zone,
                                  default_max_tokens (or null), salt_per_key, discount_percent, is_prepaid,
                                  pins: {model: version label}, no_shadow, is_operator,
                                  limits: [{scope ("tenant" | "key" | "model"), id (as in policy's Scope),
                                  kind (LimitKind), value}, ...]}; no row: the default plan
    price    key = model         {prices: [{tier ("": all), version, input_micros, cached_micros, output_micros,
                                  effective_from (unix s)}, ...]}: all that hold or will hold; no row: free
    month    key = tenant id     {month ("YYYY-MM"), ends_at (unix s), spent_picos (as text), keys: {id: picos},
                                  models: {id: picos}, raised_picos, lowered_picos (of what was spent: by corrections,
                                  which count up), key_changes: {id: [raised, lowered]}, model_changes}: the newest month
                                  something was spent in; keys and models are those with a budget. A figure (publish_figure)
    balance  key = tenant id     {credit_picos, spent_picos (as text), expiring: [[unix s, picos as text], ...]}: all it may
                                  use and all it has spent, ever. A figure
"""

from datetime import datetime, timedelta
from typing import Any, Literal

from django.db import connection, transaction
from django.db.models import Exists, Max, OuterRef
from django.utils import timezone

from inference.models import ControlChange

Kind = Literal["tenant", "key", "member", "model", "replica", "terms", "price", "month", "balance"]

# How long a figure's row is kept after a newer one: long enough for every live reader to have moved past it.
FIGURE_KEEP = timedelta(seconds=60)

# More are read with the next look.
NEWS_ROWS = 1000

# Any constant: the name of our advisory lock in PostgreSQL.
FEED_LOCK_ID = 0x48656164


def publish(*, kind: Kind, key: str, payload: dict[str, Any] | None) -> ControlChange:
    """Append a change; call it inside the transaction that changes the object itself. None: the object is gone.

    Ids come from a sequence before their rows are committed; without the lock a reader could see id 7, move on, and
    never see id 6. The lock is held until commit, so ids become visible in their order (SQLite has one writer anyway).
    """
    assert connection.in_atomic_block, "publish inside the transaction that makes the change"
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", [FEED_LOCK_ID])
    return ControlChange.objects.create(kind=kind, key=key, payload=payload)


def publish_now(*, kind: Kind, key: str, payload: dict[str, Any] | None) -> ControlChange:
    """The same, in a transaction of its own."""
    with transaction.atomic():
        return publish(kind=kind, key=key, payload=payload)


def publish_figure(*, kind: Kind, key: str, payload: dict[str, Any]) -> ControlChange:
    """Publish what changes all the time: rows that were replaced FIGURE_KEEP ago go at once, not with the next compaction.

    Call it last in a transaction: others who publish wait for its end.
    """
    change = publish(kind=kind, key=key, payload=payload)
    rows = ControlChange.objects.filter(kind=kind, key=key)
    replaced_by = rows.filter(at__lt=timezone.now() - FIGURE_KEEP).order_by("-id").values_list("id", flat=True).first()
    if replaced_by is not None:
        rows.filter(id__lt=replaced_by).delete()
    return change


def newest_rows() -> list[tuple[int, str, str, dict[str, Any] | None]]:
    """The newest row of each object as (id, kind, key, payload), in the order of ids; one query."""
    newest = ControlChange.objects.values("kind", "key").annotate(newest=Max("id")).values("newest")
    return list(ControlChange.objects.filter(id__in=newest).order_by("id").values_list("id", "kind", "key", "payload"))


def has_rows_after(change_id: int) -> bool:
    """Is there anything for `rows_after`? Asked four times a second by every gateway, so it goes round the ORM."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1 FROM inference_controlchange WHERE id > %s LIMIT 1", [change_id])
        return cursor.fetchone() is not None


def replica_news(*, after: int | None) -> tuple[int, bool]:
    """The newest row's id, and whether one about a replica came after `after` (None: everything is news).

    Asked some times a second by every node agent. A database with older rows than `after` has no news: who asks looks at
    everything now and then anyway.
    """
    if after is None:
        return ControlChange.objects.aggregate(newest=Max("id"))["newest"] or 0, True
    rows = ControlChange.objects.filter(id__gt=after).order_by("id").values_list("id", "kind")[:NEWS_ROWS]
    found = list(rows)
    return found[-1][0] if found else after, any(kind == "replica" for _id, kind in found)


def rows_after(change_id: int, *, limit: int) -> list[tuple[int, str, str, dict[str, Any] | None]]:
    """What was published after a row, oldest first."""
    rows = ControlChange.objects.filter(id__gt=change_id).order_by("id")
    return list(rows.values_list("id", "kind", "key", "payload")[:limit])


def compact_feed(*, older_than: datetime) -> int:
    """Delete rows that a newer one of the same object replaces. Returns how many.

    A reader that is further behind than that misses nothing: the newest row of each object stays.
    """
    newer = ControlChange.objects.filter(kind=OuterRef("kind"), key=OuterRef("key"), id__gt=OuterRef("id"))
    return ControlChange.objects.filter(Exists(newer), at__lt=older_than).delete()[0]
