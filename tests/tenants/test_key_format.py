import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenants.services.key_format import ALPHABET, new_key, parse_key


def test_a_new_key_reads_back() -> None:
    key = new_key()
    assert parse_key(key.text) == key
    assert key.text.startswith(f"hw_live_{key.id}_")
    assert key.matches(key.secret_sha256)


def test_two_keys_differ() -> None:
    assert len({new_key().text for _ in range(100)}) == 100


@given(position=st.integers(0, 1000), letter=st.sampled_from(ALPHABET))
def test_one_wrong_character_is_noticed_without_a_look_up(position: int, letter: str) -> None:
    text = new_key().text
    index = position % len(text)
    if text[index] == letter:
        return
    assert parse_key(text[:index] + letter + text[index + 1 :]) is None


@pytest.mark.parametrize("text", ["", "hw_live_", "sk-abc", "hw_live_a_b_c", "é" * 78, "x" * 10_000])
def test_it_refuses_what_is_no_key(text: str) -> None:
    assert parse_key(text) is None


@given(st.text(max_size=100))
def test_no_text_makes_it_raise(text: str) -> None:
    parse_key(text)


def test_case_matters() -> None:
    text = new_key().text
    assert text.swapcase() != text
    assert parse_key("hw_live_" + text[8:].swapcase()) is None


def test_the_secret_is_not_in_its_representation() -> None:
    key = new_key()
    assert key.secret not in repr(key)
