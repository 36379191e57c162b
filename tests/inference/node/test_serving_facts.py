"""What is recorded of an engine when it is certified: only kinds of prompts that both count alike."""

from pathlib import Path

import pytest

from inference.engines.vllm import rendering_args
from inference.errors import EngineFailed
from inference.models import ReplicaState
from inference.node.serving_facts import NO_FACTS, own_counter, serving_facts
from inference.node.tokeniser_files import read_tokeniser, tokeniser_file, write_tokeniser
from inference.node.weight_files import Staged, write_json
from inference.node.weights import StagingTools
from inference.tokenising.bundle import decode_bundle
from inference.tokenising.counter import PromptCounter
from tests.fakes.tokeniser import byte_bundle, byte_counter
from tests.inference.node.fakes import FakeEngine, Workshop, desired
from tests.inference.node.test_replica_run import ready

UNCHECKED = byte_bundle(counts_chat=False, counts_parts=False, counts_tools=False, counts_prompts=False)


def engine_with(counter: PromptCounter, miscounts_by: int = 0) -> FakeEngine:
    engine = FakeEngine()
    engine.counts_with, engine.miscounts_by = counter, miscounts_by
    return engine


def test_counts_that_agree_are_trusted() -> None:
    facts = serving_facts(engine_with(byte_counter()), own_counter(UNCHECKED))
    assert facts.max_model_len == 2048
    assert decode_bundle(facts.tokeniser) == byte_bundle()


def test_only_what_agrees_is_trusted() -> None:
    bundle = decode_bundle(serving_facts(engine_with(byte_counter(), miscounts_by=1), own_counter(UNCHECKED)).tokeniser)
    assert (bundle.counts_chat, bundle.counts_parts, bundle.counts_tools, bundle.counts_prompts) == (False, False, False, True)


def test_a_template_that_reads_parts_is_found_out() -> None:
    template = "{% for message in messages %}{% for part in message['content'] %}{{ part['text'] }};{% endfor %}{% endfor %}"
    engine = engine_with(byte_counter(chat_template=template, content_format="openai"))
    bundle = decode_bundle(serving_facts(engine, own_counter(byte_bundle(chat_template=template))).tokeniser)
    assert (bundle.content_format, bundle.counts_chat, bundle.counts_parts) == ("openai", True, True)


def test_an_engine_with_another_tokeniser_gets_no_counts() -> None:
    class Another(FakeEngine):
        def num_tokens(self, sample: object, *, timeout_s: float) -> int:
            return 1

    assert serving_facts(Another(), own_counter(UNCHECKED)).digest == ""


def test_without_a_tokeniser_there_is_still_a_context() -> None:
    facts = serving_facts(FakeEngine(), own_counter(None))
    assert (facts.digest, facts.max_model_len) == ("", 2048)
    assert NO_FACTS.digest == ""


def test_an_engine_that_breaks_is_not_certified() -> None:
    class Broken(FakeEngine):
        def num_tokens(self, sample: object, *, timeout_s: float) -> int:
            raise EngineFailed("gone")

    with pytest.raises(EngineFailed):
        serving_facts(Broken(), own_counter(UNCHECKED))


def test_a_ready_replica_names_its_tokeniser_and_its_context(tmp_path: Path) -> None:
    shop = Workshop(folder=tmp_path, bundle=UNCHECKED, engine=engine_with(byte_counter()))
    run = ready(shop)
    assert run.state is ReplicaState.READY
    (digest,) = shop.link.tokenisers
    assert (shop.link.facts["tokeniser"], shop.link.facts["max_model_len"]) == (digest, 2048)
    assert decode_bundle(shop.link.tokenisers[digest]) == byte_bundle()


def test_a_replica_whose_prompts_cannot_be_counted_serves_all_the_same(tmp_path: Path) -> None:
    shop = Workshop(folder=tmp_path)
    ready(shop)
    assert shop.link.tokenisers == {}
    assert (shop.link.facts["tokeniser"], shop.link.facts["max_model_len"]) == ("", 2048)


# -- what the version's arguments say


def test_arguments_that_change_the_rendering_are_understood(tmp_path: Path) -> None:
    given = rendering_args(("--default-chat-template-kwargs", '{"a": 1}', "--exclude-tools-when-tool-choice-none"))
    assert given is not None
    assert (given.template_kwargs, given.drops_unused_tools, given.chat_template) == ({"a": 1}, True, "")
    assert rendering_args(("--tokenizer-mode", "mistral")) is None
    assert rendering_args(("--default-chat-template-kwargs", "{")) is None


def test_the_versions_own_template_takes_the_place_of_the_models(tmp_path: Path) -> None:
    template = tmp_path / "t.jinja"
    template.write_text("{{ messages }}")
    row = desired(weights_digest="d1", engine_args=["--chat-template", str(template)])
    tools = StagingTools(folder=tmp_path, python=Path("/nowhere/python"), engine_environment={})
    write_tokeniser(Staged(path=tmp_path, digest="d1"), row.engine_environment, tools)  # no such program
    kept = tokeniser_file(tmp_path, "d1", row.engine_environment)
    assert read_tokeniser(tmp_path, row) is None and not kept.exists()
    names = ("tokenizer_json", "special_tokens", "chat_template", "tool_template", "max_chars_per_token")
    write_json(kept, {name: getattr(byte_bundle(), name) for name in names})
    read = read_tokeniser(tmp_path, row)
    assert read is not None and read.chat_template == "{{ messages }}" and not read.counts_anything
    kept.unlink()
    assert read_tokeniser(tmp_path, row) is None
