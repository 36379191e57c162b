"""Worker, beat and the Redis-protocol server are killed at random under load: every outbox entry is done exactly once."""

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.installation import ROOT, Installation, eventually

DAEMONS = ("redis", "worker", "beat", "beat-2")
LOAD = """
import time
from workers.services.mail import queue_mail
for number in range({count}):
    queue_mail(to="a@example.com", subject=str(number), text="")
    time.sleep({pause_s})
"""
SHELL = ("shell", "-v", "0", "-c")
COUNT = """
import json
from django.db.models import Count, Sum
from workers.models import BeatLease, Mail, OutboxEntry
by_count = dict(Mail.objects.values_list("num_sent").annotate(n=Count("id")))
left = OutboxEntry.objects.filter(done_at=None).count()
print(json.dumps({"by_count": {str(k): v for k, v in by_count.items()}, "left": left, "epoch": BeatLease.objects.get().epoch}))
"""


class Background:
    """Our own little supervisor: what is killed is started again."""

    def __init__(self, installation: Installation) -> None:
        self.installation = installation
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str) -> None:
        log = (self.installation.home / "logs" / f"{name}.log").open("ab")
        command = [sys.executable, str(ROOT / "manage.py"), name.partition("-")[0]]
        with log:
            self.running[name] = subprocess.Popen(command, env=self.installation.environment, stdout=log, stderr=log)

    def kill(self, name: str) -> None:
        self.running[name].kill()
        self.running[name].wait()

    def load(self, mails: int, load_s: float) -> subprocess.Popen[bytes]:
        script = LOAD.format(count=mails, pause_s=load_s / mails)
        command = [sys.executable, str(ROOT / "manage.py"), *SHELL, script]
        return subprocess.Popen(
            command, env=self.installation.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def counts(self) -> dict[str, int]:
        found = json.loads(self.installation.manage(*SHELL, COUNT).splitlines()[-1])
        return {**found["by_count"], "left": found["left"], "epoch": found["epoch"]}

    def stop(self) -> None:
        for process in self.running.values():
            process.kill()
            process.wait()


@pytest.fixture
def background(tmp_path: Path) -> Iterator[Background]:
    installation = Installation(tmp_path, database_url=os.environ.get("DATABASE_URL", ""), HEADWAY_OUTBOX_SWEEP_S="1")
    (installation.home / "logs").mkdir()
    made = Background(installation)
    try:
        installation.migrate()
        for name in DAEMONS:
            made.start(name)
        yield made
    finally:
        made.stop()
        installation.close()


def run(background: Background, *, mails: int, load_s: float, kills: int, seed: int) -> None:
    rng = random.Random(seed)
    load = background.load(mails, load_s)
    killed: list[str] = []
    for number in range(kills):
        name = DAEMONS[number % len(DAEMONS)] if number < len(DAEMONS) else rng.choice(DAEMONS)
        time.sleep(load_s / kills * rng.uniform(0.5, 1.5))  # when something dies is what is random here
        background.kill(name)
        killed.append(name)
        background.start(name)
    assert load.wait(timeout=load_s * 4 + 60) == 0, "a dead broker stops nobody who writes"
    eventually(lambda: background.counts()["left"] == 0, within_s=120, every_s=1, what=f"all is done after killing {killed}")
    counts = background.counts()
    assert {name: counts[name] for name in counts if name not in {"left", "epoch"}} == {"1": mails}, "each exactly once"
    assert set(killed) == set(DAEMONS)


def test_whatever_dies_each_entry_is_done_exactly_once(background: Background) -> None:
    run(background, mails=300, load_s=15, kills=8, seed=5)


@pytest.mark.soak
def test_for_minutes(background: Background) -> None:
    run(background, mails=5_000, load_s=240, kills=50, seed=6)


def test_the_password_of_the_server_is_for_nobody_elses_eyes(background: Background) -> None:
    home = background.installation.home
    eventually(lambda: (home / "redis" / "redis.conf").exists(), within_s=20, what="the server has started")
    for path in (home / "redis_password", home / "redis" / "redis.conf"):
        assert path.stat().st_mode & 0o777 == 0o600
    password = (home / "redis_password").read_text()
    for process in background.running.values():
        assert password.encode() not in Path(f"/proc/{process.pid}/cmdline").read_bytes()
    assert not any(password in path.read_text(errors="replace") for path in (home / "logs").iterdir())
