from argparse import SUPPRESS, ArgumentParser
from collections.abc import Callable
from typing import Any

from django.core.management.base import CommandParser
from django.utils import timezone

from headway.command import HeadwayCommand
from headway.tables import table
from inference.management.named_operator import acting_operator
from inference.management.rollout_arguments import add_create_arguments, schedule_from
from inference.rollout_models import Rollout
from inference.services.rollouts.approving import approve_rollout
from inference.services.rollouts.moves import rollout_numbered
from inference.services.rollouts.operating import (
    abort_rollout,
    create_rollout,
    pause_rollout,
    promote_rollout,
    resume_rollout,
    roll_back_rollout,
    start_rollout,
)
from inference.services.rollouts.reading import event_shown, events_of, rollouts, shown

ACTS: dict[str, tuple[Callable[..., None], str, bool]] = {
    "start": (start_rollout, "begin: weights are staged, a replica is certified", False),
    "pause": (pause_rollout, "go no further; the share stays, the gates are watched", True),
    "resume": (resume_rollout, "go on where it was paused; one on its way back from promotion stays promoted", False),
    "approve": (approve_rollout, "as its second person: it is promoted once its steps are through", True),
    "promote": (promote_rollout, "make it stable without waiting for what is left of its steps", True),
    "rollback": (roll_back_rollout, "back to the version it came from; after promotion while that is kept warm", True),
    "abort": (abort_rollout, "end it before it is promoted", True),
}
"""By name: what does it, what it does, whether a reason can be given."""
BY_PERSONS = frozenset({"approve", "promote"})
"""And `create`: by the two-person rule."""


class Command(HeadwayCommand):
    help = "Bring a version of a model into service step by step, and take it out again. See docs/operations.md."

    def add_arguments(self, parser: CommandParser) -> None:
        verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
        create = verbs.add_parser("create", help="draft one; nothing happens until it is started")
        add_create_arguments(create)
        _add_operator(create)
        each = [create]
        for verb, (_, what, has_reason) in ACTS.items():
            act = verbs.add_parser(verb, help=what)
            act.add_argument("rollout", help="its number")
            if has_reason:
                act.add_argument("--reason", default="", help="goes into its timeline and the audit log")
            if verb in BY_PERSONS:
                _add_operator(act)
            each.append(act)
        show = verbs.add_parser("show", help="where it is, what its gates say, what happened")
        show.add_argument("rollout", help="its number")
        listed = verbs.add_parser("list", help="all, newest first")
        listed.add_argument("--model", default="", help="of one model")
        for subparser in (*each, show, listed):
            subparser.add_argument("--json", action="store_true", default=SUPPRESS, help="print the result as JSON")

    def handle(self, *, verb: str, json: bool, **options: Any) -> None:
        if verb == "list":
            self._list(options["model"], as_json=json)
        elif verb == "show":
            self._show(rollout_numbered(options["rollout"]), as_json=json)
        elif verb == "create":
            self._tell(self._created(options), as_json=json)
        else:
            act, _, has_reason = ACTS[verb]
            rollout = rollout_numbered(options["rollout"])
            who = acting_operator(options.get("operator", ""))
            act(rollout=rollout, actor=who, **({"reason": options["reason"]} if has_reason else {}))
            self._tell(rollout, as_json=json)

    def _created(self, options: dict[str, Any]) -> Rollout:
        who = acting_operator(options["operator"])
        rollout = create_rollout(
            public_id=options["model"],
            to=options["to"],
            actor=who,
            schedule=schedule_from(options),
            gates=dict(options["gate"]),
            window_s=options["window_s"],
            kept_warm=options["kept_warm"],
            scheduled_for=options["at"],
        )
        if options["start"]:
            start_rollout(rollout=rollout, actor=who)
        return rollout

    def _tell(self, rollout: Rollout, *, as_json: bool) -> None:
        found = shown(rollout_numbered(rollout.pk), now=timezone.now())
        self.print_result(_line(found), found, as_json=as_json)

    def _list(self, model: str, *, as_json: bool) -> None:
        now = timezone.now()
        found = [shown(rollout, now=now) for rollout in rollouts(public_id=model)[:200]]
        rows = [[str(each["id"]), each["model"], each["from"], each["to"], each["state"], each["reason"]] for each in found]
        text = table(["rollout", "model", "from", "to", "state", "reason"], rows) if rows else "there is no rollout"
        self.print_result(text, {"rollouts": found}, as_json=as_json)

    def _show(self, rollout: Rollout, *, as_json: bool) -> None:
        found = shown(rollout, now=timezone.now())
        events = [event_shown(event) for event in events_of(rollout)]
        gates = [
            [finding["gate"], finding["outcome"], str(finding["candidate_samples"]), finding["reason"]]
            for finding in found["findings"]
        ]
        happened = [[event["at"][:19], event["kind"], event["to"], event["actor"], event["reason"]] for event in events]
        parts = [_line(found)]
        if gates:
            parts.append(table(["gate", "verdict", "samples", "why"], gates))
        parts.append(table(["at (UTC)", "what", "to", "who", "why"], happened))
        self.print_result("\n\n".join(parts), {**found, "events": events}, as_json=as_json)


def _add_operator(parser: ArgumentParser) -> None:
    what = "whose account does it, by its password; without: the machine's user, who is nobody to the two-person rule"
    parser.add_argument("--operator", default="", metavar="NAME", help=what)


def _line(found: dict[str, Any]) -> str:
    seen = found["share_seen"]
    share = f", {found['share_ppm'] / 10_000:g} % asked" if found["share_ppm"] else ""
    share += f", {100 * seen['share']:.1f} % seen of {seen['requests']} requests" if share and seen else ""
    why = f": {found['reason']}" if found["reason"] else ""
    return f"rollout {found['id']} of {found['model']} from {found['from']} to {found['to']} is {found['state']}{share}{why}"
