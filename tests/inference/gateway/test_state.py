import pytest

from inference.gateway.key_rows import KeyNotAllowed
from inference.gateway.state import Change, ControlState, KeyRefused
from tenants.access import Action
from tenants.services.key_format import ParsedKey, new_key
from tests.inference.gateway.control_rows import (
    gone,
    key_row,
    member_row,
    model_row,
    replica_row,
    state_of,
    state_with_key,
    tenant_row,
)

NOW_S = 1_800_000_000.0


def refusal(state: ControlState, text: str, *, now_s: float = NOW_S) -> str:
    with pytest.raises(KeyRefused) as caught:
        state.authenticate(text, now_s=now_s)
    assert caught.value.http_status == 401
    assert caught.value.code == "invalid_api_key"
    return caught.value.message


def test_a_known_key_says_whose_it_is() -> None:
    key = new_key()
    state = state_of(
        tenant_row(1, "t1", name="acme", cache_salt="s1"), key_row(2, key, "t1", member_id=7), member_row(3, 7, "t1")
    )
    principal = state.authenticate(key.text, now_s=NOW_S)
    assert (principal.tenant_id, principal.tenant_name, principal.key_id) == ("t1", "acme", key.id)
    assert (principal.member_id, principal.cache_salt) == (7, "s1")


@pytest.mark.parametrize("damage", ["", "x", "hw_live_", "Bearer", "é" * 70, "k" * 10_000])
def test_what_is_no_key_is_refused_without_a_look_up(damage: str) -> None:
    state, _ = state_with_key()
    assert "not an API key of this service" in refusal(state, damage)


def test_a_typo_is_told_from_an_unknown_key() -> None:
    state, key = state_with_key()
    typo = key.text[:30] + ("A" if key.text[30] != "A" else "B") + key.text[31:]
    assert "not an API key" in refusal(state, typo)
    assert "not an API key" in refusal(state, key.text.swapcase())


def test_an_unknown_id_and_a_wrong_secret_get_the_same_sentence() -> None:
    state, key = state_with_key()
    wrong_secret = ParsedKey(id=key.id, secret=new_key().secret).text
    assert refusal(state, new_key().text) == refusal(state, wrong_secret)


def test_a_revoked_key_is_refused_and_says_so() -> None:
    state, key = state_with_key()
    state.apply([gone(3, "key", key.id)])
    assert "revoked" in refusal(state, key.text)


def test_a_key_works_until_it_expires_and_not_a_moment_longer() -> None:
    key = new_key()
    state = state_of(tenant_row(1), key_row(2, key, expires_at=NOW_S))
    assert state.authenticate(key.text, now_s=NOW_S - 0.001).key_id == key.id
    assert "expired" in refusal(state, key.text, now_s=NOW_S)


def test_an_expired_key_with_a_wrong_secret_does_not_say_that_it_expired() -> None:
    key = new_key()
    state = state_of(tenant_row(1), key_row(2, key, expires_at=NOW_S - 1))
    assert "not known" in refusal(state, ParsedKey(id=key.id, secret=new_key().secret).text)


@pytest.mark.parametrize("change", [tenant_row(3, is_active=False), gone(3, "tenant", "acme-id")])
def test_a_suspended_or_vanished_tenant_has_no_working_key(change: Change) -> None:
    state, key = state_with_key()
    state.apply([change])
    assert "suspended" in refusal(state, key.text)


def test_no_refusal_carries_the_key() -> None:
    state, key = state_with_key()
    state.apply([tenant_row(3, is_active=False)])
    for text in (key.text, new_key().text, key.text[:-1], ParsedKey(id=key.id, secret=new_key().secret).text):
        message = refusal(state, text)
        assert not any(part in message for part in text.split("_")[2:])


def test_models_are_sorted_and_only_ready_replicas_are_offered() -> None:
    state = state_of(
        model_row(1, "z/model"),
        model_row(2, "a"),
        replica_row(3, "r2", "a"),
        replica_row(4, "r1", "a", epoch=3),
        replica_row(5, "r3", "a", state="draining"),
    )
    assert [model.public_id for model in state.models()] == ["a", "z/model"]
    assert [(replica.id, replica.epoch) for replica in state.replicas("a")] == [("r1", 3), ("r2", 0)]
    assert state.replicas("z/model") == state.replicas("nobody") == []
    assert state.model("a") is not None
    assert state.model("b") is None


def test_the_newest_row_of_an_object_holds() -> None:
    state = state_of(model_row(1), replica_row(2, "r1"), replica_row(3, "r1", state="draining"))
    assert state.replicas("m") == []
    state.apply([replica_row(4, "r1"), gone(5, "model", "m"), gone(6, "replica", "r1")])
    assert state.model("m") is None
    assert state.replicas("m") == []
    assert state.applied_change_id == 6


def test_listeners_hear_of_routes_and_of_nothing_else_after_the_tables_have_changed() -> None:
    state, heard = ControlState(), []
    state.on_routes_changed(lambda: heard.append(len(state.replicas("m"))))
    state.apply([tenant_row(1), key_row(2, new_key())])
    state.apply([])
    assert heard == []
    state.apply([model_row(3), replica_row(4)])
    assert heard == [1]


def test_a_row_that_cannot_be_read_counts_as_gone_and_one_of_an_unknown_kind_is_passed_over() -> None:
    state, key = state_with_key()
    state.apply([Change(3, "plan", "gold", {"rpm": 1}), Change(4, "key", key.id, {"tenant_id": 5})])
    assert state.applied_change_id == 4
    with pytest.raises(KeyRefused):
        state.authenticate(key.text, now_s=NOW_S)


def test_fields_a_newer_release_adds_are_passed_over() -> None:
    assert state_of(model_row(1, new_field=[1])).model("m") is not None


def test_reload_forgets_what_is_not_in_the_new_rows() -> None:
    state, key = state_with_key()
    state.apply([model_row(8)])
    state.reload([tenant_row(1), model_row(2, "other")])
    assert state.applied_change_id == 2
    assert [model.public_id for model in state.models()] == ["other"]
    with pytest.raises(KeyRefused):
        state.authenticate(key.text, now_s=NOW_S)


def test_rows_are_enough_to_build_the_same_state_again() -> None:
    state, key = state_with_key()
    revoked = new_key()
    state.apply([key_row(3, revoked), gone(4, "key", revoked.id), model_row(5), replica_row(6), gone(7, "replica", "r1")])
    again = state_of(*state.rows())
    assert again.authenticate(key.text, now_s=NOW_S) == state.authenticate(key.text, now_s=NOW_S)
    assert "revoked" in refusal(again, revoked.text)
    assert again.models() == state.models()
    assert [change.id for change in state.rows()] == [1, 2, 4, 5]


@pytest.mark.parametrize("role", ["billing", "viewer", "a role of a later release", ""])
def test_n1_a_demoted_members_key_runs_no_model_until_the_role_is_back(role: str) -> None:
    key = new_key()
    state = state_of(tenant_row(1), key_row(2, key, member_id=7), member_row(3, role="developer"))
    state.authenticate(key.text, now_s=NOW_S).key.check(Action.RUN_INFERENCE, "")
    state.apply([member_row(4, role=role)])
    with pytest.raises(KeyNotAllowed):
        state.authenticate(key.text, now_s=NOW_S).key.check(Action.RUN_INFERENCE, "")
    state.apply([member_row(5, role="admin")])
    state.authenticate(key.text, now_s=NOW_S).key.check(Action.RUN_INFERENCE, "")


def test_n1_the_key_of_who_is_no_member_of_its_tenant_is_refused() -> None:
    key, nobodys = new_key(), new_key()
    state = state_of(tenant_row(1), key_row(2, key, member_id=7), key_row(3, nobodys), member_row(4, tenant_id="globex-id"))
    assert "no longer" in refusal(state, key.text)
    state.apply([member_row(5)])
    state.authenticate(key.text, now_s=NOW_S)
    state.apply([gone(6, "member", "acme-id/7")])
    assert "no longer" in refusal(state, key.text)
    state.authenticate(nobodys.text, now_s=NOW_S)


def test_n5_who_is_no_member_or_may_not_is_no_principal_of_a_ticket() -> None:
    state = state_of(tenant_row(1), member_row(2, 7, role="developer"), member_row(3, 8, role="viewer"))
    assert state.member("acme-id", 7).member_id == 7
    with pytest.raises(KeyNotAllowed):
        state.member("acme-id", 8)
    state.apply([gone(4, "member", "acme-id/7")])
    with pytest.raises(KeyRefused):
        state.member("acme-id", 7)


def test_members_are_in_the_snapshots_rows() -> None:
    state = state_of(tenant_row(1), member_row(2), member_row(3, 8), gone(4, "member", "acme-id/8"))
    again = ControlState()
    again.reload(state.rows())
    assert [again.member("acme-id", 7).member_id, [row.key for row in again.rows()]] == [7, ["acme-id", "acme-id/7"]]
