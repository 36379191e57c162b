"""Asks vLLM's own parser about a server's arguments. Runs under an engine environment's interpreter; starts no engine.

    bin/python check_args.py '["--model", "/folder", "--max-model-len", "2048"]'

Its last line of output is a JSON object: {"refused": ""} where they are taken, else the parser's own words. Where the model's
folder is there, the whole engine configuration is made of them as a server would, which finds what contradicts the model.
"""

import json
import sys
from pathlib import Path


class Refused(Exception):
    pass


def check(argv: list[str]) -> str:
    """Empty, or why a server would not start with them."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    class Parser(FlexibleArgumentParser):
        def error(self, message: str):
            raise Refused(message)

        def exit(self, status: int = 0, message: str | None = None):
            raise Refused((message or f"it ends with status {status}").strip())

    try:
        arguments = make_arg_parser(Parser(prog="vllm")).parse_args(argv)
        validate_parsed_serve_args(arguments)
        speculative = arguments.speculative_config or {}
        check_speculative(speculative)
        folders = [arguments.model, *([speculative["model"]] if speculative.get("model") else [])]
        if all(Path(str(folder), "config.json").is_file() for folder in folders):
            AsyncEngineArgs.from_cli_args(arguments).create_engine_config()
    except (Refused, ValueError, TypeError, AssertionError, NotImplementedError, KeyError) as error:
        return words_of(error)
    return ""


def check_speculative(config: dict) -> None:
    """Its names; what they say is checked with the model."""
    from dataclasses import fields

    from vllm.config import SpeculativeConfig

    known = {field.name for field in fields(SpeculativeConfig)}
    unknown = sorted(name for name in config if name.replace("-", "_") not in known)
    if unknown:
        raise Refused(f"--speculative-config has no {unknown[0]!r}")


def words_of(error: Exception) -> str:
    """One line; a validation error's first reason."""
    reasons = getattr(error, "errors", None)
    if callable(reasons) and (found := reasons()):
        where = ".".join(str(part) for part in found[0].get("loc", ()))
        return f"{where}: {found[0]['msg']}".removeprefix(": ")
    return " ".join(str(error).split()) or type(error).__name__


if __name__ == "__main__":
    print(json.dumps({"refused": check(json.loads(sys.argv[1]))}), flush=True)
