"""What a process and all it started use: CPU seconds and memory, from /proc."""

import os
from pathlib import Path

TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def tree(pid: int) -> list[int]:
    """The process and its descendants, as they are now."""
    found = [pid]
    for parent in found:
        try:
            for task in Path(f"/proc/{parent}/task").iterdir():
                found += [int(child) for child in (task / "children").read_text().split()]
        except OSError:  # it has ended meanwhile
            continue
    return found


def cpu_s(pid: int) -> float:
    """User and system time of the tree, its ended and waited-for children included."""
    total = 0
    for member in tree(pid):
        try:
            fields = Path(f"/proc/{member}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        total += sum(int(field) for field in fields[11:15])
    return total / TICKS_PER_S


def pss_mb(pid: int) -> float:
    """Proportional set size of the tree."""
    total = 0
    for member in tree(pid):
        try:
            rollup = Path(f"/proc/{member}/smaps_rollup").read_text()
        except OSError:
            continue
        total += int(rollup.split("\nPss:")[1].split()[0])
    return total / 1024
