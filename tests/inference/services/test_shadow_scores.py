import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.services.shadow_scores import MAX_WORDS, Answer, Mirrored, similarity, write_scores
from inference.shadow_models import ShadowScore


def mirrored(**changes: object) -> Mirrored:
    given: dict[str, object] = {
        "rollout": "7",
        "model": "m",
        "stable": "v1",
        "candidate": "v2",
        "at_s": 1_800_000_000.0,
        "error": "",
        "of_stable": Answer(10, 1.5, 4, "stop", "it is 42"),
        "of_candidate": Answer(20, 2.5, 5, "length", "it is 43"),
        "cost_picos": 9_000,
    }
    return Mirrored(**{**given, **changes})  # type: ignore[arg-type]


@pytest.mark.django_db
def test_scores_are_kept_and_texts_are_not() -> None:
    write_scores([mirrored(), mirrored(error="engine_died", of_candidate=Answer())])
    good, bad = ShadowScore.objects.order_by("id")
    assert (good.ttft_ms_stable, good.ttft_ms_candidate, good.inter_token_ms_candidate) == (10, 20, 2.5)
    assert (good.completion_tokens_stable, good.completion_tokens_candidate, good.cost_picos) == (4, 5, 9_000)
    assert (good.finish_reason_stable, good.finish_reason_candidate) == ("stop", "length")
    assert good.similarity == pytest.approx(2 / 3)
    assert (bad.error, bad.similarity, bad.ttft_ms_candidate) == ("engine_died", None, None)
    text = {field.name for field in ShadowScore._meta.fields if "text" in field.get_internal_type().lower()}
    assert not text and "it is" not in str([good.__dict__, bad.__dict__])


@given(st.text(max_size=200), st.text(max_size=200))
def test_similarity_is_from_0_to_1_and_1_for_the_same(one: str, other: str) -> None:
    assert 0.0 <= similarity(one, other) <= 1.0
    assert similarity(one, one) == 1.0


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [("", "", 1.0), ("a b", "c d", 0.0), ("Ja, genau.", "Ja,  genau .", 1.0), ("東京都", "東京", 0.8), ("word", "", 0.0)],
)
def test_words_are_compared_and_of_scripts_without_blanks_characters(one: str, other: str, alike: float) -> None:
    assert similarity(one, other) == pytest.approx(alike)


def test_of_a_long_text_no_more_than_its_beginning_is_compared() -> None:
    same = "x " * MAX_WORDS
    assert similarity(same + "a " * 10_000, same + "b " * 10_000) == 1.0
