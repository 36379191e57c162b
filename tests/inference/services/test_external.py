"""External replicas against a small HTTP server that behaves like engines do (fault B105)."""

import json
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from headway.clock import FakeClock, SystemClock
from headway.errors import InvalidInput
from inference.errors import UnknownReplica
from inference.gateway.sweeper import ExternalSweeper
from inference.models import ControlChange, ExternalProbe, Replica, ReplicaState
from inference.services import external
from inference.services.external import ExternalTunables, ProbeResult, certify_external, probe_external, sweep_external
from inference.services.registry import register_model, register_replica
from inference.services.replicas import advance
from tests.inference.gateway.waiting import eventually

PATIENT = ExternalTunables(connect_timeout_s=10.0, answer_timeout_s=10.0)
HASTY = ExternalTunables(connect_timeout_s=10.0, answer_timeout_s=0.3)

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
TOKEN: tuple[int, Any] = (200, {"choices": [{"index": 0, "message": {"content": "Hi"}}]})
LOADING: tuple[int, Any] = (503, {"error": {"message": "The model is loading"}})


@dataclass
class Engine:
    """What the server answers, by path; a list is used up one by one, its last stays."""

    url: str = ""
    answers: dict[str, list[tuple[int, Any]]] = field(default_factory=dict)
    asked: list[tuple[str, Any]] = field(default_factory=list)
    trickles: bool = False

    def num_asked(self) -> int:
        return len(self.asked)


class Handler(BaseHTTPRequestHandler):
    engine: Engine

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.engine.asked.append((self.path, body))
        if self.engine.trickles:
            self._trickle()
            return
        answers = self.engine.answers.get(self.path, [(404, {"detail": "Not Found"})])
        status, answer = answers.pop(0) if len(answers) > 1 else answers[0]
        data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def _trickle(self) -> None:
        self.send_response(200)
        self.end_headers()
        try:
            for _ in range(200):
                self.wfile.write(b" ")
                time.sleep(0.02)
        except OSError:
            pass

    def log_message(self, *_arguments: Any) -> None: ...


class UnixServer(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True

    def get_request(self) -> tuple[Any, Any]:
        connected, _ = super().get_request()
        return connected, ("unix", 0)


@pytest.fixture(params=["tcp", "unix"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    made = Engine()
    handler = type("EngineHandler", (Handler,), {"engine": made})
    server: socketserver.BaseServer
    if request.param == "unix":
        server = UnixServer(str(tmp_path / "s"), handler)
        made.url = f"unix:{tmp_path / 's'}"
    else:
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        made.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield made
    server.shutdown()
    thread.join()
    server.server_close()


def replica_at(url: str, kind: str = "vllm") -> Replica:
    register_model(public_id="m", actor="test")
    return register_replica(public_id="m", url=url, kind=kind, upstream_model="served-name", actor="test")


def unsaved(url: str) -> Replica:
    return Replica(id="rep-1", url=url, upstream_model="served-name")


def state_of(replica: Replica) -> tuple[str, str]:
    replica.refresh_from_db()
    return replica.state, replica.reason


def routed_states() -> list[str]:
    """What the data plane was told of replicas, in order."""
    return [row.payload["state"] for row in ControlChange.objects.filter(kind="replica").order_by("id") if row.payload]


class TestProbe:
    def test_a_token_counts_and_one_is_all_that_is_asked_for(self, engine: Engine) -> None:
        engine.answers = {CHAT: [TOKEN]}
        assert probe_external(unsaved(engine.url), PATIENT) == ProbeResult(True)
        ((path, body),) = engine.asked
        assert (path, body["model"], body["max_tokens"], body["stream"]) == (CHAT, "served-name", 1, False)

    @pytest.mark.parametrize(
        "no_chat",
        [
            (404, {"detail": "Not Found"}),
            (405, b""),
            (400, {"error": {"message": "As of transformers v4.44, default Chat Template is no longer allowed"}}),
        ],
        ids=["404", "405", "no_template"],
    )
    def test_an_engine_without_chat_is_asked_for_a_completion(self, engine: Engine, no_chat: tuple[int, Any]) -> None:
        engine.answers = {CHAT: [no_chat], COMPLETION: [(200, {"choices": [{"text": "a"}]})]}
        assert probe_external(unsaved(engine.url), PATIENT).is_ok
        assert [path for path, _ in engine.asked] == [CHAT, COMPLETION]

    @pytest.mark.parametrize(
        ("answer", "reason"),
        [
            (LOADING, "HTTP 503: The model is loading"),
            ((401, {"error": "Unauthorized"}), "HTTP 401: Unauthorized"),
            ((400, {"error": {"message": "max_tokens is not supported"}}), "HTTP 400: max_tokens"),
            ((200, {"choices": []}), "200, but without a token"),
            ((200, b"<html>it works</html>"), "200, but without a token"),
            ((200, [1]), "200, but without a token"),
            ((500, b"\xff\xfe"), "HTTP 500"),
            ((302, b""), "HTTP 302"),
        ],
    )
    def test_anything_else_is_no_token_and_the_reason_says_what_it_was(
        self, engine: Engine, answer: tuple[int, Any], reason: str
    ) -> None:
        engine.answers = {CHAT: [answer]}
        result = probe_external(unsaved(engine.url), PATIENT)
        assert not result.is_ok
        assert reason in result.reason

    def test_an_engine_that_never_finishes_its_answer_does_not_hold_the_probe(self, engine: Engine) -> None:
        engine.trickles = True
        started_s = time.monotonic()
        result = probe_external(unsaved(engine.url), HASTY)
        assert "no token within 0.3 s" in result.reason
        assert time.monotonic() - started_s < 3.0

    def test_an_engine_that_listens_and_says_nothing_is_given_up(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            result = probe_external(unsaved(f"http://127.0.0.1:{silent.getsockname()[1]}"), HASTY)
        assert "no token within" in result.reason

    # httpcore leaves the socket of a Unix connection that failed to the garbage collector.
    @pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
    def test_nothing_listens(self, tmp_path: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
        assert "nothing listens" in probe_external(unsaved(f"http://127.0.0.1:{port}"), PATIENT).reason
        assert "nothing listens" in probe_external(unsaved(f"unix:{tmp_path}/none"), PATIENT).reason


@pytest.mark.django_db(transaction=True)
class TestCertify:
    def test_b105_an_engine_that_listens_before_it_can_answer_gets_no_traffic_until_it_can(self, engine: Engine) -> None:
        engine.answers = {CHAT: [LOADING, LOADING, LOADING, TOKEN]}
        replica = replica_at(engine.url)
        for _ in range(3):
            certified = certify_external(replica.id)
            assert certified.state == ReplicaState.CERTIFYING
            assert "The model is loading" in certified.reason
        assert routed_states() == ["certifying"]
        assert (certify_external(replica.id).state, state_of(replica)) == ("ready", ("ready", ""))
        assert routed_states() == ["certifying", "ready"]

    def test_a_managed_or_unknown_replica_is_not_ours_to_certify(self) -> None:
        replica = replica_at("http://127.0.0.1:9")
        Replica.objects.update(node="n1")
        with pytest.raises(InvalidInput):
            certify_external(replica.id)
        with pytest.raises(UnknownReplica):
            certify_external("rep-none")


class ScriptedProbe:
    def __init__(self) -> None:
        self.result = ProbeResult(True)
        self.num_calls = 0

    def __call__(self, _replica: Replica) -> ProbeResult:
        self.num_calls += 1
        return self.result


@pytest.mark.django_db(transaction=True)
class TestSweep:
    """Time is a fake clock's."""

    @pytest.fixture
    def probe(self) -> ScriptedProbe:
        return ScriptedProbe()

    @pytest.fixture
    def clock(self) -> FakeClock:
        return FakeClock()

    def test_b105_sixty_seconds_of_loading(self, engine: Engine, clock: FakeClock) -> None:
        engine.answers = {CHAT: [*[LOADING] * 60, TOKEN]}
        replica = replica_at(engine.url)
        for _ in range(60):
            sweep_external(clock.now(), tunables=PATIENT)
            assert state_of(replica)[0] == "certifying"
            clock.advance(1.0)
        sweep_external(clock.now(), tunables=PATIENT)
        assert state_of(replica)[0] == "ready"
        assert routed_states() == ["certifying", "ready"]
        assert engine.num_asked() == 61

    def test_one_that_hangs_does_not_keep_the_others_from_serving(self, clock: FakeClock) -> None:
        slow = replica_at("http://127.0.0.1:9")
        quick = register_replica(public_id="m", url="http://127.0.0.1:10", kind="vllm", actor="test")
        is_quick_ready = threading.Event()

        def probe(replica: Replica) -> ProbeResult:
            if replica.id == min(slow.id, quick.id):  # whichever would be settled first by its id
                assert is_quick_ready.wait(10), "the other was not settled meanwhile"
            return ProbeResult(True)

        def advance_and_tell(**moves: Any) -> Replica:
            moved = advance(**moves)
            is_quick_ready.set()
            return moved

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(external, "advance", advance_and_tell)
            sweep_external(clock.now(), probe=probe)
        assert {state_of(slow)[0], state_of(quick)[0]} == {"ready"}

    def test_one_that_serves_is_asked_rarely(self, clock: FakeClock, probe: ScriptedProbe) -> None:
        replica = replica_at("http://127.0.0.1:9")
        assert sweep_external(clock.now(), probe=probe) == [replica.id]
        for _ in range(9):
            clock.advance(1.0)
            assert sweep_external(clock.now(), probe=probe) == []
        clock.advance(1.0)
        assert sweep_external(clock.now(), probe=probe) == [replica.id]

    def test_three_failures_in_a_row_take_the_traffic_away_and_a_token_brings_it_back(
        self, clock: FakeClock, probe: ScriptedProbe
    ) -> None:
        replica = replica_at("http://127.0.0.1:9")

        def sweep(is_ok: bool) -> str:
            probe.result = ProbeResult(is_ok, "" if is_ok else "no token within 30 s")
            clock.advance(10.0)
            sweep_external(clock.now(), probe=probe)
            return state_of(replica)[0]

        assert [sweep(is_ok) for is_ok in (True, False, False, True, False, False)] == ["ready"] * 6
        assert sweep(False) == "certifying"
        assert state_of(replica)[1] == "no token within 30 s"
        assert sweep(False) == "certifying"
        assert sweep(True) == "ready"
        assert routed_states() == ["certifying", "ready", "certifying", "ready"]

    def test_a_busy_engine_keeps_its_traffic_but_a_new_one_has_to_give_a_token(
        self, clock: FakeClock, probe: ScriptedProbe
    ) -> None:
        replica = replica_at("http://127.0.0.1:9")
        probe.result = ProbeResult(False, "HTTP 429", is_busy=True)
        sweep_external(clock.now(), probe=probe)
        assert state_of(replica)[0] == "certifying"
        probe.result = ProbeResult(True)
        clock.advance(10.0)
        sweep_external(clock.now(), probe=probe)
        probe.result = ProbeResult(False, "HTTP 429", is_busy=True)
        for _ in range(5):
            clock.advance(10.0)
            sweep_external(clock.now(), probe=probe)
        assert state_of(replica)[0] == "ready"

    def test_of_many_who_sweep_at_once_one_probes(self, clock: FakeClock) -> None:
        replica_at("http://127.0.0.1:9")
        start, calls = threading.Barrier(4), []
        now = clock.now()

        def probe(replica: Replica) -> ProbeResult:
            calls.append(replica.id)
            return ProbeResult(True)

        def sweep() -> None:
            start.wait(10)
            sweep_external(now, probe=probe)
            connection.close()

        threads = [threading.Thread(target=sweep) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert len(calls) == 1
        assert ExternalProbe.objects.get().failures == 0

    def test_what_someone_else_decided_while_the_probe_ran_holds(self, clock: FakeClock) -> None:
        replica = replica_at("http://127.0.0.1:9")

        def probe(probed: Replica) -> ProbeResult:
            Replica.objects.filter(pk=probed.pk).update(state=ReplicaState.FAILED, reason="an operator's")
            return ProbeResult(True)

        # In this thread, so that the probe may use the database.
        certify_external(replica.id, probe=probe)
        assert state_of(replica) == ("failed", "an operator's")

    def test_managed_replicas_are_left_alone(self, clock: FakeClock, probe: ScriptedProbe) -> None:
        replica_at("http://127.0.0.1:9")
        Replica.objects.update(node="n1")
        assert sweep_external(clock.now(), probe=probe) == []

    def test_one_that_is_not_wanted_any_more_is_drained_and_stopped(self, clock: FakeClock, probe: ScriptedProbe) -> None:
        replica = replica_at("http://127.0.0.1:9")
        sweep_external(clock.now(), probe=probe)
        Replica.objects.update(is_wanted=False)
        states = []
        for _ in range(3):
            sweep_external(clock.now() + timedelta(hours=1), probe=probe)
            states.append(state_of(replica)[0])
        assert states == ["draining", "stopped", "stopped"]
        assert probe.num_calls == 1


@pytest.mark.django_db(transaction=True)
def test_the_sweeper_sweeps_and_survives_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    sweeps: list[datetime] = []

    def sweep(now: datetime, **_arguments: Any) -> list[str]:
        sweeps.append(now)
        raise RuntimeError("a mistake of ours")

    monkeypatch.setattr("inference.gateway.sweeper.sweep_external", sweep)
    sweeper = ExternalSweeper(ExternalTunables(retry_s=0.01), SystemClock())
    sweeper.start()
    eventually(lambda: len(sweeps) >= 3)
    sweeper.stop()
    assert not sweeper._thread.is_alive()


@pytest.mark.django_db(transaction=True)
def test_the_sweeper_makes_a_replica_ready(engine: Engine) -> None:
    engine.answers = {CHAT: [LOADING, TOKEN]}
    replica = replica_at(engine.url)
    sweeper = ExternalSweeper(ExternalTunables(retry_s=0.02, answer_timeout_s=10.0), SystemClock())
    sweeper.start()
    check: Callable[[], bool] = lambda: state_of(replica)[0] == "ready"  # noqa: E731
    eventually(check)
    sweeper.stop(5.0)
