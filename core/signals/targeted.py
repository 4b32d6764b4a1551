"""Signals for a target: losses, features and words of a pool's examples, and of the target's.

Shapes: N examples, M of the target, P parts of the target, B of a batch, L positions, D features,
W words.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor, nn

from lipt.common.computation import computation
from lipt.common.errors import InvalidRequestError
from lipt.common.tensor_files import KeptValue
from lipt.core.passes import Batches, require_finite_rows, row_blocks
from lipt.core.pretraining.merged_tokens import with_mean_states
from lipt.core.signals.views import TargetFeatures, TargetWords, View
from lipt.data.dataset import Dataset
from lipt.data.inputs.model_input import columns_in
from lipt.data.inputs.specs import ColumnsSpec, call_model, tokens_in
from lipt.data.sources.tables.causal import BEGIN, FIRST, NUM_BYTES, PADDING
from lipt.data.targets.kinds import TargetKind
from lipt.data.targets.values import MASKED
from lipt.models.head import evaluation_mode, forward_with_features

_WORD = re.compile(r"\w+|[^\w\s]")


@dataclass(frozen=True)
class TargetSignals(View, KeptValue):
    """The values that were asked for; row i of a tensor with N rows is example i.

    losses_N: under theta*, float32. unprompted_N: the same of completions without their prompts.
    after_NP: after a short learner on each part of the target.
    in_target_N: whether the example duplicates one of the target's.
    features_ND: inputs of the head under theta*; a text's mean of them, later positions more.
    words_NW: numbers of the words, -1 from an example's last word on.
    target_features_MD, target_words_MW: likewise of the target's examples.
    facts: of the target, for a manifest, as JSON.
    """

    whole = TargetFeatures.whole | TargetWords.whole

    losses_N: Tensor | None = None
    unprompted_N: Tensor | None = None
    after_NP: Tensor | None = None
    in_target_N: Tensor | None = None
    features_ND: Tensor | None = None
    words_NW: Tensor | None = None
    target_features_MD: Tensor | None = None
    target_words_MW: Tensor | None = None
    facts: Mapping[str, Any] | None = None

    def merged(self, other: Self) -> Self:
        """These, with what `other` has."""
        return replace(self, **{k: v for k, v in vars(other).items() if v is not None})


@dataclass(frozen=True)
class Scores:
    """Each example's loss, N float32, and the head's inputs, or a text's mean of them."""

    losses_N: Tensor
    features_ND: Tensor | None


def score(
    model: nn.Module,
    batches: Batches,
    threads: int,
    *,
    with_features: bool = False,
    changed: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] | None = None,
) -> Scores:
    """Losses and features by one forward pass; SignalsError where one is not finite.

    changed: of texts, from tokens and next tokens, B x L, to those that are looked at.
    """
    ids_N, target = batches.ids_N, batches.dataset.target
    losses_N, features = torch.empty(len(ids_N)), list[Tensor]()
    with evaluation_mode(model), computation(threads), torch.inference_mode():
        for rows, inputs, targets_B in batches:
            given, wanted_B = inputs, targets_B
            if changed is not None:
                given, wanted_B = changed(tokens_in(inputs), targets_B)
            if with_features and target.kind is TargetKind.TOKENS:
                outputs_B, features_BD = with_mean_states(model, given)
            elif with_features:
                outputs_B, features_BD = forward_with_features(model, given)
            else:
                outputs_B, features_BD = call_model(model, given), torch.empty(0)
            losses_B = target.losses(outputs_B, wanted_B)
            require_finite_rows(losses_B.isfinite(), ids_N[rows], "losses")
            losses_N[rows] = losses_B.cpu()
            if with_features:
                finite_B = features_BD.isfinite().all(dim=1)
                require_finite_rows(finite_B, ids_N[rows], "features")
                features.append(features_BD.float().cpu())
    return Scores(losses_N, torch.cat(features) if with_features else None)


def without_prompts(tokens_BL: Tensor, wanted_BL: Tensor) -> tuple[Tensor, Tensor]:
    """Completions alone: tokens and next tokens from the first that counts on."""
    counted_BL = wanted_BL != MASKED
    places_BL = counted_BL.int().argmax(dim=1, keepdim=True) + torch.arange(
        wanted_BL.shape[1], device=wanted_BL.device
    )
    is_beyond_BL, last = places_BL >= wanted_BL.shape[1], wanted_BL.shape[1] - 1
    places_BL = places_BL.clamp(max=last)
    moved_BL = tokens_BL.gather(1, places_BL).masked_fill(is_beyond_BL, PADDING)
    moved_BL[:, 0] = BEGIN
    return moved_BL, wanted_BL.gather(1, places_BL).masked_fill(is_beyond_BL, MASKED)


def words_of(dataset: Dataset, ids_N: Tensor) -> Iterator[list[str]]:
    """The words and marks of each text, in lower case, or its tokens if these are no bytes.

    InvalidRequestError for examples that are no texts.
    """
    columns = dataset.inputs.columns if isinstance(dataset.inputs, ColumnsSpec) else ()
    if len(columns) != 1 or len(columns[0].shape) != 1 or not columns[0].num_values:
        raise InvalidRequestError(
            f"words are compared, and {dataset.source} holds {dataset.inputs}. Choose loss_drop or "
            "rds_plus, or give texts."
        )
    for rows in row_blocks(len(ids_N), 8 * columns[0].shape[0]):
        (tokens_BL,) = columns_in(dataset.examples(ids_N[rows])).values()
        if dataset.target.kind is not TargetKind.TOKENS:
            yield from (list(map(str, text_L[text_L != PADDING].tolist())) for text_L in tokens_BL)
            continue
        for tokens_L, wanted_L in zip(tokens_BL, dataset.targets_N[ids_N[rows]], strict=True):
            counted_L = wanted_L != MASKED
            # Next tokens that do not count are the prompt's.
            prompt_L = tokens_L[: int(counted_L.int().argmax()) + 1]
            texts = ((one - FIRST)[one >= FIRST].tolist() for one in (prompt_L, wanted_L))
            if columns[0].num_values == FIRST + NUM_BYTES:
                yield _WORD.findall(b" ".join(map(bytes, texts)).decode(errors="replace").lower())
            else:
                yield [str(number) for text in texts for number in text]


def numbered(texts: Iterable[Sequence[str]], vocabulary: dict[str, int]) -> Tensor:
    """Words as numbers, N x W int32, -1 after a text's last word; new ones join the vocabulary."""
    rows = [
        torch.tensor([vocabulary.setdefault(word, len(vocabulary)) for word in text])
        for text in texts
    ]
    padded_NW = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-1.0)
    return padded_NW.to(torch.int32)
