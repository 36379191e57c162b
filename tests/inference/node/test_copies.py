"""Copies of weights on a node, over twins: wanted, fetched, failed, gone."""

import threading
from pathlib import Path
from typing import Any

import pytest

from inference.errors import BadWeights, NoRoom
from inference.node.agent import Agent
from inference.node.child import ChildFailed
from inference.node.copies import LOOK_EVERY_S, look_at
from inference.node.disk import DiskSettings
from inference.node.jobs import Job
from inference.node.node_settings import NodeSettings
from inference.node.weight_files import MANIFEST, Staged, write_manifest
from inference.services.weight_copies import NodeCopies, WantedCopy
from inference.weight_models import CopyState
from tests.inference.node.fakes import LaterJobs, Workshop, desired

S = CopyState


@pytest.fixture
def shop(tmp_path: Path) -> Workshop:
    return Workshop(folder=tmp_path)


def wanted(version_id: int = 1, **changes: Any) -> WantedCopy:
    known = {
        "weights_uri": f"hf:org/m{version_id}@v1",
        "weights_digest": "",
        "engine_environment": "vllm-cpu-1",
        "dtype": "auto",
    }
    return WantedCopy(version_id=version_id, **{"state": S.WANTED, "is_final": False, "max_in_flight": 4, **known, **changes})


def running(shop: Workshop, *copies: WantedCopy, needed: list[str] | None = None) -> Agent:
    shop.link.copies = NodeCopies(copies=list(copies), needed_uris=needed or [])
    agent = Agent(shop.tools())
    agent.start()
    return agent


def ticks(agent: Agent, shop: Workshop, number: int = 1) -> None:
    for _ in range(number):
        shop.clock.advance(2.0)
        agent.tick()


def moves(shop: Workshop, version_id: int = 1) -> list[str]:
    return [to for of, _before, to, _reason in shop.link.copy_moves if of == version_id]


def test_a_wanted_copy_is_staged_and_the_versions_digest_is_told(shop: Workshop) -> None:
    ticks(running(shop, wanted()), shop, 3)
    assert moves(shop) == [S.STAGING, S.STAGED]
    assert shop.link.digests == ["d1"]


def test_progress_is_told_in_bytes_while_it_goes_on(shop: Workshop) -> None:
    jobs = shop.jobs = LaterJobs()

    def stage(_wanted: Any, job: Job[Staged]) -> Staged:
        return Staged(path=Path("/w"), digest="d1")

    shop.stage = stage
    agent = running(shop, wanted())
    ticks(agent, shop)
    run = agent.copies.runs[1]
    assert run._job is not None
    run._job.measure(70, 200)
    run._job.say("downloading 70 of 200 MB")
    ticks(agent, shop)
    assert shop.link.copy_notes[-1] == (1, "downloading 70 of 200 MB", 70, 200)
    jobs.finish()
    ticks(agent, shop)
    assert moves(shop) == [S.STAGING, S.STAGED]


def test_so_many_are_fetched_at_once_and_the_others_stay_wanted(shop: Workshop) -> None:
    jobs = shop.jobs = LaterJobs()
    shop.settings = NodeSettings(disk=DiskSettings(fetches_at_once=2))
    agent = running(shop, *(wanted(number) for number in range(1, 6)))
    ticks(agent, shop, 3)
    assert [run.state for run in agent.copies.runs.values()] == [S.STAGING, S.STAGING, S.WANTED, S.WANTED, S.WANTED]
    jobs.finish()
    ticks(agent, shop)
    assert [run.state for run in agent.copies.runs.values()] == [S.STAGED, S.STAGED, S.STAGING, S.STAGING, S.WANTED]


@pytest.mark.parametrize("error", [ChildFailed("the hub could not be reached: ReadError"), NoRoom("no room for 70 GB")])
def test_what_may_pass_is_tried_again_after_a_pause(shop: Workshop, error: Exception) -> None:
    attempts: list[int] = []

    def stage(_wanted: Any, _job: Job[Staged]) -> Staged:
        attempts.append(1)
        if len(attempts) < 3:
            raise error
        return Staged(path=Path("/w"), digest="d1")

    shop.stage = stage
    ticks(running(shop, wanted()), shop, 12)
    assert moves(shop) == [S.STAGING, S.FAILED, S.STAGING, S.FAILED, S.STAGING, S.STAGED]
    assert str(error) in [reason for *_, reason in shop.link.copy_moves]


def test_what_trying_again_cannot_mend_waits_until_somebody_asks(shop: Workshop) -> None:
    is_mended = threading.Event()

    def stage(_wanted: Any, _job: Job[Staged]) -> Staged:
        if not is_mended.is_set():
            raise BadWeights("the weights changed since this version was registered")
        return Staged(path=Path("/w"), digest="d1")

    shop.stage = stage
    agent = running(shop, wanted())
    ticks(agent, shop, 30)
    assert moves(shop) == [S.STAGING, S.FAILED]
    assert [row.is_final for row in shop.link.copies.copies] == [True]
    is_mended.set()
    agent = Agent(shop.tools())
    agent.start()
    ticks(agent, shop, 10)
    assert moves(shop) == [S.STAGING, S.FAILED], "nor does the next agent"
    shop.link.copies = NodeCopies(copies=[wanted()], needed_uris=[])
    ticks(agent, shop, 3)
    assert moves(shop)[2:] == [S.STAGING, S.STAGED]


def test_a_fault_of_ours_in_one_copy_leaves_the_others_alone(shop: Workshop) -> None:
    def stage(one: Any, _job: Job[Staged]) -> Staged:
        if one.version_id == 1:
            raise KeyError("a fault")
        return Staged(path=Path("/w"), digest="d1")

    shop.stage = stage
    ticks(running(shop, wanted(1), wanted(2)), shop, 5)
    assert moves(shop, 1) == [S.STAGING, S.FAILED]
    assert moves(shop, 2) == [S.STAGING, S.STAGED]


def test_an_agent_that_was_killed_while_it_fetched_leaves_it_to_the_next(shop: Workshop) -> None:
    ticks(running(shop, wanted(state=S.STAGING)), shop, 2)
    assert moves(shop) == [S.STAGED]


def staged_folder(shop: Workshop, name: str) -> Path:
    folder = shop.tools().disk.folder / name
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"0" * 1000)
    write_manifest(folder, source="hf:org/m1@v1", source_sha256="d1")
    return folder


@pytest.mark.parametrize("damage", ["none", "gone", "truncated"])
def test_a_staged_copy_is_looked_at_by_a_new_agent(shop: Workshop, damage: str) -> None:
    folder = staged_folder(shop, "hf-org-m1-v1")
    if damage == "gone":
        folder.rename(folder.with_name("elsewhere"))
    elif damage == "truncated":
        (folder / "model.safetensors").write_bytes(b"0" * 999)
    ticks(running(shop, wanted(state=S.STAGED)), shop, 3)
    assert moves(shop) == ([] if damage == "none" else [S.WANTED, S.STAGING, S.STAGED])


@pytest.mark.parametrize("damage", ["truncated", "gone", "manifest of other bytes"])
def test_a_copy_that_is_spoilt_while_its_agent_runs_is_fetched_again(shop: Workshop, damage: str) -> None:
    folder = staged_folder(shop, "hf-org-m1-v1")
    agent = running(shop, wanted(state=S.STAGED))
    ticks(agent, shop, 5)
    assert moves(shop) == []
    if damage == "gone":
        folder.rename(folder.with_name("elsewhere"))
    elif damage == "truncated":
        (folder / "model.safetensors").write_bytes(b"0" * 999)
    else:
        (folder / MANIFEST).write_bytes(b"\xff\xfe")
    ticks(agent, shop, round(LOOK_EVERY_S / 2) + 3)
    assert moves(shop) == [S.WANTED, S.STAGING, S.STAGED]
    told = {"gone": "its files are gone", "truncated": "hf-org-m1-v1/model.safetensors has 999 bytes, not 1,000"}
    assert shop.link.copy_moves[0][3] == told.get(damage, f"hf-org-m1-v1/{MANIFEST} is missing or cannot be read")


def test_a_look_that_finds_what_was_evicted_meanwhile_does_not_bring_it_back(shop: Workshop) -> None:
    folder = staged_folder(shop, "hf-org-m1-v1")
    jobs = shop.jobs = LaterJobs()
    agent = running(shop, wanted(state=S.STAGED))
    ticks(agent, shop)
    agent.tools.disk._evict(folder)
    jobs.finish()
    agent.copies.runs[1].step(shop.clock.monotonic_s())
    ticks(agent, shop, 2)
    assert (moves(shop), shop.link.evicted) == ([], [1])


def test_what_was_read_once_is_not_read_again_while_sizes_and_times_stand(
    shop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = staged_folder(shop, "hf-org-m1-v1")
    (folder / "model.safetensors").touch()
    seen = look_at(folder, None)
    monkeypatch.setattr("inference.node.weight_files.sha256_of", None)
    assert look_at(folder, seen) == seen


def test_a_copy_that_was_evicted_is_told_and_not_fetched_again(shop: Workshop) -> None:
    folder = staged_folder(shop, "hf-org-m1-v1")
    shop.settings = NodeSettings(disk=DiskSettings(budget_bytes=1800))

    agent = running(shop, wanted(1, state=S.STAGED), wanted(2))

    def stage(_wanted: Any, job: Job[Staged]) -> Staged:
        target = agent.tools.disk.folder / "hf-org-m2-v1"
        with agent.tools.disk.fetching(target, is_cancelled=job.is_cancelled, say=job.say) as make_room:
            make_room(1000)
        return Staged(path=target, digest="d2")

    shop.stage = stage
    ticks(agent, shop, 5)
    assert not folder.exists()
    assert shop.link.evicted == [1]
    assert (moves(shop, 1), moves(shop, 2)) == ([], [S.STAGING, S.STAGED])


def test_a_needed_copy_stays_and_the_other_fails_with_the_figures(shop: Workshop) -> None:
    folder = staged_folder(shop, "hf-org-m1-v1")
    shop.settings = NodeSettings(disk=DiskSettings(budget_bytes=1800), backoff_first_s=1000.0)
    agent = running(shop, wanted(1, state=S.STAGED), wanted(2), needed=["hf:org/m1@v1"])

    def stage(_wanted: Any, job: Job[Staged]) -> Staged:
        with agent.tools.disk.fetching(Path("x"), is_cancelled=job.is_cancelled, say=job.say) as make_room:
            make_room(1000)
        raise AssertionError("there is no room")

    shop.stage = stage
    ticks(agent, shop, 5)
    assert folder.exists()
    assert moves(shop, 2) == [S.STAGING, S.FAILED]
    assert "1 copies of 0.0 GB are needed and stay" in shop.link.copy_moves[-1][3]


def test_a_replica_finds_its_copy_and_its_use_is_told(shop: Workshop) -> None:
    agent = running(shop, wanted())
    ticks(agent, shop, 3)
    shop.link.rows = [desired(weights_uri="hf:org/m1@v1")]
    ticks(agent, shop, 5)
    assert shop.link.uses == [(1, "d1")]


def test_what_a_replica_starts_from_is_pinned_until_the_replica_is_gone(shop: Workshop) -> None:
    folder = staged_folder(shop, "hf-org-m1-v1")
    agent = running(shop)
    shop.link.rows = [desired(weights_uri="hf:org/m1@v1")]
    ticks(agent, shop, 8)
    (held,) = agent.tools.disk.held()
    assert (held.name, held.is_in_use, held.is_needed) == (folder.name, True, False)
    shop.link.rows = []
    ticks(agent, shop, 4)
    (held,) = agent.tools.disk.held()
    assert not held.is_in_use


def test_with_the_database_away_copies_go_on_and_are_told_later(shop: Workshop) -> None:
    jobs = shop.jobs = LaterJobs()
    agent = running(shop, wanted())
    ticks(agent, shop)
    shop.link.is_away = True
    jobs.finish()
    ticks(agent, shop, 2)
    assert agent.copies.runs[1].state is S.STAGED


def test_a_copy_that_nobody_wants_any_more_is_given_up(shop: Workshop) -> None:
    shop.jobs = LaterJobs()
    agent = running(shop, wanted())
    ticks(agent, shop)
    job = agent.copies.runs[1]._job
    shop.link.copies = NodeCopies(copies=[], needed_uris=[])
    ticks(agent, shop)
    assert agent.copies.runs == {}
    assert job is not None and job.is_cancelled()
