"""Two real engines, all ways in which a request can end, and what they count of it themselves."""

import json
import os
import signal
from datetime import datetime, timedelta
from typing import Any

import httpx

from tests.chaos.conftest import Pair, engine_of
from tests.chaos.test_replica_dies import Ask, run_all
from tests.e2e.conftest import TINY
from tests.e2e.installation import eventually, running_requests

PREFIX = "The headway between two trains on one track is kept by signals. " * 12
LONG = {"prompt": "Go on", "max_tokens": 1500, "ignore_eos": True, "temperature": 0}


def reconcile(service: Pair) -> tuple[int, dict[str, Any]]:
    """Exit code and what it found."""
    done = service.installation.run("reconcile", "--json")
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def all_is_explained(service: Pair) -> dict[str, Any]:
    code, found = reconcile(service)
    drift = [
        (each["replica"], each["replica_epoch"], each["unexplained_prompt_tokens"], each["unexplained_completion_tokens"])
        for each in found["findings"]
        if each["verdict"] != "explained"
    ]
    assert (code, drift, found["inconsistent_requests"]) == (0, [], 0), found
    return found


def settled(service: Pair, records: list[dict[str, Any]]) -> dict[str, Any]:
    """The same once every engine that lives was counted well after the last of all requests had ended."""
    found: dict[str, Any] = {}
    after = max(datetime.fromisoformat(record["ended_at"]) for record in records) + timedelta(seconds=3)

    def is_counted_after() -> bool:
        found.update(all_is_explained(service))
        counted = {each["replica"]: datetime.fromisoformat(each["counted_at"]) for each in found["findings"]}
        return all(at > after for at in counted.values())

    eventually(is_counted_after, within_s=180, what="a count after all requests")
    return found


def change(service: Pair, request_id: str, completion_tokens: int) -> None:
    service.installation.manage(
        "shell",
        "-c",
        "from billing.models import UsageRecord; "
        f"UsageRecord.objects.filter(request_id={request_id!r}).update(completion_tokens={completion_tokens})",
    )


def ask(service: Pair, path: str = "/v1/completions", **body: Any) -> dict[str, Any]:
    response = httpx.post(
        service.installation.url + path,
        json={"model": TINY, **body},
        headers={"authorization": f"Bearer {service.key}"},
        timeout=120,
    )
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


def work(service: Pair, num_before: int) -> list[dict[str, Any]]:
    """Answers that come to their end, in all the forms an engine counts them; returns the ledger."""
    say = {"messages": [{"role": "user", "content": "Tell me of trains."}], "max_tokens": 20, "temperature": 0}
    asks = [Ask("/v1/completions", {"prompt": PREFIX, "max_tokens": 40, "temperature": 0}) for _ in range(4)]
    asks += [Ask("/v1/chat/completions", say), Ask("/v1/chat/completions", say, is_streamed=False)]
    for each in asks:
        each.run(service)
        assert each.error == "", each
    ask(service, prompt="Hello", max_tokens=8, n=3, temperature=1.0)
    ask(service, prompt=["One", "Two and three"], max_tokens=8, temperature=0)
    ask(service, prompt="Numbers", max_tokens=4, logprobs=2, temperature=0)
    ask(service, prompt="Until a stop", max_tokens=60, stop=["e"], temperature=0)
    return service.installation.wait_usage(num_before + len(asks) + 4)


def leave(service: Pair, *, after_events: int, is_streamed: bool = True) -> None:
    """Ask for a long answer and leave in the middle of it, or before anything has come."""
    headers = {"authorization": f"Bearer {service.key}"}
    body = {"model": TINY, **LONG, "stream": is_streamed}
    timeout_s = httpx.Timeout(60, read=60 if after_events else 0.3)
    try:
        with httpx.stream(
            "POST", f"{service.installation.url}/v1/completions", json=body, headers=headers, timeout=timeout_s
        ) as response:
            for number, _line in enumerate(response.iter_lines(), start=1):
                if number >= after_events:
                    return
    except httpx.ReadTimeout:
        assert not after_events


def test_what_engines_count_is_what_the_ledger_explains_and_a_changed_record_is_found(service: Pair) -> None:
    records = work(service, 0)
    found = settled(service, records)
    answered = sum(each["causes"]["answered"]["low_completion_tokens"] for each in found["findings"])
    assert answered == sum(record["completion_tokens"] for record in records)
    assert any(record["cached_tokens"] for record in records), "the engine's total has cached tokens in it, too"
    assert all(each["causes"]["agent"]["low_prompt_tokens"] > 0 for each in found["findings"])
    victim = next(record for record in records if record["completion_tokens"] == 40)
    change(service, victim["request_id"], 0)
    code, found = reconcile(service)
    wrong = [each for each in found["findings"] if each["verdict"] == "unexplained"]
    assert (code, [each["replica"] for each in wrong]) == (1, [victim["replica"]])
    assert 0 < wrong[0]["unexplained_completion_tokens"] <= 40
    assert "UNEXPLAINED DRIFT" in service.installation.manage("status")
    change(service, victim["request_id"], 40)
    all_is_explained(service)


def test_an_answer_that_went_on_at_another_engine_is_explained_on_both(service: Pair) -> None:
    num_before = len(work(service, len(service.installation.usage())))
    record = kill_under_a_stream(service, num_before + 1)
    dead, other = attempts_of(service, record["request_id"])
    assert (dead["ending"], other["ending"]) == ("engine_died", "done")
    assert dead["completion_tokens"] <= dead["max_completion_tokens"] == LONG["max_tokens"]
    assert other["prompt_tokens"] > record["prompt_tokens"], "it was sent what had been delivered, too"
    assert other["prompt_tokens"] == other["max_prompt_tokens"]
    service.wait_for_two()
    records = work(service, num_before + 1)
    found = settled(service, records)
    epochs = sorted(each["replica_epoch"] for each in found["findings"] if each["replica"] == dead["replica"])
    assert epochs == [1, 2], "both lives of the killed engine are compared"
    survivor = next(each for each in found["findings"] if each["replica"] == other["replica"])
    told = sum(each["prompt_tokens"] for each in records if each["replica"] == other["replica"])
    assert survivor["causes"]["answered"]["low_prompt_tokens"] > told - record["prompt_tokens"] + other["prompt_tokens"] - 1


def test_requests_that_were_left_are_explained_within_what_they_had_asked_for(service: Pair) -> None:
    num_before = len(work(service, len(service.installation.usage())))
    leave(service, after_events=3)
    leave(service, after_events=40)
    leave(service, after_events=0)
    leave(service, after_events=0, is_streamed=False)
    records = service.installation.wait_usage(num_before + 4)
    ends = {record["end_state"] for record in records[-4:]}
    assert ends <= {"client_gone_before_first_token", "client_gone_after_first_token"}
    for record in records[-4:]:
        assert len(attempts_of(service, record["request_id"])) == record["attempts"]
    all_is_explained(service)


def kill_under_a_stream(service: Pair, num_after: int) -> dict[str, Any]:
    """An engine is killed; the answer that it was making goes on at the other one. Returns its record."""
    asked = Ask("/v1/completions", LONG)
    (thread,) = run_all(service, [asked])
    eventually(lambda: asked.num_events >= 10, within_s=60, every_s=0.01, what="it has begun")
    os.killpg(busy_session(service), signal.SIGKILL)
    thread.join(120)
    assert (asked.error, asked.finish_reason) == ("", "length")
    record = service.installation.wait_usage(num_after)[-1]
    assert (record["attempts"], record["resumes"], record["end_state"]) == (2, 1, "done")
    return record


def busy_session(service: Pair) -> int:
    for run in service.runs().values():
        with engine_of(run) as engine:
            if running_requests(engine):
                return run.session
    raise AssertionError("no engine is busy")


def attempts_of(service: Pair, request_id: str) -> list[dict[str, Any]]:
    told = service.installation.manage(
        "shell",
        "-v",
        "0",
        "-c",
        "import json; from billing.models import Attempt; "
        f"rows = Attempt.objects.filter(request_id={request_id!r}).order_by('number').values(); "
        "print(json.dumps(list(rows), default=str))",
    )
    found: list[dict[str, Any]] = json.loads(told.splitlines()[-1])
    return found
