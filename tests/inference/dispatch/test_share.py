import pytest

from inference.dispatch.share import Share


@pytest.mark.parametrize("processes", [1, 2, 3, 7, 16])
@pytest.mark.parametrize("slots", [16, 17, 100])
def test_the_parts_of_all_processes_add_up_and_differ_by_at_most_one(processes: int, slots: int) -> None:
    parts = [Share(index, processes).of(slots) for index in range(processes)]
    assert sum(parts) == slots
    assert max(parts) - min(parts) <= 1
    assert parts == sorted(parts, reverse=True), "the remainder goes to the first ones"


def test_each_process_has_at_least_one() -> None:
    assert [Share(index, 4).of(2) for index in range(4)] == [1, 1, 1, 1]
