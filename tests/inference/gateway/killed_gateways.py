"""Runs journals that are killed with SIGKILL, for test_journal_kill.py: a process that forks one gateway after another.

    python killed_gateways.py <journal root> <how many>

Prints what each gateway was told by its journal: "open <id>", "close <id>", one line a call that has returned.
"""

import os
import random
import signal
import sys
import time
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(CHECKOUT), str(CHECKOUT / "platform")]

import django  # noqa: E402

django.setup()

from inference.gateway.drain import DrainTunables  # noqa: E402
from inference.gateway.journal import Journal, JournalTunables  # noqa: E402
from tests.inference.gateway.usage_drafts import draft  # noqa: E402

TUNABLES = JournalTunables(
    max_segment_bytes=8192,
    sync_delay_s=0.001,
    drain=DrainTunables(interval_s=0.002, batch_records=20, adopt_interval_s=0.01),
)


def say(word: str, request_id: str) -> None:
    os.write(1, f"{word} {request_id}\n".encode())  # one write: whole or not at all


def gateway(root: Path, number: int) -> None:
    rng = random.Random(number)
    journal = Journal(root, f"g{number}", TUNABLES)
    running: list[str] = []
    for count in range(10_000):
        request_id = f"g{number}-{count}"
        journal.open(draft(request_id))
        say("open", request_id)
        running.append(request_id)
        while len(running) > rng.randrange(1, 30):
            finished = running.pop(rng.randrange(len(running)))
            journal.close(draft(finished, "done", completion_tokens=5))
            say("close", finished)
        time.sleep(0.0005)


def main(root: Path, how_many: int) -> None:
    rng = random.Random(7)
    for number in range(how_many):
        pid = os.fork()
        if pid == 0:
            gateway(root, number)
            os._exit(0)
        time.sleep(rng.uniform(0.002, 0.12))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
