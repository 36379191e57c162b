"""What a gateway tells of its requests' records while they run and when they end."""

import asyncio

import pytest

from billing.services.ledger import UsageDraft
from tests.fakes.gateway import basic, model_changes, running_gateway, until
from tests.fakes.replica import ScriptedReplica, chat_events, refused, streamed
from tests.inference.dispatch.test_dispatcher import terms


async def test_a_running_requests_record_says_how_far_it_is_and_its_last_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    go, events = asyncio.Event(), chat_events()
    finals: list[UsageDraft] = []
    async with ScriptedReplica() as replica, running_gateway(model_changes("m", [replica.url])) as gateway:
        monkeypatch.setattr(gateway.dispatcher.link, "final", finals.append)
        replica.script(streamed([*events[:2], go, *events[2:]]))
        asking = asyncio.create_task(gateway.post(body=basic(stream=True)))
        await until(lambda: any(grant.num_tokens and grant.num_tokens() for grant in gateway.dispatcher.running.values()))
        (name,) = gateway.dispatcher.running
        so_far = gateway.dispatcher.draft_of(name)
        assert so_far is not None
        assert (so_far.request_id, so_far.end_state, so_far.usage_source) == (name, "gateway_lost", "partial")
        assert (so_far.prompt_tokens, so_far.completion_tokens, so_far.replica) == (7, 1, "rep-0")
        assert not finals and not gateway.journal.closed
        go.set()
        assert (await asking).status_code == 200
        (final,) = finals
        assert final == gateway.journal.closed[0]
        assert (final.request_id, final.end_state, final.completion_tokens) == (name, "done", 3)
        assert gateway.dispatcher.draft_of(name) is None


async def test_what_was_never_admitted_is_the_journals_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    finals: list[UsageDraft] = []
    async with ScriptedReplica() as replica:
        replica.script(refused(400, "no"))
        async with running_gateway([*model_changes("m", [replica.url]), terms(requests_per_minute=1)]) as gateway:
            monkeypatch.setattr(gateway.dispatcher.link, "final", finals.append)
            statuses = [(await gateway.post(body=body)).status_code for body in (basic(), basic(), b"{")]
            assert (statuses, [each.end_state for each in gateway.journal.closed]) == ([400, 429, 400], ["refused"] * 3)
    assert [each.attempts for each in finals] == [1]


@pytest.mark.parametrize("is_streamed", [True, False])
async def test_an_answer_whose_slot_may_be_another_s_is_ended_and_on_record_with_what_it_has(is_streamed: bool) -> None:
    go, events = asyncio.Event(), chat_events()
    async with ScriptedReplica() as replica, running_gateway(model_changes("m", [replica.url])) as gateway:
        replica.script(streamed([*events[:2], go, *events[2:]]))
        asking = asyncio.create_task(gateway.post(body=basic(stream=is_streamed)))
        await until(lambda: any(grant.num_tokens and grant.num_tokens() for grant in gateway.dispatcher.running.values()))
        gateway.dispatcher.cut_running()
        answer = await asking
        assert (answer.status_code, '"code":"gateway_detached"' in answer.text) == (200 if is_streamed else 503, True)
        record = await gateway.only_record()
        assert (record.end_state, record.completion_tokens, record.usage_source) == ("gateway_lost", 1, "partial")
        assert gateway.in_flight() == 0
