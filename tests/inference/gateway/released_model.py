"""A model of which several versions serve: rows of the feed, and conversations that the split sends to one of them."""

from collections.abc import Mapping, Sequence
from typing import Any

from inference.gateway.requests import read_request
from inference.gateway.state import Change
from inference.gateway.version_rows import VersionsRow, versions_of
from inference.gateway.version_wish import conversation_of
from inference.policy.split import choose
from tests.fakes.gateway import ACME, CACHE_SALT
from tests.inference.gateway.control_rows import model_row, replica_row

STABLE: dict[str, Any] = {"stable": "v1", "candidate": None}
CANARY: dict[str, Any] = {"stable": "v1", "candidate": "v2", "candidate_share_ppm": 500_000, "salt": "rollout-1"}
_REQUEST = read_request(
    b'{"model":"m","messages":[{"role":"user","content":"hi"}]}', "/v1/chat/completions", default_max_tokens=8
)


def released(
    versions: Mapping[str, Any] | None, urls: Mapping[str, Sequence[str]], *, first_id: int = 100, **replica: Any
) -> list[Change]:
    """The model `m` with ready replicas `v1-0`, `v1-1`, ... at these URLs, by version."""
    told: dict[str, Any] = {} if versions is None else {"versions": versions}
    rows = [model_row(first_id, max_in_flight=32, max_queued=200, **told)]
    for version, its in urls.items():
        for number, url in enumerate(its):
            of_it: dict[str, Any] = {
                "version": version,
                "url": url,
                "upstream_model": "upstream-name",
                "max_in_flight": 32,
                "epoch": 1,
            }
            rows.append(replica_row(first_id + len(rows), f"{version}-{number}", **(of_it | replica)))
    return rows


def operator_terms(change_id: int = 900, **more: Any) -> Change:
    payload = {
        "plan": "p",
        "weight": 1.0,
        "tier_ceiling": "interactive",
        "time_zone": "UTC",
        "default_max_tokens": None,
        "limits": [],
    }
    return Change(change_id, "terms", ACME, payload | more)


def in_conversation_of(version: str, versions: Mapping[str, Any] = CANARY) -> dict[str, str]:
    """Headers of a conversation that is split to it."""
    split = versions_of(VersionsRow(**versions))
    assert split is not None
    for number in range(10_000):
        name = f"c{number}"
        if choose(split, tenant=ACME, conversation=conversation_of(_REQUEST, name.encode(), CACHE_SALT)) == version:
            return {"x-headway-conversation": name}
    raise AssertionError(f"nothing is split to {version}")
