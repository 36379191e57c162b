"""A worker process for test_processes.py: says what a gateway's worker says, and does as the folder's files tell it.

    python worker_stub.py <folder> <place> <listening fd> <channel fd>

`never-ready`, `dies`, `fails`: files in the folder, looked at when it starts; `mute`: it says nothing until that is gone;
`stubborn`: when it is told to end.
"""

import os
import signal
import socket
import struct
import sys
import time
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(CHECKOUT), str(CHECKOUT / "platform")]

import msgspec  # noqa: E402

from inference.gateway.worker_link import Said  # noqa: E402


def main(folder: Path, place: int, channel: socket.socket) -> int:
    # Before anything is said: whoever hears of us may change them for those who come after us.
    fails, is_never_ready, dies = ((folder / name).exists() for name in ("fails", "never-ready", "dies"))
    if fails:
        return 1
    is_over = False

    def end(_number: int, _frame: object) -> None:
        nonlocal is_over
        is_over = not (folder / "stubborn").exists()

    signal.signal(signal.SIGTERM, end)

    def say(said: Said) -> None:
        data = msgspec.msgpack.encode(said)
        channel.sendall(struct.pack(">I", len(data)) + data)

    with (folder / "started").open("a") as started:
        started.write(f"{place} {os.getpid()}\n")
    while (folder / "mute").exists() and not is_over:
        time.sleep(0.01)
    say(Said(is_listening=True))
    if not is_never_ready:
        say(Said(is_ready=True))
    if dies:
        return 3
    while not is_over:
        time.sleep(0.01)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), socket.socket(fileno=int(sys.argv[4]))))
