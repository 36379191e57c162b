"""What the process that forks engines has read before them, over a stand-in for vLLM."""

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

# It is a script of the engine's environment, which has vLLM.
warm: Any = importlib.import_module("inference.engines.scripts.prefork_warm")


class FakeTokeniser(list[str]):
    """As long as its vocabulary."""

    def __init__(self, name: str, size: int = 3) -> None:
        super().__init__(["token"] * size)
        self.name_or_path = name


class Vllm:
    """The few names that are touched; `calls` is what was asked of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[str] = []
        self.failure = ""
        modules = {name: ModuleType(name) for name in ("vllm", "vllm.renderers", "vllm.tokenizers")}
        self.renderer, self.tokenizers, registry = (
            ModuleType(f"vllm.{name}") for name in ("renderers.hf", "tokenizers.hf", "tokenizers.registry")
        )
        modules |= {found.__name__: found for found in (self.renderer, self.tokenizers, registry)}

        def get(folder: str, **_ways: object) -> FakeTokeniser:
            self.calls.append(f"read {folder}")
            if self.failure:
                raise OSError(self.failure)
            return FakeTokeniser(folder)

        get.cache_clear = lambda: self.calls.append("forget")  # type: ignore[attr-defined]
        things: dict[str, Any] = {"cached_get_tokenizer": get, "cached_resolve_tokenizer_args": get}
        vars(registry).update(things)
        vars(self.renderer).update(_PROCESSOR_CHAT_TEMPLATES={}, _try_get_processor_chat_template=lambda _it, **_ways: None)
        for name, module in modules.items():
            monkeypatch.setitem(sys.modules, name, module)
        monkeypatch.setattr(warm.os, "listdir", lambda _path: ["1"])
        monkeypatch.setattr(warm.gc, "freeze", lambda: None)


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> Vllm:
    return Vllm(monkeypatch)


@pytest.fixture
def model(tmp_path: Path) -> str:
    (tmp_path / "tokenizer.json").write_text("{}")
    return str(tmp_path)


def warmed(*folders: str) -> Any:
    tokenisers = warm.Tokenisers()
    for folder in folders:
        tokenisers.ask_for(["--model", folder])
    while tokenisers.is_asked:
        tokenisers.read_next()
    return tokenisers


def test_each_model_is_read_once_after_its_first_server(vllm: Vllm, model: str) -> None:
    tokenisers = warmed(model, model)
    tokenisers.ask_for(["--model", model])
    tokenisers.ask_for(["--port", "1", "--model"])
    assert (vllm.calls, tokenisers.is_asked) == ([f"read {model}"], False)


def test_a_server_of_the_same_model_finds_the_copies_that_it_would_make_and_makes_more_itself(vllm: Vllm, model: str) -> None:
    warmed(model).use(["--model", model])
    own = FakeTokeniser(model)
    made = [vllm.tokenizers.copy.deepcopy(own) for _ in range(warm.SPARES + 1)]
    assert all(copied == own and copied is not own for copied in made)
    assert len({id(copied) for copied in made}) == warm.SPARES + 1
    assert vllm.calls == [f"read {model}"], "nothing was forgotten"


def test_one_whose_tokeniser_was_given_more_tokens_is_copied_as_it_is(vllm: Vllm, model: str) -> None:
    warmed(model).use(["--model", model])
    own = FakeTokeniser(model, size=4)
    assert len(vllm.tokenizers.copy.deepcopy(own)) == 4


def test_what_has_changed_since_it_was_read_is_forgotten(vllm: Vllm, model: str) -> None:
    tokenisers = warmed(model)
    (Path(model) / "tokenizer.json").write_text('{"changed": true}')
    tokenisers.use(["--model", model])
    assert vllm.calls[1:] == ["forget", "forget"]
    assert not hasattr(vllm.tokenizers, "copy")


def test_a_server_of_another_model_is_left_alone(vllm: Vllm, model: str) -> None:
    warmed(model).use(["--model", "/another"])
    assert not hasattr(vllm.tokenizers, "copy")


def test_a_tokeniser_that_cannot_be_read_is_left_to_its_server(vllm: Vllm, model: str) -> None:
    vllm.failure = "no tokenizer.json"
    warmed(model).use(["--model", model])
    own = FakeTokeniser(model)
    assert vllm.tokenizers.copy.deepcopy(own) == own


def test_no_more_models_are_kept_than_a_few(vllm: Vllm) -> None:
    warmed(*(f"/models/{number}" for number in range(warm.MOST_MODELS + 2)))
    assert len(vllm.calls) == warm.MOST_MODELS
