"""Commands of one installation, each in a process of its own, forked from one that has Django loaded.

What a command does takes milliseconds, and starting Python and Django for it one to three seconds of a processor. Daemons
are started as ever (`Installation.start`), as is all that tests/smoke looks at.
"""

import atexit
import contextlib
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parents[2]
MANAGE = ROOT / "manage.py"
MAX_REQUEST_BYTES = 100_000


class CommandServer:
    """Our end: made with the environment of the commands, which is not changed after."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.environment = dict(environment)
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, "-m", "tests.e2e.command_server", str(theirs.fileno())]
            fds = (theirs.fileno(),)
            self._process = subprocess.Popen(command, cwd=ROOT, env=self.environment, pass_fds=fds, stdin=subprocess.DEVNULL)

    def run(self, arguments: tuple[str, ...], *, timeout_s: float) -> subprocess.CompletedProcess[str]:
        """What `manage.py` with these arguments does and says. Raises subprocess.TimeoutExpired, having killed it."""
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            answer, theirs = socket.socketpair()
            with answer:
                with theirs:
                    request = json.dumps(arguments).encode()
                    socket.send_fds(self._control, [request], [theirs.fileno(), out.fileno(), err.fileno()])
                code = _code(answer, arguments, timeout_s)
            texts = []
            for file in (out, err):
                file.seek(0)
                texts.append(file.read().decode())
        return subprocess.CompletedProcess(arguments, code, *texts)

    def close(self) -> None:
        """Commands that run go on to their end."""
        self._control.close()
        self._process.wait(60)


def _code(answer: socket.socket, arguments: tuple[str, ...], timeout_s: float) -> int:
    """The exit code, after the pid of the command; negative is the signal that ended it."""
    told, pid = "", 0
    killer = threading.Timer(timeout_s, lambda: _kill(pid))
    killer.start()
    try:
        with answer.makefile() as lines:
            pid = int(lines.readline() or 0)
            told = lines.readline()
    finally:
        is_over = not killer.is_alive()
        killer.cancel()
    if is_over:
        raise subprocess.TimeoutExpired(list(arguments), timeout_s)
    assert told, f"the server of commands died over {arguments}"
    return int(told)


def _kill(pid: int) -> None:
    if pid:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def main() -> None:
    """The other end; returns when nobody asks any more."""
    control = socket.socket(fileno=int(sys.argv[1]))
    sys.path.insert(1, str(ROOT / "platform"))
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "headway.settings")
    _load()
    gc.collect()
    gc.freeze()  # what is here by now is looked at by no collection, which would copy the pages of it
    arguments = _next_command(control)
    if arguments is not None:
        _end(_code_of(arguments))


def _code_of(arguments: list[str]) -> int:
    """Runs the command; the code that its process would end with."""
    from django.core.management import execute_from_command_line

    sys.argv = [str(MANAGE), *arguments]
    try:
        execute_from_command_line(sys.argv)
    except SystemExit as ended:
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)  # noqa: T201
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:  # noqa: BLE001  the end of a process: as the interpreter would do it
        traceback.print_exc()
        return 1
    return 0


def _end(code: int) -> NoReturn:
    """As the interpreter ends, but without taking all of Django apart, which takes a second."""
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _load() -> None:
    """All that commands need: apps, pages, and the commands themselves."""
    import django
    from django.core.management import get_commands, load_command_class
    from django.urls import get_resolver

    django.setup()
    _ = get_resolver().url_patterns
    for name, app in get_commands().items():
        if (ROOT / app.replace(".", "/")).is_dir():
            load_command_class(app, name)
    assert threading.active_count() == 1, "a thread would be lost in every fork"


def _next_command(control: socket.socket) -> list[str] | None:
    """In a process of its own, for each that is asked for; None in the server when its socket is closed."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that watch
    while True:
        request, fds, _flags, _address = socket.recv_fds(control, MAX_REQUEST_BYTES, 3)
        if not request:
            return None
        if os.fork() == 0:
            control.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _watched(*fds)
            arguments: list[str] = json.loads(request)
            return arguments
        for fd in fds:
            os.close(fd)


def _watched(answer_fd: int, out_fd: int, err_fd: int) -> None:
    """Returns in the process of the command; the one that was here tells its pid and its code, and ends."""
    pid = os.fork()
    if pid:
        os.write(answer_fd, f"{pid}\n".encode())
        _, status = os.waitpid(pid, 0)
        os.write(answer_fd, f"{os.waitstatus_to_exitcode(status)}\n".encode())
        os._exit(0)
    os.dup2(out_fd, 1)
    os.dup2(err_fd, 2)
    for fd in (answer_fd, out_fd, err_fd):
        os.close(fd)


if __name__ == "__main__":
    main()
