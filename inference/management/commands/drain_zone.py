import time
from typing import Any

from django.core.management.base import CommandError, CommandParser

from headway.command import HeadwayCommand, actor
from inference.services.fleet_reads import DrainReport, newest_drain
from inference.services.fleet_sweep import look_after_fleet
from inference.services.zones import DRAIN_LIMIT_S, drain_zone

LOOK_S = 1.0


class Command(HeadwayCommand):
    help = (
        "Empty a zone: refused unless the others have room for what runs there; replacements first, then it is drained, and "
        "the ledger is asked whether a stream failed. Waits for the verdict; exit code 1 unless it is clean."
    )

    interrupted = "no longer waiting: the drain goes on (--report shows it; undrain_zone takes it back)"

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("zone")
        parser.add_argument("--force", action="store_true", help="let go what finds no place elsewhere")
        parser.add_argument("--no-wait", action="store_true", help="return at once: the sweep goes on by itself")
        parser.add_argument("--report", action="store_true", help="only print the report of the newest drain of the zone")
        parser.add_argument("--within", type=int, default=DRAIN_LIMIT_S, help=f"seconds it may take ({DRAIN_LIMIT_S})")

    def handle(self, *, zone: str, force: bool, no_wait: bool, report: bool, within: int, json: bool, **_options: Any) -> None:
        if not report:
            drain_zone(zone=zone, actor=actor(), is_forced=force, limit_s=within)
        found = newest_drain(zone)
        if found is None:
            raise CommandError(f"zone {zone} was never drained")
        while not (report or no_wait or found.is_over):
            time.sleep(LOOK_S)
            look_after_fleet()
            found = newest_drain(zone) or found
        self.print_result(text_of(found), found.as_dict(), as_json=json)
        if found.is_over and not found.is_clean:
            raise SystemExit(1)


def text_of(report: DrainReport) -> str:
    ends = ", ".join(f"{count} {state}" for state, count in sorted(report.ends.items())) or "none"
    lines = [
        f"zone {report.zone}: {report.verdict}{f' ({report.reason})' if report.reason else ''}",
        f"begun {report.started_at:%Y-%m-%d %H:%M:%S} UTC by {report.by}{', forced' if report.is_forced else ''}, "
        f"{report.took_s:.0f} s",
        f"{len(report.replicas)} replicas on {', '.join(report.nodes)}, with {report.streams_in_flight} requests when it began",
        f"requests they took part in: {ends}; {report.moved} went on elsewhere, {report.failed} failed",
    ]
    for model, before in report.before["models"].items():
        after = report.after.get("models", {}).get(model)
        then = f", then {after['zone']} and {after['elsewhere']}" if after else ""
        lines.append(f"{model}: {before['zone']} ready there and {before['elsewhere']} elsewhere{then}")
    return "\n".join(lines)
