"""Scores of a causal model on a target's held-out texts: losses, and right completions.

A greedy completion is right in all tokens exactly if each token is the most likely one after the
right ones before it, so one forward pass decodes.

Shapes: B of a batch, L positions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lipt.common.process.devices import resolve_device
from lipt.common.tensor_files import Weights
from lipt.core.passes import texts_at_once
from lipt.core.pretraining.training import ForwardPass
from lipt.data.dataset import Dataset
from lipt.data.targets.values import MASKED
from lipt.models.head import evaluation_mode
from lipt.models.own import load_plain_state
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
    losses, exact, counts = list[Tensor](), list[Tensor](), list[Tensor]()
    with evaluation_mode(model), torch.inference_mode():
        for ids_B in torch.split(torch.arange(len(test)), size):
            outputs_BLV = forward_pass(model, test.examples(ids_B))
            wanted_BL = test.targets_N[ids_B].to(outputs_BLV.device)
            losses.append(test.target.losses(outputs_BLV, wanted_BL).double().cpu())
            counts.append(test.target.counts(outputs_BLV, wanted_BL).cpu())
            is_right_BL = (outputs_BLV.argmax(dim=-1) == wanted_BL) | (wanted_BL == MASKED)
            exact.append(is_right_BL.all(dim=1).double().cpu())
    losses_N = torch.cat(losses)
    # A text without a prompt counts from its first position on.
    has_prompts = bool((test.targets_N[:, 0] == MASKED).any())
    return TextScores(
        loss=float(losses_N.mean()),
        # One text says nothing about others.
        loss_error=math.inf
        if len(losses_N) == 1
        else float(losses_N.std()) / math.sqrt(len(losses_N)),
        token_accuracy=test.target.score_of(counts),
        exact_match=float(torch.cat(exact).mean()) if has_prompts else None,
    )
