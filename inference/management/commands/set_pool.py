import shlex
from argparse import ArgumentTypeError
from typing import Any

from django.conf import settings
from django.core.management.base import CommandParser

from headway.command import HeadwayCommand, actor
from headway.tables import table
from inference.engines.options import check_pool_args
from inference.management.version_arguments import shell_words
from inference.selectors import PoolStatus, pool_status
from inference.services.engine_arguments import check_pool
from inference.services.pools import BOUNDS, SCALING, set_pool, set_pool_engine_args
from inference.services.registry import TARGET_FIELDS, pool_of

DEFAULT = "default"


class Command(HeadwayCommand):
    help = (
        "How a model's pool is run: requests at once on a replica (the batch cap moves between the two bounds), requests "
        "that may wait, the latency each tier is to have, how many replicas serve. What is not given stays. Prints what holds."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("model", help="the model's public id")
        parser.add_argument("--min-in-flight", type=int, help="the batch cap goes no lower")
        parser.add_argument("--max-in-flight", type=int, help="requests at once on one replica, at most")
        parser.add_argument("--max-queued", type=int, help="requests that may wait in front of the pool")
        parser.add_argument(
            "--engine-args",
            help="for replicas started from then on, over their version's: how they run, not what they answer ('' for none)",
        )
        parser.add_argument("--autoscale", choices=("on", "off"), help="whether the autoscaler says how many serve")
        parser.add_argument("--min", type=int, dest="min_replicas", help="replicas that serve, at least; 0: may go to zero")
        parser.add_argument("--max", type=int, dest="max_replicas", help="and at most")
        parser.add_argument("--warm", type=int, dest="warm_replicas", help="replicas beside them, ready to serve at once")
        parser.add_argument("--idle-before-zero", type=int, dest="idle_before_zero_s", metavar="S", help="without a request")
        parser.add_argument("--hold-limit", type=int, dest="hold_limit_s", metavar="S", help="a request waits for a start")
        for name in TARGET_FIELDS:
            parser.add_argument(f"--{name.replace('_', '-')}", type=_milliseconds, help=f"or '{DEFAULT}'", metavar="MS")

    def handle(self, *, model: str, json: bool, autoscale: str | None, **options: Any) -> None:
        options["is_autoscaled"] = None if autoscale is None else autoscale == "on"
        given = {name: options[name] for name in (*BOUNDS, *SCALING, *TARGET_FIELDS) if options[name] is not None}
        changes = {name: None if value == DEFAULT else value for name, value in given.items()}
        pool = set_pool(public_id=model, changes=changes, actor=actor()) if changes else pool_of(model)
        if options["engine_args"] is not None:
            words = shell_words(options["engine_args"])
            check_pool_args(words)
            check_pool(pool=pool, engine_args=words, home=settings.HOME, say=self.say)
            pool = set_pool_engine_args(public_id=model, engine_args=words, actor=actor())
        status = pool_status(pool)
        self.print_result(_text(status), status.as_dict(), as_json=json)


def _milliseconds(text: str) -> int | str:
    if text == DEFAULT:
        return text
    try:
        return int(text)
    except ValueError:
        raise ArgumentTypeError(f"a number of milliseconds, or '{DEFAULT}', not {text!r}") from None


def _text(status: PoolStatus) -> str:
    rows = [[tier, f"{target['ttft_ms']} ms", f"{target['inter_token_ms']} ms"] for tier, target in status.targets.items()]
    bounds = f"{status.min_in_flight} to {status.max_in_flight} requests at once on a replica, {status.max_queued} may wait"
    if status.engine_args:
        bounds += f"\nengine arguments over the version's: {shlex.join(status.engine_args)}"
    return f"{bounds}\nreplicas: {status.scaling.text}\n\n" + table(["tier", "time to first token", "between tokens"], rows)
