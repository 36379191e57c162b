"""Start and stop this installation's daemons under supervisord (platform/deploy/supervisord.conf)."""

import contextlib
import errno
import fcntl
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from django.conf import settings

from headway.errors import ConfigurationError, HeadwayError
from headway.home import Home
from headway.processes import end, is_running, tagged

CONFIG = Path(settings.CHECKOUT) / "platform" / "deploy" / "supervisord.conf"
DAEMON_TAG = "HEADWAY_DAEMON_TAG"
REPLICA_TAG = "HEADWAY_REPLICA_TAG"  # engines carry it too; they are the node agent's
START_WITHIN_S = 15.0
STOP_WITHIN_S = 60.0


class SupervisorFailed(HeadwayError):
    """Read the log it names: the supervisor did not start."""


class Supervision:
    def __init__(self, home: Home) -> None:
        self.home = home
        self.pid_file = home.run / "supervisord.pid"
        self._ports_file = home.run / "ports"

    def is_up(self) -> bool:
        return self._pid() is not None

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Two that would start the same installation do so one after the other."""
        with (self.home.run / "up.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def check_same_ports(self) -> None:
        """Raises ConfigurationError when what runs was started with other ports than these settings name."""
        running = self._ports_file.read_text() if self._ports_file.exists() else _ports_text()
        if running != _ports_text():
            raise ConfigurationError(f"this installation runs already, on other ports ({running}): `make down` first")

    def start(self) -> None:
        """Settle what a killed supervisor left, check the ports, start. Raises ConfigurationError, SupervisorFailed."""
        end(self._leftovers(), grace_s=15.0)
        (self.home.run / "supervisor.sock").unlink(missing_ok=True)
        check_ports_free()
        self._ports_file.write_text(_ports_text())
        command = [sys.executable, "-m", "supervisor.supervisord", "-c", str(CONFIG)]
        done = subprocess.run(
            command, env=self._environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True, start_new_session=True
        )
        if done.returncode:
            raise SupervisorFailed(f"supervisord did not start: {(done.stderr or done.stdout).strip()[-500:]}")
        deadline_s = time.monotonic() + START_WITHIN_S
        while not self.is_up():
            if time.monotonic() > deadline_s:
                raise SupervisorFailed(f"supervisord did not come up; see {self.home.logs / 'supervisord.log'}")
            time.sleep(0.05)

    def stop(self) -> None:
        """Stop the supervisor and every daemon of this installation, also those that lost their supervisor."""
        pid = self._pid()
        if pid is not None:
            end([pid], grace_s=STOP_WITHIN_S)
        end(self._leftovers(), grace_s=15.0)

    def states(self) -> dict[str, str]:
        """Each daemon's state as supervisord names it (RUNNING, STARTING, BACKOFF, FATAL, ...)."""
        done = subprocess.run(
            [sys.executable, "-m", "supervisor.supervisorctl", "-c", str(CONFIG), "status"],
            env=self._environment(),
            capture_output=True,
            text=True,
        )
        rows = (line.split() for line in done.stdout.splitlines())
        return {row[0]: row[1] for row in rows if len(row) >= 2}

    def _leftovers(self) -> list[int]:
        return tagged(DAEMON_TAG, self.home.installation_id, without=REPLICA_TAG)

    def _pid(self) -> int | None:
        try:
            pid = int(self.pid_file.read_text())
        except (OSError, ValueError):
            return None
        ours = pid in self._leftovers()  # a pid file may name a process that took over the number
        return pid if ours and is_running(pid) else None

    def _environment(self) -> dict[str, str]:
        return {
            **os.environ,
            DAEMON_TAG: self.home.installation_id,
            "HEADWAY_HOME": str(self.home),
            "HEADWAY_RUN": str(self.home.run),
            "HEADWAY_LOGS": str(self.home.logs),
            "HEADWAY_PYTHON": sys.executable,
            "HEADWAY_HAS_FRONT": "true" if settings.NODE_ADDRESS else "false",
            "HEADWAY_CHECKOUT": str(settings.CHECKOUT),
        }


def _wanted_ports() -> list[tuple[str, str, int]]:
    return [
        ("HEADWAY_GATEWAY_PORT", settings.GATEWAY_HOST, settings.GATEWAY_PORT),
        ("HEADWAY_METRICS_PORT", settings.GATEWAY_HOST, settings.METRICS_PORT),
        ("HEADWAY_SITE_PORT", settings.SITE_HOST, settings.SITE_PORT),
    ]


def _ports_text() -> str:
    return ", ".join(f"{name}={port} on {host}" for name, host, port in _wanted_ports())


def check_ports_free() -> None:
    """Raises ConfigurationError naming the first port that is taken, and its setting."""
    for name, host, port in _wanted_ports():
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError as error:
                why = "is taken by another program" if error.errno == errno.EADDRINUSE else f"cannot be used ({error.strerror})"
                raise ConfigurationError(f"port {port} on {host} {why}: set {name} to another one") from error
