"""Our rendering of chat templates beside the engine's own code, on templates written as the common families write theirs."""

import json
import subprocess
from pathlib import Path
from typing import Any

from inference.engines.environments import default_environment, engines_dir, find_environment
from inference.tokenising.counter import Uncountable
from tests.fakes.tokeniser import byte_counter, byte_tokeniser

SCRIPT = Path(__file__).with_name("render_with_engine.py")
TEMPLATES = {path.stem: path.read_text() for path in (Path(__file__).parents[2] / "data" / "templates").glob("*.jinja")}
USER = {"role": "user", "content": "  Grüße, 日本語 🙂 <b>&amp;</b>\n"}
TOOL = {"type": "function", "function": {"name": "f", "description": None, "parameters": {"type": "object", "x": "é<>"}}}
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"b": "é", "a": [1, 2.50]}'}}
CHATS: list[dict[str, Any]] = [
    {"messages": [USER]},
    {"messages": [{"role": "system", "content": "S"}, USER]},
    {"messages": [USER, {"role": "assistant", "content": " A "}, {"role": "user", "content": "B"}]},
    {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]},
    {
        "messages": [
            USER,
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "content": "r", "tool_call_id": "c1"},
        ]
    },
    {"messages": [USER, {"role": "assistant", "tool_calls": [{**CALL, "function": {"name": "f", "arguments": "no json"}}]}]},
    {"messages": [USER, {"role": "tool", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]},
    {"messages": [USER, {"role": "assistant", "content": "x", "reasoning": "because"}]},
    {"messages": [{"role": "developer", "content": "D"}, USER]},
    {"messages": [{"role": "system", "content": "S"}, USER, {"role": "developer", "content": "D"}]},
    {"messages": [{"role": "system", "content": "x-anthropic-billing-header: 1\nS"}, USER]},
    {"messages": [USER], "tools": [TOOL]},
    {"messages": [USER, {"role": "assistant", "content": "It is "}], "add_generation_prompt": False},
    {
        "messages": [USER, {"role": "assistant", "content": "It is "}],
        "add_generation_prompt": False,
        "continue_final_message": True,
    },
    {
        "messages": [USER, {"role": "assistant", "content": [{"type": "text", "text": "It is "}]}],
        "add_generation_prompt": False,
        "continue_final_message": True,
    },
    {"messages": [USER], "chat_template_kwargs": {"enable_thinking": False}},
    {"messages": [USER], "documents": [{"title": "t", "text": "ü"}]},
]


def variables_of(chat: dict[str, Any]) -> dict[str, Any]:
    own = {name: chat[name] for name in ("add_generation_prompt", "continue_final_message", "documents") if name in chat}
    return {**chat.get("chat_template_kwargs", {}), **own}


def ours(template: str, content_format: str, chat: dict[str, Any]) -> str | None:
    try:
        return byte_counter(chat_template=template, content_format=content_format).render(chat)
    except Uncountable:
        return None


def test_every_template_renders_every_chat_as_the_engine_does(tmp_path: Path) -> None:
    environment = find_environment(default_environment(), engines_dir())
    cases = [
        {"template": template, "messages": chat["messages"], "tools": chat.get("tools"), "variables": variables_of(chat)}
        for template in TEMPLATES.values()
        for chat in CHATS
    ]
    (tmp_path / "cases.json").write_text(json.dumps(cases))
    byte_tokeniser().save(str(tmp_path / "tokenizer.json"))
    command = [str(environment.python), str(SCRIPT), str(tmp_path / "cases.json")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    results = json.loads(done.stdout.strip().splitlines()[-1])
    names = [(name, number) for name in TEMPLATES for number in range(len(CHATS))]
    rendered = 0
    for (name, number), (content_format, theirs) in zip(names, results, strict=True):
        assert content_format == ("openai" if name == "parts" else "string"), name
        assert ours(TEMPLATES[name], content_format, CHATS[number]) == theirs, f"{name}, chat {number}"
        rendered += theirs is not None
    assert rendered > len(names) * 0.7
