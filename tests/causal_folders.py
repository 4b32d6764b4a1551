"""Folders of tiny causal models and tokenizers, as transformers and tokenizers save them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from lipt.common.determinism import seeded_generators
from lipt.data.inputs.specs import Column, ColumnsSpec, ColumnType

# Numbers of the tokenizer: <s> is 0, </s> 1, and the letters follow.
WORDS = (
    "<s>",
    "</s>",
    "?",
    *"abcdefghijklmnopqrstuvwxyz",
    *"ABCDEFGHIJKLMNOPQRSTUVWXYZ",
    *"=0123456",
)
NUM_TOKENS = len(WORDS)
NUM_CLASSES = 3 + NUM_TOKENS
CHATML = (
    "{% for m in messages %}{% if m['role'] not in ['system', 'user', 'assistant'] %}"
    "{{ raise_exception('an unknown role') }}{% endif %}"
    "{{ '<s>' + m['role'][0] + '=' + m['content'] + '</s>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<s>a=' }}{% endif %}"
)


def inputs(length: int = 8, num_classes: int = NUM_CLASSES) -> ColumnsSpec:
    return ColumnsSpec((Column("", ColumnType.INT64, (length,), num_values=num_classes),))


def write_model(folder: Path, kind: str = "llama", *, tokenizer: bool = True, **more: Any) -> str:
    """A random model of two layers with tied embeddings; returns its name."""
    transformers: Any = pytest.importorskip("transformers")
    named: dict[str, Any] = {"bos_token_id": 0, "eos_token_id": 1, "vocab_size": NUM_TOKENS} | more
    if kind == "llama":
        config: Any = transformers.LlamaConfig(
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            max_position_embeddings=64,
            **{"tie_word_embeddings": True, "pad_token_id": None} | named,
        )
        made: Any = transformers.LlamaForCausalLM
    else:
        config = transformers.GPT2Config(n_embd=16, n_layer=2, n_head=2, n_positions=64, **named)
        made = transformers.GPT2LMHeadModel
    with seeded_generators(0, torch.device("cpu")):
        made(config).save_pretrained(folder)
    if tokenizer:
        write_tokenizer(folder)
    return f"causal:{folder}"


def write_words(path: Path, *words: str, unknown: str = "?", end: str = "") -> Path:
    """A tokenizer of words in the order of their numbers; texts end with `end`."""
    numbers = {word: number for number, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(numbers, unk_token=unknown))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    if end:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"$A {end}", special_tokens=[(end, numbers[end])]
        )
    tokenizer.save(str(path))
    return path


def write_tokenizer(folder: Path, words: tuple[str, ...] = WORDS, **config: Any) -> Path:
    """A tokenizer of single letters, and its configuration."""
    folder.mkdir(parents=True, exist_ok=True)
    numbers = {word: number for number, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(numbers, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    known = {"bos_token": "<s>", "eos_token": {"content": "</s>"}} | config
    (folder / "tokenizer_config.json").write_text(json.dumps(known))
    return folder / "tokenizer.json"
