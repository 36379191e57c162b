from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import CommandParser

from headway.command import HeadwayCommand
from inference.engines.environments import default_environment, engines_dir, find_environment
from inference.engines.vllm import EngineSettings, process_environment
from inference.node.tiny_model import make_tiny_model
from inference.node.weights import StagingTools


class Command(HeadwayCommand):
    help = "Make a random model of two layers for tests in a folder (it stays as it is if it is there); prints the folder."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("path", type=Path)
        parser.add_argument("--seed", type=int, default=0, help="another seed makes another model (default 0)")

    def handle(self, *, path: Path, seed: int, json: bool, **_options: Any) -> None:
        environment = find_environment(default_environment(), engines_dir())
        cache = settings.HOME.folder("engine-cache")
        # Not this node's tag: an agent that starts meanwhile must not take the maker for a leftover of its own.
        variables = process_environment(environment.kind, tag="make_tiny_model", cache=cache, settings=EngineSettings())
        tools = StagingTools(
            folder=settings.HOME.weights, python=environment.python, engine_environment=variables, progress=self._said()
        )
        folder = make_tiny_model(path.absolute(), seed=seed, tools=tools)
        self.print_result(str(folder), {"path": str(folder), "seed": seed}, as_json=json)

    def _said(self) -> Any:
        last = [""]

        def say(line: str) -> None:
            if line != last[0]:
                last[0] = line
                self.say(line)

        return say
