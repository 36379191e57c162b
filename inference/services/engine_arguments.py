"""Hold a version's engine arguments against the engine's own parser where they are given, if that engine is on this machine.

Elsewhere a node's agent does the same before it fetches the weights (inference/node/composition.py): no version is used
unchecked.
"""

import functools
from collections.abc import Callable

from headway.errors import ConfigurationError
from headway.home import Home
from inference.engines.environments import engines_dir, find_environment
from inference.engines.options import over
from inference.engines.verdicts import Question, check
from inference.engines.vllm import EngineSettings, process_environment
from inference.launchers.parser_child import ask_parser
from inference.models import Pool
from inference.services.version_spec import VersionSpec

VERDICTS = "engine-args"
"""The folder below HEADWAY_HOME."""


def check_spec(
    *, spec: VersionSpec, max_in_flight: int, home: Home, pool_args: list[str] | None = None, say: Callable[[str], None]
) -> bool:
    """False: its engine is not on this machine. Raises BadEngineArguments, InvalidInput, LaunchFailed."""
    spec.check()
    try:
        environment = find_environment(spec.engine_environment, engines_dir())
    except ConfigurationError:
        say(f"{spec.engine_environment} is not on this machine: a node checks the engine arguments before it uses them")
        return False
    question = Question(
        environment=environment,
        weights=home.weights,
        weights_uri=spec.weights_uri,
        dtype=spec.dtype,
        max_num_seqs=max_in_flight,
        engine_args=tuple(over(spec.all_engine_args(), pool_args or [])),
    )
    variables = process_environment(
        environment.kind,
        tag=f"{home.installation_id}/registration",
        cache=home.folder("engine-cache"),
        settings=EngineSettings(),
    )
    say("asking the engine's parser about its arguments ...")
    check(question, home.folder(VERDICTS), functools.partial(ask_parser, environment.python, variables))
    return True


def check_pool(*, pool: Pool, engine_args: list[str], home: Home, say: Callable[[str], None]) -> None:
    """A pool's arguments over those of its stable version. Raises BadEngineArguments, InvalidInput, LaunchFailed."""
    version = pool.version
    if version is not None:
        spec = VersionSpec(
            weights_uri=version.weights_uri,
            engine_environment=version.engine_environment,
            engine_args=version.engine_args,
            dtype=version.dtype,
        )
        check_spec(spec=spec, max_in_flight=pool.max_in_flight, home=home, pool_args=engine_args, say=say)
