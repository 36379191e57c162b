"""Readers for public traces.

Azure LLM inference trace 2023 (Splitwise, ISCA'24): CSV of TIMESTAMP, ContextTokens, GeneratedTokens; no prompts, so nothing
is shared. Mooncake (FAST'25): JSON lines of timestamp (ms), input_length, output_length, hash_ids, one chained hash for each
block of 512 prompt tokens, the last of which may be partly filled.
"""

import csv
import json
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path

from inference.sim.workload import Arrival, Workload

MOONCAKE_BLOCK_TOKENS = 512


class BadTrace(ValueError):
    """Fix the trace: a line has not the shape of its format."""


def read_azure(lines: Iterable[str], *, tenant: str = "azure") -> Workload:
    rows = csv.DictReader(lines)
    arrivals: list[Arrival] = []
    start: datetime | None = None
    for number, row in enumerate(rows, start=2):
        try:
            # Seven decimals of a second, one more than Python reads.
            when = datetime.fromisoformat(row["TIMESTAMP"][:26])
            prompt_tokens, output_tokens = int(row["ContextTokens"]), int(row["GeneratedTokens"])
        except (KeyError, TypeError, ValueError) as error:
            raise BadTrace(f"line {number}: {error!r}") from error
        start = start or when
        at_s = (when - start).total_seconds()
        arrivals.append(Arrival(at_s, max(1, prompt_tokens), max(1, output_tokens), tenant=tenant))
    return Workload(tuple(sorted(arrivals, key=lambda one: one.at_s)), MOONCAKE_BLOCK_TOKENS)


def read_mooncake(lines: Iterable[str], *, tenant: str = "mooncake") -> Workload:
    arrivals: list[Arrival] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            at_s, content = row["timestamp"] / 1000, tuple(int(block) for block in row["hash_ids"])
            prompt_tokens, output_tokens = int(row["input_length"]), int(row["output_length"])
        except (KeyError, TypeError, ValueError) as error:
            raise BadTrace(f"line {number}: {error!r}") from error
        arrivals.append(Arrival(at_s, max(1, prompt_tokens), max(1, output_tokens), content, tenant))
    return Workload(tuple(sorted(arrivals, key=lambda one: one.at_s)), MOONCAKE_BLOCK_TOKENS)


def read_trace(path: Path) -> Workload:
    """By its ending: .jsonl is Mooncake's format, .csv Azure's."""
    with path.open(encoding="utf-8-sig") as lines:
        return read_mooncake(lines) if path.suffix == ".jsonl" else read_azure(lines)
