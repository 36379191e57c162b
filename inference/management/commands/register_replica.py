import time
from typing import Any

from django.core.management.base import CommandParser

from headway.command import HeadwayCommand, actor
from inference.models import ReplicaState
from inference.services.external import certify_external
from inference.services.registry import register_replica

ASK_EVERY_S = 1.0


class Command(HeadwayCommand):
    help = (
        "Register an engine that runs elsewhere; prints the replica's id. It takes traffic once a one-token request answered."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--model", required=True, help="public id of a registered model")
        parser.add_argument("--url", required=True, help="http(s)://host:port or unix:/path/to/socket")
        parser.add_argument("--kind", required=True, help="vllm, or openai for any other OpenAI-compatible engine")
        parser.add_argument("--upstream-model", default="", help="the model's name at the engine (default: the public id)")
        parser.add_argument("--wait", type=float, default=10.0, help="seconds to wait for its first token (default 10)")

    def handle(self, *, model: str, url: str, kind: str, upstream_model: str, wait: float, json: bool, **_options: Any) -> None:
        replica = register_replica(public_id=model, url=url, kind=kind, upstream_model=upstream_model, actor=actor())
        deadline_s = time.monotonic() + wait
        replica = certify_external(replica.id)
        while replica.state != ReplicaState.READY and time.monotonic() < deadline_s:
            time.sleep(ASK_EVERY_S)
            replica = certify_external(replica.id)
        if replica.state != ReplicaState.READY:
            self.say(f"not ready yet: {replica.reason} (gateways and node agents go on asking)")
        self.print_result(replica.id, {"id": replica.id, "state": replica.state, "reason": replica.reason}, as_json=json)
