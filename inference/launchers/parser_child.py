"""Asks the engine's own parser in a process of its own (engines/scripts/check_args.py): 8 to 15 s, nearly all of it imports."""

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from inference.launchers.base import LaunchFailed

SCRIPT = Path(__file__).resolve().parents[1] / "engines" / "scripts" / "check_args.py"
LIMIT_S = 180.0
TAIL_CHARS = 300


def ask_parser(python: Path, process_environment: Mapping[str, str], arguments: Sequence[str]) -> str:
    """Empty: they are taken. Raises LaunchFailed."""
    command = [str(python), str(SCRIPT), json.dumps(list(arguments))]
    try:
        process = subprocess.Popen(
            command,
            env=dict(process_environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
    except OSError as error:
        raise LaunchFailed(f"cannot start {python}: {error.strerror}") from error
    try:
        out, err = process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        raise LaunchFailed(f"the engine's parser said nothing within {LIMIT_S:g} s") from None
    finally:
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    return refused_in(out.strip().rpartition("\n")[2], said=err)


def refused_in(answer: str, *, said: str) -> str:
    """Raises LaunchFailed where it is no answer; `said`: what else was printed."""
    try:
        return str(json.loads(answer)["refused"])
    except (ValueError, KeyError, TypeError):
        last = said.strip().rpartition("\n")[2][-TAIL_CHARS:] or "it said nothing"
        raise LaunchFailed(f"the engine's parser could not be asked: {last}") from None
