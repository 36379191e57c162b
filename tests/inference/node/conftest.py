"""A real node: real vLLM processes below one HEADWAY_HOME for the whole session.

The engine of one test is adopted by the agent of the next (a boot costs seconds); a test that kills it leaves the next
one to start it again. The process that forks engines imports vLLM once a session.
"""

import io
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from django.core.management import call_command
from django.test import override_settings
from django.utils import timezone

from headway.home import Home
from inference.engines.environments import default_environment, engines_dir, find_environment
from inference.engines.vllm import EngineSettings, process_environment
from inference.launchers import processes
from inference.models import Pool, Replica, ReplicaState
from inference.node.adoption import kill_leftovers
from inference.node.agent import Agent
from inference.node.composition import Launchers, make_tools, tag_of
from inference.node.control_link import in_place
from inference.node.node_files import NodeFiles, RunFile
from inference.node.node_settings import NodeSettings
from inference.node.stopping import stop_all_engines
from inference.node.tiny_model import make_tiny_model
from inference.node.watchdog import WatchdogSettings
from inference.node.weights import StagingTools
from inference.services.registry import register_model
from inference.services.version_spec import VersionSpec

ROOT = Path(__file__).resolve().parents[3]
# Converted weights are kept between runs.
WEIGHTS = ROOT / ".cache" / "weights"
NODE = "test-node"
MODEL = "tiny"
REPLICA = "rep-tiny"
ENGINE_ARGS = ["--max-model-len", "2048", "--kv-cache-memory-bytes", "64M"]
BOOT_S = 120.0
SETTINGS = NodeSettings(
    engine=EngineSettings(shutdown_timeout_s=10),
    watchdog=WatchdogSettings(stall_s=60, canary_every_s=60, canary_limit_s=20),
    backoff_first_s=0.1,
    scrape_every_s=0.3,
    drain_ack_s=2.0,
)


@pytest.fixture(scope="session")
def engine_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    home = Home(tmp_path_factory.mktemp("node"))
    WEIGHTS.mkdir(parents=True, exist_ok=True)
    (home.root / "weights").symlink_to(WEIGHTS)
    yield home
    stop_all_engines(home, graceful_s=0)


@pytest.fixture(scope="session")
def launchers(engine_home: Home) -> Iterator[Launchers]:
    made = Launchers(tag_of(engine_home, NODE), engine_home.logs, is_prefork=True)
    yield made
    made.close()


@pytest.fixture(scope="session")
def tiny(engine_home: Home) -> Path:
    return make_tiny_model(WEIGHTS / "tiny", seed=0, tools=staging_tools(engine_home))


def staging_tools(home: Home) -> StagingTools:
    environment = find_environment(default_environment(), engines_dir())
    cache = home.folder("engine-cache")
    variables = process_environment(environment.kind, tag="test-staging", cache=cache, settings=EngineSettings())
    return StagingTools(folder=home.weights, python=environment.python, engine_environment=variables)


class RealNode:
    def __init__(self, home: Home, launchers: Launchers) -> None:
        self.home, self.launchers = home, launchers
        self.tag = tag_of(home, NODE)
        self.settings = SETTINGS
        self._agent: Agent | None = None

    def start_agent(self) -> Agent:
        """A new agent; one before it is left as `kill -9` would leave it."""
        # In place: a thread's own connection would outlive the test and keep its database from being dropped.
        tools = make_tools(self.home, NODE, self.settings, self.launchers, lambda _id, _timeout_s: True, call=in_place)
        self._agent = Agent(tools)
        self._agent.start()
        return self._agent

    @property
    def agent(self) -> Agent:
        assert self._agent is not None, "start_agent first"
        return self._agent

    def until(self, is_so: Callable[[], bool], what: str, within_s: float = BOOT_S) -> None:
        deadline_s = time.monotonic() + within_s
        while not is_so():
            self.agent.tick()
            assert time.monotonic() < deadline_s, f"not within {within_s} s: {what}; {self.describe()}"
            time.sleep(0.05)

    def until_local(self, is_so: Callable[[], bool], what: str, within_s: float = BOOT_S) -> None:
        """The same, without a look at the database."""
        deadline_s = time.monotonic() + within_s
        while not is_so():
            self.agent.tick()
            assert time.monotonic() < deadline_s, f"not within {within_s} s: {what}"
            time.sleep(0.05)

    def wait(self, is_so: Callable[[], bool], what: str, within_s: float = BOOT_S) -> None:
        """The same, while another process does the work."""
        deadline_s = time.monotonic() + within_s
        while not is_so():
            assert time.monotonic() < deadline_s, f"not within {within_s} s: {what}"
            time.sleep(0.02)

    def until_state(self, state: ReplicaState, replica_id: str = REPLICA, within_s: float = BOOT_S) -> Replica:
        self.until(lambda: self.row(replica_id).state == state, f"{replica_id} is {state}", within_s)
        return self.row(replica_id)

    def row(self, replica_id: str = REPLICA) -> Replica:
        return Replica.objects.get(pk=replica_id)

    def describe(self) -> str:
        return "; ".join(f"{row.id} {row.state} {row.reason!r}" for row in Replica.objects.all())

    def run_file(self, replica_id: str = REPLICA) -> RunFile:
        return self.agent.tools.files.read_runs()[replica_id]

    def engine_core(self, replica_id: str = REPLICA) -> int:
        """The pid of the process that computes: the one of the session that does not lead it."""
        run = self.run_file(replica_id)
        others = [stat.pid for stat in processes.members(run.session, self.tag) if stat.pid != run.pid]
        assert len(others) == 1, others
        return others[0]

    def members(self, session: int) -> list[int]:
        return [stat.pid for stat in processes.members(session, self.tag)]

    def client(self, replica_id: str = REPLICA) -> httpx.Client:
        url = self.row(replica_id).url
        assert url.startswith("unix:")
        return httpx.Client(transport=httpx.HTTPTransport(uds=url.removeprefix("unix:")), base_url="http://engine", timeout=60)

    def launch_plainly(self) -> None:
        self.launchers = Launchers(self.tag, self.home.logs, is_prefork=False)

    def stop_engines(self) -> str:
        """`manage.py stop_engines` for this home; what it prints."""
        printed = io.StringIO()
        with override_settings(HOME=self.home):
            call_command("stop_engines", stdout=printed)
        return printed.getvalue()

    def request(self, weights: Path | str, *, model: str = MODEL, replica_id: str = REPLICA, **changes: object) -> Replica:
        """A registered model with one requested replica of this node."""
        spec = VersionSpec(
            weights_uri=str(weights), engine_environment=default_environment(), engine_args=ENGINE_ARGS, dtype="float32"
        )
        register_model(public_id=model, actor="test", version=replace(spec, **changes))  # type: ignore[arg-type]
        pool = Pool.objects.get(model__public_id=model)
        return Replica.objects.create(
            id=replica_id,
            pool=pool,
            version=pool.version,
            node=NODE,
            upstream_model=model,
            changed_at=timezone.now(),
        )


@pytest.fixture
def node(transactional_db: None, engine_home: Home, launchers: Launchers) -> Iterator[RealNode]:
    yield RealNode(engine_home, launchers)
    kept = launchers.own_sessions()
    shared = shared_engine(engine_home)
    if shared is not None:
        kept.add(shared.session)
    kill_leftovers(tag_of(engine_home, NODE), kept_sessions=kept)


def shared_engine(home: Home) -> RunFile | None:
    return NodeFiles(home, NODE).read_runs().get(REPLICA)


@pytest.fixture
def serving(node: RealNode, tiny: Path) -> RealNode:
    """A ready replica of the tiny model: the running engine, adopted, or a new one."""
    node.request(tiny)
    run = shared_engine(node.home)
    if run is not None and processes.is_alive(run.pid, run.start_time):
        Replica.objects.filter(pk=REPLICA).update(state=ReplicaState.READY, epoch=run.epoch, url=f"unix:{run.socket}")
    node.start_agent()
    node.until_state(ReplicaState.READY)
    return node
