"""One case over HTTP: what is sent, what is tried again, and what ends a part."""

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from inference.services.evals.asking import SETTLE_S, Answer, Asker, GatewayAway, WrongVersion
from tests.inference.evals.fake_gateway import Reply, answer, refusal

CONTENT = {"messages": [{"role": "user", "content": "Say ok"}], "max_tokens": 7, "sampling": {}, "checks": [], "tags": []}


class Replies:
    """Gives one after another, the last for ever; time passes only by sleeping."""

    def __init__(self, *replies: Reply | Exception, part_s: float = 45.0) -> None:
        self.replies, self.seen, self.now_s, self.part_s = list(replies), list[httpx.Request](), 0.0, part_s

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.seen.append(request)
        reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        if isinstance(reply, Exception):
            raise reply
        status, body, headers = reply
        return httpx.Response(status, content=json.dumps(body), headers=headers)

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def asker(self, *, version: str = "v2", is_stable: bool = False) -> Asker:
        return Asker(
            base_url="http://gateway",
            api_key="k",
            model="m",
            version=version,
            is_stable=is_stable,
            until_s=self.part_s,
            transport=httpx.MockTransport(self),
            monotonic_s=lambda: self.now_s,
            sleep=self.sleep,
        )


def test_it_is_an_ordinary_request_at_batch_tier_that_names_its_version() -> None:
    replies = Replies(answer("ok", version="v2"))
    found = replies.asker().ask({**CONTENT, "sampling": {"temperature": 0.7, "seed": 1}})
    assert (found.text, found.finish_reason, found.request_id) == ("ok", "stop", "req-1")
    assert (found.prompt_tokens, found.completion_tokens) == (10, 3)
    (request,) = replies.seen
    assert request.url.path == "/v1/chat/completions"
    assert (request.headers["authorization"], request.headers["x-headway-version"]) == ("Bearer k", "v2")
    body = httpx.Response(200, content=request.content).json()
    assert body == {
        "model": "m",
        "messages": CONTENT["messages"],
        "max_tokens": 7,
        "temperature": 0.7,
        "seed": 1,
        "priority": "batch",
    }


def test_without_a_word_of_its_case_it_is_greedy() -> None:
    replies = Replies(answer("ok", version="v2"))
    replies.asker().ask(CONTENT)
    assert httpx.Response(200, content=replies.seen[0].content).json()["temperature"] == 0


@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_gateway_is_asked_again_when_it_says(status: int) -> None:
    replies = Replies(refusal(status, retry_after_s=7), answer("ok", version="v2"))
    assert replies.asker().ask(CONTENT).text == "ok"
    assert replies.now_s == 7


def test_one_that_stays_busy_ends_the_part() -> None:
    replies = Replies(refusal(503, message="all are busy", retry_after_s=5))
    with pytest.raises(GatewayAway, match="503: all are busy"):
        replies.asker().ask(CONTENT)
    assert replies.now_s <= replies.part_s


def test_an_engine_that_fails_three_times_is_what_the_case_came_to() -> None:
    replies = Replies(refusal(502, message="the engine failed"))
    found = replies.asker().ask(CONTENT)
    assert found.error == "502: the engine failed"
    assert len(replies.seen) == 3


def test_what_is_refused_is_what_the_case_came_to() -> None:
    replies = Replies(refusal(400, message="too long for the context"))
    assert replies.asker().ask(CONTENT).error == "400: too long for the context"
    assert len(replies.seen) == 1


@pytest.mark.parametrize("reply", [refusal(401), refusal(400, "version_not_allowed")])
def test_what_a_gateway_has_not_heard_of_yet_is_waited_for(reply: Reply) -> None:
    replies = Replies(reply, reply, answer("ok", version="v2"))
    assert replies.asker().ask(CONTENT).text == "ok"
    assert 0 < replies.now_s < SETTLE_S


def test_a_key_that_is_never_known_ends_the_part() -> None:
    replies = Replies(refusal(401, message="unknown key"))
    with pytest.raises(GatewayAway, match="401: unknown key"):
        replies.asker().ask(CONTENT)


def test_a_version_that_may_not_be_asked_for_ends_the_run() -> None:
    with pytest.raises(WrongVersion, match="none that you may ask for"):
        Replies(refusal(400, "version_not_allowed", "none that you may ask for")).asker().ask(CONTENT)


def test_an_answer_of_another_version_ends_the_run() -> None:
    with pytest.raises(WrongVersion, match="answered by v1, and not by v2"):
        Replies(answer("ok", version="v1")).asker().ask(CONTENT)
    with pytest.raises(WrongVersion, match="does not say that v2 answered"):
        Replies(answer("ok")).asker().ask(CONTENT)
    assert Replies(answer("ok")).asker(is_stable=True).ask(CONTENT).text == "ok", "who answers without being named"


@pytest.mark.parametrize("error", [httpx.ConnectError("refused"), httpx.ReadTimeout("slow"), httpx.RemoteProtocolError("cut")])
def test_a_gateway_that_does_not_answer_ends_the_part(error: Exception) -> None:
    with pytest.raises(GatewayAway):
        Replies(error).asker().ask(CONTENT)


BAD: list[Callable[[dict[str, Any]], Any]] = [
    lambda _body: [],
    lambda _body: {"choices": []},
    lambda body: {**body, "usage": None},
    lambda body: {**body, "choices": [{"message": None}]},
]


@pytest.mark.parametrize("spoil", BAD)
def test_an_answer_that_is_no_chat_completion_is_an_error_of_the_case(spoil: Callable[[dict[str, Any]], Any]) -> None:
    status, body, headers = answer("ok", version="v2")
    found = Replies((status, spoil(body), headers)).asker().ask(CONTENT)
    assert found.error == "the answer is not a chat completion"
    assert found.text == ""


def test_what_no_database_keeps_is_taken_out_of_an_answer() -> None:
    found: Answer = Replies(answer("a\0b\ud800c", version="v2")).asker().ask(CONTENT)
    assert found.text == "ab?c"


def page(status: int) -> Reply:
    """What a proxy says by itself: no error object."""
    return status, {"html": "Bad Gateway"}, {}


@pytest.mark.parametrize("status", [500, 502, 503, 504])
def test_a_proxy_whose_gateway_is_away_is_no_engine_that_failed(status: int) -> None:
    replies = Replies(*[page(status)] * 5, answer("ok", version="v2"))
    assert replies.asker().ask(CONTENT).text == "ok"
    with pytest.raises(GatewayAway, match=str(status)):
        Replies(page(status)).asker().ask(CONTENT)


@pytest.mark.parametrize("status", [301, 400, 404, 405])
def test_an_address_at_which_no_gateway_is_says_nothing_about_a_model(status: int) -> None:
    with pytest.raises(GatewayAway, match=f"HTTP {status}, and not from a gateway"):
        Replies(page(status)).asker().ask(CONTENT)
