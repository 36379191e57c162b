"""Turns a GGUF file into what vLLM loads: safetensors, tokeniser, chat template. Runs in an engine environment.

bin/python convert_gguf.py SOURCE.gguf TARGET_FOLDER
"""

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig


def main(source: Path, target: Path) -> None:
    torch.set_num_threads(1)
    folder, name = str(source.parent), source.name
    print("reading the tokeniser", flush=True)
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=name)
    print("dequantising", flush=True)
    model = AutoModelForCausalLM.from_pretrained(
        folder, gguf_file=name, quantization_config=GgufConfig(dequantize=True), dtype=torch.bfloat16
    )
    model.config.quantization_config = None
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    print("writing safetensors", flush=True)
    model.save_pretrained(target, safe_serialization=True)
    tokenizer.save_pretrained(target)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
