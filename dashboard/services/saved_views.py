"""Views of the usage page that a member keeps for themselves in a tenant."""

from typing import Any
from urllib.parse import parse_qsl, urlencode

from django.db import transaction

from dashboard.models import SavedView
from headway.errors import Conflict, InvalidInput

KEPT_FIELDS = ("range", "from", "to", "granularity", "metric", "group", "model", "key", "cumulative")
MAX_VIEWS = 30
MAX_NAME_CHARS = 60
MAX_QUERY_CHARS = 1000


def save_view(*, tenant: Any, member: Any, name: str, query: str) -> SavedView:
    """One of the same name is replaced. Raises InvalidInput, Conflict (too many)."""
    name, kept = " ".join(name.split()), _kept(query)
    if not 0 < len(name) <= MAX_NAME_CHARS:
        raise InvalidInput(f"a view's name has 1 to {MAX_NAME_CHARS} characters", param="name")
    mine = SavedView.objects.for_tenant(tenant).filter(member=member)
    with transaction.atomic():
        view: SavedView
        view, is_new = SavedView.unscoped.update_or_create(tenant=tenant, member=member, name=name, defaults={"query": kept})
        if is_new and mine.count() > MAX_VIEWS:
            raise Conflict(f"you keep {MAX_VIEWS} views already: delete one first")
    return view


def delete_view(*, tenant: Any, member: Any, view_id: int) -> bool:
    """False: there is none of theirs with that id."""
    return bool(SavedView.objects.for_tenant(tenant).filter(member=member, id=view_id).delete()[0])


def views_of(tenant: Any, member: Any) -> list[SavedView]:
    return list(SavedView.objects.for_tenant(tenant).filter(member=member).order_by("name"))


def _kept(query: str) -> str:
    """The fields that the usage page reads, each once."""
    try:
        pairs = dict(parse_qsl(query[:MAX_QUERY_CHARS].removeprefix("?"), max_num_fields=50))
    except ValueError:
        raise InvalidInput("this is no query of the usage page", param="query") from None
    return urlencode({name: pairs[name] for name in KEPT_FIELDS if pairs.get(name)})[:MAX_QUERY_CHARS]
