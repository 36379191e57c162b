"""An answer whose replica dies is the one that was not disturbed, wherever it is cut."""

import random
from typing import Any

import pytest

from tests.fakes.token_engine import TokenEngine
from tests.inference.gateway.resumed_answers import CHAT, COMPLETIONS, TEXT, cut_at, same

VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "a stop string": {"stop": "END"},
    "a long stop string that never comes": {"stop": ["nichts davon kommt vor"]},
    "stop strings of many lengths": {"stop": ["weiter 🙂 b", "E", "zurück« END. U"]},
    "a stop string that is part of the answer": {"stop": ["END. Und"], "include_stop_str_in_output": True},
    "a stop string of emoji": {"stop": "👩‍👩‍👧 »"},
    "a limit": {"max_tokens": 19},
    "at least some tokens": {"stop": "E", "min_tokens": 32},
}


def places(engine: TokenEngine, variant: str) -> list[tuple[int, ...]]:
    limit = VARIANTS[variant].get("max_tokens", len(engine.pieces()))
    return [(number,) for number in range(1, limit + 1)]


@pytest.mark.parametrize("is_streamed", [True, False])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("variant", VARIANTS)
async def test_b30_an_answer_that_goes_on_is_the_one_that_was_not_disturbed(path: str, variant: str, is_streamed: bool) -> None:
    engine, fields = TokenEngine(TEXT), VARIANTS[variant]
    same(await cut_at(path, places(engine, variant), engine=engine, stream=is_streamed, **fields), stop=fields.get("stop", ()))


@pytest.mark.parametrize(
    "variant",
    ["plain", "stop strings of many lengths", "a stop string that is part of the answer", "a stop string of emoji"],
)
@pytest.mark.parametrize(
    "traits",
    [
        {"tokens_an_event": 3},
        {"can_detokenise": False},
        {"token_bytes": 1},
        {"token_bytes": 7, "tokens_an_event": 2},
        {"tokens_an_event": 4, "can_detokenise": False},
    ],
    ids=str,
)
async def test_whatever_an_event_holds_nothing_is_lost_or_doubled(traits: dict[str, Any], variant: str) -> None:
    engine, fields = TokenEngine(TEXT, **traits), VARIANTS[variant]
    same(await cut_at(CHAT, places(engine, variant), engine=engine, stream=True, **fields), stop=fields.get("stop", ()))


@pytest.mark.parametrize("is_streamed", [True, False])
@pytest.mark.parametrize("variant", ["plain", "stop strings of many lengths", "a stop string that is part of the answer"])
async def test_an_answer_may_be_cut_again_where_it_has_gone_on(variant: str, is_streamed: bool) -> None:
    """Three attempts: the second dies after none, one or a few tokens of its own."""
    engine, fields = TokenEngine(TEXT), VARIANTS[variant]
    twice: list[tuple[int, ...]] = [(first, then) for first in range(2, 40, 2) for then in (0, 1, 2, 5)]
    same(await cut_at(CHAT, twice, engine=engine, stream=is_streamed, **fields), stop=fields.get("stop", ()))


@pytest.mark.parametrize("fields", [{}, {"stop": ["nichts davon"]}, {"stop": "weiter"}], ids=str)
async def test_what_is_drawn_anew_follows_what_the_client_has_read(fields: dict[str, Any]) -> None:
    """As with sampling: after a cut the engine makes another text."""
    engine = TokenEngine(TEXT, redraws="|anders weiter 🙂")
    told = await cut_at(CHAT, places(engine, "plain"), engine=engine, stream=True, **{**fields, "temperature": 1})
    end = "|anders " if fields.get("stop") == "weiter" else "|anders weiter 🙂"
    for number, one in enumerate(told[1:], start=1):
        if one.text == told[0].text:
            continue  # it was cut before its first text, or after its end
        head, cut, tail = one.text.partition("|")
        assert (number, cut + tail) == (number, end)
        assert TEXT.startswith(head)
    assert sum("|" in one.text for one in told) > 20


@pytest.mark.parametrize("seed", range(10))
async def test_texts_stops_and_events_of_any_kind(seed: int) -> None:
    rng = random.Random(seed)
    letters = 'ab \n"\\é日🙂👩\u200dx'
    text = "".join(rng.choices(letters[: rng.choice([3, len(letters)])], k=rng.randint(10, 40))) + "."
    starts = [rng.randrange(len(text)) for _ in range(rng.randint(0, 3))]
    fields: dict[str, Any] = {"stop": [text[start : start + rng.randint(1, 6)] for start in starts]} if starts else {}
    fields |= rng.choice([{}, {"include_stop_str_in_output": True}, {"min_tokens": rng.randint(0, 20)}])
    fields |= rng.choice([{}, {"max_tokens": rng.randint(1, 40)}])
    engine = TokenEngine(
        text, token_bytes=rng.randint(1, 5), tokens_an_event=rng.randint(1, 3), can_detokenise=rng.random() < 0.7
    )
    limit = min(len(engine.pieces()), fields.get("max_tokens", 1000))
    cuts: list[tuple[int, ...]] = [(number,) for number in range(1, limit + 1)]
    cuts += [(rng.randint(1, limit), rng.randint(0, 8)) for _ in range(10)]
    path = rng.choice([CHAT, COMPLETIONS])
    same(await cut_at(path, cuts, engine=engine, stream=rng.random() < 0.8, **fields), stop=fields.get("stop", ()))
