"""Writes down what the engine environment makes of a model's tokeniser. Runs in an engine environment.

    bin/python dump_tokeniser.py MODEL_FOLDER TARGET.json

transformers changes some tokenisers while it loads them (bos and eos, whole families that are built anew), so that
tokenizer.json alone does not say how the engine counts.
"""

import json
import sys
from pathlib import Path

from transformers import AutoTokenizer


def main(folder: str, target: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        target.write_text(json.dumps({"reason": "its tokeniser has no form that the gateway can read"}))
        return
    backend.no_truncation()
    backend.no_padding()
    template = tokenizer.chat_template
    named = template if isinstance(template, dict) else {"default": template}
    found = {
        "tokenizer_json": backend.to_str(),
        "special_tokens": dict(tokenizer.special_tokens_map),
        "chat_template": named.get("default"),
        "tool_template": named.get("tool_use"),
        "max_chars_per_token": max(len(token) for token in tokenizer.get_vocab()),
    }
    target.write_text(json.dumps(found, default=str))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
