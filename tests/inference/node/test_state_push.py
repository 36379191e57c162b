"""How engines do reaches the brain, over a real socket."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from inference.dispatch.address import Address
from inference.dispatch.host import BrainHost
from inference.engines.vllm import EngineLoad
from inference.node.state_push import StatePush
from inference.policy.decisions import StateFrame
from tests.inference.dispatch.cell import SECRET, Cell, until

LOAD = EngineLoad(num_running=3, num_waiting=2, kv_usage_ratio=0.5, progress=1.0, proposed_tokens=8, accepted_tokens=2)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, StateFrame]]:
    frames: list[tuple[str, StateFrame]] = []
    told: Callable[..., Any] = BrainHost.frame

    def frame(self: BrainHost, replica: str, state: StateFrame) -> None:
        frames.append((replica, state))
        told(self, replica, state)

    monkeypatch.setattr(BrainHost, "frame", frame)
    return frames


def push_to(address: Callable[[], Address | None]) -> StatePush:
    return StatePush(lambda: {"rep-0": LOAD}, address, secret=SECRET, every_s=0.02)


@pytest.mark.parametrize("tcp", [False, True], ids=["unix", "tcp"])
async def test_frames_arrive_and_go_on_with_the_next_dispatcher(
    tmp_path: Path, seen: list[tuple[str, StateFrame]], tcp: bool
) -> None:
    cell = Cell(tmp_path)
    await cell.serve(tcp=tcp)
    push = push_to(lambda: cell.address)
    push.start()
    try:
        await until(lambda: len(seen) > 2)
        assert seen[0] == ("rep-0", StateFrame(running=3, waiting=2, kv_used_ratio=0.5, acceptance_ratio=0.25))
        cell.kill()
        await cell.serve(epoch=2, tcp=tcp)
        seen.clear()
        await until(lambda: len(seen) > 2, within_s=10)
    finally:
        await asyncio.to_thread(push.stop)
        await cell.close()


async def test_without_a_dispatcher_nothing_happens_until_there_is_one(
    tmp_path: Path, seen: list[tuple[str, StateFrame]]
) -> None:
    cell = Cell(tmp_path)
    path = cell.address.path
    assert path is not None
    push = push_to(lambda: cell.address if path.exists() else None)
    push.start()
    try:
        await asyncio.sleep(0.05)
        await cell.serve()
        await until(lambda: len(seen) > 0, within_s=10)
    finally:
        await asyncio.to_thread(push.stop)
        await cell.close()
