import time
from typing import Any

from django.core.management.base import CommandError, CommandParser

from headway.command import HeadwayCommand, actor
from inference.eval_models import OPEN_EVALS, EvalRun, EvalState
from inference.services.evals.reads import run_values
from inference.services.evals.runs import DEFAULT_CONCURRENCY, ask_for_run, run_with
from inference.services.evals.sets import eval_set_named
from inference.services.version_labels import version_label

LOOK_S = 1.0


class Command(HeadwayCommand):
    help = "Ask a version of a model every case of an eval set, through the gateway at batch tier; prints the run's number."

    interrupted = "no longer waiting: a run that was asked for goes on (eval_report shows it, its page cancels it)"

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("eval_set", help="its name, or name@number")
        parser.add_argument("--model", required=True, help="the model's public id")
        parser.add_argument("--version", dest="version_label", default="", help="such as v2; without: the stable one")
        parser.add_argument("--concurrency", type=int, default=DEFAULT_CONCURRENCY, help="requests at once")
        parser.add_argument("--wait", action="store_true", help="until it is over; exit code 1 unless it is done")

    def handle(
        self,
        *,
        eval_set: str,
        model: str,
        version_label: str,
        concurrency: int,
        wait: bool,
        json: bool,
        **_options: Any,
    ) -> None:
        found = eval_set_named(eval_set)
        run = ask_for_run(eval_set=found, model=model, version=version_label, actor=actor(), concurrency=concurrency)
        if wait:
            run = self._wait(run)
        self.print_result(_line(run_with(run.id), is_over=wait), run_values(run_with(run.id)), as_json=json)
        if wait and run.state != EvalState.DONE:
            raise CommandError(f"run {run.id} is {run.state}: {run.reason}")

    def _wait(self, run: EvalRun) -> EvalRun:
        told = ""
        while run.state in OPEN_EVALS:
            now = f"{run.state}: {run.cases_done} of {run.cases_total}{f', {run.reason}' if run.reason else ''}"
            if now != told:
                self.say(now)
            told = now
            time.sleep(LOOK_S)
            run.refresh_from_db()
        return run


def _line(run: EvalRun, *, is_over: bool) -> str:
    if not is_over or run.score is None:
        return str(run.id)
    score = f"{run.score * 100:.1f} % ({(run.score_low or 0) * 100:.1f} to {(run.score_high or 0) * 100:.1f})"
    return f"{run.id}  {run.eval_set} on {run.model} {version_label(run.version)}: {score}"
