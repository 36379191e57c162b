from argparse import ArgumentTypeError
from typing import Any

from django.core.management.base import CommandParser

from headway.command import HeadwayCommand, actor
from headway.tables import table
from inference.selectors import PoolStatus, pool_status
from inference.services.pools import BOUNDS, set_pool
from inference.services.registry import TARGET_FIELDS, pool_of

DEFAULT = "default"


class Command(HeadwayCommand):
    help = (
        "How a model's pool is run: requests at once on a replica (the batch cap moves between the two bounds), requests "
        "that may wait, and the latency each tier is to have. What is not given stays. Prints what holds."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("model", help="the model's public id")
        parser.add_argument("--min-in-flight", type=int, help="the batch cap goes no lower")
        parser.add_argument("--max-in-flight", type=int, help="requests at once on one replica, at most")
        parser.add_argument("--max-queued", type=int, help="requests that may wait in front of the pool")
        for name in TARGET_FIELDS:
            parser.add_argument(f"--{name.replace('_', '-')}", type=_milliseconds, help=f"or '{DEFAULT}'", metavar="MS")

    def handle(self, *, model: str, json: bool, **options: Any) -> None:
        given = {name: options[name] for name in (*BOUNDS, *TARGET_FIELDS) if options[name] is not None}
        changes = {name: None if value == DEFAULT else value for name, value in given.items()}
        pool = set_pool(public_id=model, changes=changes, actor=actor()) if changes else pool_of(model)
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
    return f"{bounds}\n\n" + table(["tier", "time to first token", "between tokens"], rows)
