# mypy: ignore-errors
# ruff: noqa: BLE001, T201
"""Renders cases as the engine environment's transformers and vLLM do. Runs there: `python render_with_engine.py CASES.json`.

Prints a JSON list of [content format, text]; the text is null where the engine refuses the conversation.
"""

import json
import sys
from pathlib import Path

from transformers import PreTrainedTokenizerFast
from vllm.renderers.chat_utils import _parse_chat_message_content, _postprocess_messages
from vllm.renderers.hf import _detect_content_format, safe_apply_chat_template


class NoMedia:
    """Messages of text need a tracker with a parser, and nothing of it."""

    class model_config:
        enable_prompt_embeds = False

    def create_parser(self, **_):
        return self

    def mm_placeholder_storage(self):
        return {}


def render(tokenizer, case):
    form = case["content_format"] = _detect_content_format(case["template"], default="string")
    said = [part for message in case["messages"] for part in _parse_chat_message_content(message, NoMedia(), form, False)]
    _postprocess_messages(said)
    variables = {"add_generation_prompt": True, "continue_final_message": False, **case["variables"]}
    return safe_apply_chat_template(
        None, tokenizer, said, tools=case["tools"], chat_template=case["template"], tokenize=False, **variables
    )


def main(path):
    cases = json.loads(Path(path).read_text())
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(Path(path).parent / "tokenizer.json"), bos_token="<|begin|>")
    results = []
    for case in cases:
        try:
            text = render(tokenizer, case)
        except Exception:
            text = None
        results.append([case.get("content_format"), text])
    print(json.dumps(results))


main(sys.argv[1])
