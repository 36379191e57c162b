"""Imports vLLM once and forks a server per replica. Runs under an engine environment's interpreter, nothing of ours in it.

    bin/python prefork.py --control-fd N

One JSON object a line on the control socket (file descriptor N).

    <- {"ready": true, "pid": 1, "threads": 1, "import_s": 8.1}
    -> {"launch": "rep-1", "argv": ["--model", ...], "env": {"NAME": "value"}, "log": "/path/of/its/output"}
    -> {"launch": "check-1", "check": "/check_args.py", "argv": ["--model", ...], "env": {}, "answer": "/path"}
    <- {"launched": "rep-1", "pid": 2}          or {"launched": "rep-1", "error": "..."}
    <- {"exited": 2, "status": -9}              as it happens; a negative status is the signal that killed it

A forked server leads a session of its own and keeps nothing of this process but its memory. This process ends at the
end of file on the control socket (its agent is gone); the servers live on. A check is no server: its child writes what
check_args.py says of the arguments to the file named, and ends.
"""

import argparse
import gc
import json
import multiprocessing
import os
import runpy
import select
import signal
import socket
import sys
import time
import traceback
from pathlib import Path

import setproctitle
from prefork_warm import IDLE_S, Tokenisers, import_more, register_kernels


def import_engine():
    """Everything a server, its engine core and its CPU worker import. Returns the server's main()."""
    import vllm.utils.system_utils as system_utils

    fork = multiprocessing.get_context("fork")
    original = system_utils.get_mp_context
    # Modules import the function by name, so it is replaced before they do, and in those that have.
    system_utils.get_mp_context = lambda: fork
    import vllm.entrypoints.launchers.api_server.entry as entry
    import vllm.v1.engine.core
    import vllm.v1.engine.core_client
    import vllm.v1.engine.utils
    import vllm.v1.worker.cpu_worker  # noqa: F401
    from vllm.entrypoints.launchers.cli_args import make_arg_parser  # noqa: F401
    from vllm.model_executor.models import llama, registry  # noqa: F401

    # A model's class is otherwise first looked at in a process of its own, so that CUDA stays untouched: 13 s here.
    registry._run_in_subprocess = lambda inspect: inspect()
    for module in list(sys.modules.values()):
        if vars(module).get("get_mp_context") is original:  # vars: some modules import lazily when they are asked
            module.get_mp_context = system_utils.get_mp_context
    import_more()
    register_kernels()
    return entry.main


class Prefork:
    def __init__(self, control: socket.socket, main) -> None:
        self.control = control
        self.main = main
        self.tokenisers = Tokenisers()
        self.buffer = b""
        self.woken, self.wake = os.pipe()
        os.set_blocking(self.woken, False)
        os.set_blocking(self.wake, False)

    def send(self, message: dict) -> None:
        self.control.sendall(json.dumps(message).encode() + b"\n")

    def serve(self) -> None:
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self.wake, warn_on_full_buffer=False)
        while True:
            readable, _, _ = select.select([self.control, self.woken], [], [], IDLE_S)
            if not readable and self.tokenisers.is_asked:
                self.tokenisers.read_next()
            if self.woken in readable:
                os.read(self.woken, 4096)
            self.reap()
            if self.control in readable and not self.receive():
                return

    def reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            self.send({"exited": pid, "status": os.waitstatus_to_exitcode(status)})

    def receive(self) -> bool:
        data = self.control.recv(65536)
        if not data:
            return False
        *lines, self.buffer = (self.buffer + data).split(b"\n")
        for line in lines:
            self.launch(json.loads(line))
        return True

    def launch(self, order: dict) -> None:
        try:
            pid = os.fork()
        except OSError as error:
            self.send({"launched": order["launch"], "error": f"fork: {error.strerror}"})
            return
        if pid == 0:
            if "check" in order:
                self.become_check(order)
            self.become_server(order)
        self.send({"launched": order["launch"], "pid": pid})
        if "check" not in order:
            self.tokenisers.ask_for(order["argv"])

    def become_check(self, order: dict) -> None:
        """In the child; never returns."""
        status = 1
        try:
            self.leave()
            os.environ.update(order["env"])
            checker = runpy.run_path(order["check"])
            answer = Path(order["answer"])
            partial = answer.with_name(f"{answer.name}.partial")
            partial.write_text(json.dumps({"refused": checker["check"](order["argv"])}))
            partial.replace(answer)
            status = 0
        except BaseException:  # noqa: BLE001 the boundary of this process: say why in the log
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)

    def leave(self) -> None:
        """In a child: let go of what is the parent's."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        for fd in (self.woken, self.wake):
            os.close(fd)
        self.control.close()

    def become_server(self, order: dict) -> None:
        """In the child; never returns."""
        status = 1
        try:
            self.leave()
            redirect_output(order["log"])
            setproctitle.setproctitle(f"headway-engine {order['launch']}")
            os.environ.update(order["env"])
            sys.argv = ["vllm-server", *order["argv"]]
            gc.enable()
            self.tokenisers.use(order["argv"])
            self.main()
            status = 0
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 1
        except BaseException:  # noqa: BLE001 the boundary of this process: say why in its log
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)


def redirect_output(log: str) -> None:
    null = os.open(os.devnull, os.O_RDONLY)
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for source, target in ((null, 0), (out, 1), (out, 2)):
        os.dup2(source, target)
    os.close(null)
    os.close(out)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--control-fd", type=int, required=True)
    control = socket.socket(fileno=parser.parse_args().control_fd)
    control.set_inheritable(False)
    started_s = time.monotonic()
    server_main = import_engine()
    # What was imported is never collected, so the children's collector does not touch (and copy) its pages.
    gc.collect()
    gc.freeze()
    prefork = Prefork(control, server_main)
    threads = len(os.listdir("/proc/self/task"))  # noqa: PTH208
    import_s = round(time.monotonic() - started_s, 1)
    try:
        prefork.send({"ready": True, "pid": os.getpid(), "threads": threads, "import_s": import_s})
        prefork.serve()
    except (BrokenPipeError, ConnectionResetError):
        pass  # the agent is gone: so are we; the servers live on
    os._exit(0)  # nothing here needs a farewell, and the engine's libraries complain at a regular one


if __name__ == "__main__":
    main()
