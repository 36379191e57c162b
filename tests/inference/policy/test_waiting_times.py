from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from inference.policy.decisions import Ask, Tier
from inference.policy.entry import Entry
from inference.policy.pool import Pool
from inference.policy.waiting_times import Calendar


def entry(number: int) -> Entry:
    ask = Ask(str(number), "m", "acme", "k")
    return Entry(id=ask.id, ask=ask, tier=Tier.STANDARD, arrival_s=0.0, number=number, max_tokens=1, pool=cast(Pool, None))


STEPS = st.lists(st.tuples(st.sampled_from(["add", "remove", "due"]), st.floats(0.0, 3.0), st.integers(0, 30)), max_size=60)


@given(steps=STEPS)
def test_each_is_due_once_in_order_at_its_time_unless_it_left(steps: list[tuple[str, float, int]]) -> None:
    calendar, now_s = Calendar(), 100.0
    there: dict[int, float] = {}
    entries: dict[int, Entry] = {}
    for number, (step, amount_s, which) in enumerate(steps):
        if step == "add":
            entries[number] = entry(number)
            there[number] = now_s + amount_s
            calendar.add(there[number], entries[number])
        elif step == "remove" and there:
            gone = sorted(there)[which % len(there)]
            calendar.remove(there.pop(gone), entries[gone])
        elif step == "due":
            now_s += amount_s
            due = sorted((at_s, each) for each, at_s in there.items() if at_s <= now_s)
            assert [(there.pop(each.number), each.number) for each in calendar.due(now_s)] == due
        assert calendar.next_s() == min(there.values(), default=None)


def test_what_is_infinitely_far_away_is_never_due() -> None:
    calendar = Calendar()
    calendar.add(float("inf"), entry(1))
    assert list(calendar.due(1e9)) == []
    calendar.remove(float("inf"), entry(1))
    assert calendar.next_s() is None
