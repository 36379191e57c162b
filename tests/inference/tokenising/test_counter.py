from typing import Any

import pytest

from inference.tokenising.counter import PromptTooLong, Recall, Uncountable
from inference.tokenising.segments import SegmentMemory
from tests.fakes.tokeniser import byte_counter, size_of_chat

TOOL = {"type": "function", "function": {"parameters": {"type": "object"}, "name": "f"}}


def chat(*contents: Any, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content} for content in contents], **more}


def test_a_chat_is_counted_as_its_template_writes_it() -> None:
    assert byte_counter().chat(chat("héllo", "日本")) == size_of_chat("héllo", "日本")


def test_marks_in_a_clients_text_are_single_tokens_as_the_engine_reads_them() -> None:
    assert byte_counter().chat(chat("<|end|>")) == size_of_chat("x")


def test_without_the_models_turn() -> None:
    counter = byte_counter()
    assert counter.chat(chat("a")) - counter.chat(chat("a", add_generation_prompt=False)) == 1 + len("assistant|")


def test_parts_are_one_text_with_lines_between() -> None:
    parts = [{"type": "text", "text": "ab"}, {"type": "text", "text": "c"}]
    assert byte_counter().chat(chat(parts)) == size_of_chat("ab\nc")


def test_tools_are_written_in_the_engines_order_and_without_what_was_not_given() -> None:
    written = '[{"type": "function", "function": {"name": "f", "description": null, "parameters": {"type": "object"}}}]'
    assert byte_counter().chat(chat("a", tools=[TOOL])) == size_of_chat("a") + 2 + len(written)


def test_a_server_that_drops_unused_tools_is_followed() -> None:
    counter = byte_counter(drops_unused_tools=True)
    assert counter.chat(chat("a", tools=[TOOL], tool_choice="none")) == size_of_chat("a")
    assert counter.chat(chat("a", tools=[TOOL], tool_choice="auto")) > size_of_chat("a")


def test_the_template_for_tools_takes_over_where_there_are_tools() -> None:
    counter = byte_counter(tool_template="<|start|>")
    assert counter.chat(chat("a", tools=[TOOL])) == 1
    assert counter.chat(chat("a")) == size_of_chat("a")


def test_a_clients_variables_reach_the_template_over_the_servers() -> None:
    counter = byte_counter(chat_template="{{ word }}", template_kwargs={"word": "abc"})
    assert counter.chat(chat("a")) == 3
    assert counter.chat(chat("a", chat_template_kwargs={"word": "abcde"})) == 5


def test_effort_switches_thinking_on_unless_the_client_has_said() -> None:
    counter = byte_counter(chat_template="{% if enable_thinking %}abc{% endif %}{{ reasoning_effort or '' }}")
    assert counter.chat(chat("a", reasoning_effort="low")) == 6
    assert counter.chat(chat("a", reasoning_effort="none")) == 4
    assert counter.chat(chat("a", reasoning_effort="low", chat_template_kwargs={"enable_thinking": False})) == 3


@pytest.mark.parametrize("name", ["padding", "max_length", "tokenizer_kwargs", "return_dict"])
def test_what_would_change_more_than_the_template_is_not_counted(name: str) -> None:
    with pytest.raises(Uncountable, match="unsupported"):
        byte_counter().chat(chat("a", chat_template_kwargs={name: 1}))


@pytest.mark.parametrize(
    ("flag", "fields"),
    [
        ("counts_chat", chat("a")),
        ("counts_parts", chat([{"type": "text", "text": "a"}])),
        ("counts_tools", chat("a", tools=[TOOL])),
        ("counts_tools", {"messages": [{"role": "tool", "content": "a"}]}),
    ],
)
def test_what_was_not_shown_to_be_counted_right_is_not_counted(flag: str, fields: dict[str, Any]) -> None:
    assert byte_counter().chat(fields) > 0
    with pytest.raises(Uncountable, match="unsupported"):
        byte_counter(**{flag: False}).chat(fields)


@pytest.mark.parametrize("template", ["{{ raise_exception('no') }}", "{{ 1 / 0 }}", "{% for %}", "{{ messages[0].x.y }}", None])
def test_a_template_that_fails_is_no_count(template: str | None) -> None:
    with pytest.raises(Uncountable):
        byte_counter(chat_template=template).chat(chat("a"))


def test_no_word_of_a_prompt_is_in_an_error() -> None:
    with pytest.raises(Uncountable) as refused:
        byte_counter(chat_template="{{ raise_exception(messages[0].content) }}").chat(chat("secret words"))
    error: BaseException | None = refused.value
    assert "secret" not in str(error) and refused.value.__cause__ is None and refused.value.__suppress_context__


def test_each_form_of_a_completions_prompt_is_counted() -> None:
    counter = byte_counter()
    assert counter.prompts({"prompt": "abc"}) == [3]
    assert counter.prompts({"prompt": ["abc", "ü"]}) == [3, 2]
    assert counter.prompts({"prompt": [7, 8]}) == [2]
    assert counter.prompts({"prompt": [[7, 8], [9]]}) == [2, 1]
    with pytest.raises(Uncountable):
        counter.prompts({"prompt": "abc", "suffix": "d"})


def test_token_ids_are_counted_where_texts_cannot_be() -> None:
    counter = byte_counter(counts_prompts=False)
    assert counter.prompts({"prompt": [7, 8]}) == [2]
    with pytest.raises(Uncountable):
        counter.prompts({"prompt": "abc"})


def test_a_text_that_cannot_fit_is_not_tokenised() -> None:
    counter = byte_counter()
    longest = counter.bundle.max_chars_per_token
    assert counter.prompts({"prompt": "a" * 10 * longest}, max_tokens=10) == [10 * longest]
    with pytest.raises(PromptTooLong) as refused:
        counter.prompts({"prompt": "a" * (10 * longest + 1)}, max_tokens=10)
    assert refused.value.at_least_tokens == 11


def test_a_text_that_the_library_cannot_take_is_no_count() -> None:
    for recall in (None, Recall(SegmentMemory(1000), b"s")):
        with pytest.raises(Uncountable, match="error"):
            byte_counter().prompts({"prompt": "\ud800"}, memory=recall)
