"""Scores of a causal model on a target's held-out texts: losses, and right completions.

Shapes: N texts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass

from torch import nn

from lipt.common.process.devices import resolve_device
from lipt.common.tensor_files import Weights
from lipt.core.passes import Batches, score_texts, texts_at_once
from lipt.core.pretraining.training import ForwardPass
from lipt.data.dataset import Dataset
from lipt.data.targets.values import MASKED
from lipt.models.own_model import load_plain_state
from lipt.trainer.main_training import Recipe
from lipt.trainer.main_training.steps import place_model

_BATCH = 64


@dataclass(frozen=True)
class TextScores:
    """Of all examples: mean loss with its standard error, right tokens, and right completions.

    loss_error: infinite for one example.

    exact_match: share of examples whose greedy completion is right to its end; None for texts
    without prompts.
    """

    loss: float
    loss_error: float
    token_accuracy: float
    exact_match: float | None


@dataclass(frozen=True)
class TextTarget:
    """A comparison's target of texts.

    fingerprint: of the texts that examples are chosen for. starts: theta* of a seed.
    """

    fingerprint: str
    starts: Callable[[int], Weights]


def texts_scored(
    model: str,
    train: Dataset,
    test: Dataset,
    recipe: Recipe,
    weights: Weights,
    *,
    device: str,
    allowed_modules: Collection[str],
) -> TextScores:
    """Scores of a model, by name, with these weights."""
    place = resolve_device(device)
    built, forward_pass = place_model(model, train, recipe, place, allowed_modules)
    load_plain_state(built, weights)
    return text_scores(built, test, forward_pass)


def text_scores(model: nn.Module, test: Dataset, forward_pass: ForwardPass) -> TextScores:
    """Score a model on texts, in evaluation mode."""
    size = min(_BATCH, texts_at_once(test.target))
    batches = Batches(test, forward_pass.inputs, forward_pass.device, size)
    found_N, right_N = score_texts(model, batches, bfloat16=forward_pass.bfloat16)
    losses_N, counted_N = found_N.double(), (test.targets_N != MASKED).sum(dim=1)
    # A text without a prompt counts from its first position on.
    has_prompts = bool((test.targets_N[:, 0] == MASKED).any())
    return TextScores(
        loss=float(losses_N.mean()),
        # One text says nothing about others.
        loss_error=math.inf
        if len(losses_N) == 1
        else float(losses_N.std()) / math.sqrt(len(losses_N)),
        token_accuracy=int(right_N.sum()) / int(counted_N.sum()),
        exact_match=float((right_N == counted_N).double().mean()) if has_prompts else None,
    )
