"""Signals for a target: losses, features and words of a pool's examples, and of the target's.

Shapes: N examples, M of the target, P parts of the target, B of a block, L positions, D features,
W words.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor, nn

from lipt.common.errors import InvalidRequestError
from lipt.core.kept_values import KeptValue
from lipt.core.passes import merged_account, row_blocks
from lipt.core.signals.views import TargetFeatures, TargetWords, View
from lipt.data.dataset import Dataset
from lipt.data.inputs.model_input import columns_in
from lipt.data.inputs.specs import ColumnsSpec
from lipt.data.sources.tables.causal import FIRST, NUM_BYTES, PADDING
from lipt.data.targets.kinds import TargetKind
from lipt.data.targets.values import MASKED

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
    scored_by: as of `Signals`.
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
    scored_by: Mapping[str, Any] | None = None

    def merged(self, other: Self) -> Self:
        """These, with what `other` has."""
        present = {k: v for k, v in vars(other).items() if v is not None}
        return replace(
            self, **{**present, "scored_by": merged_account(self.scored_by, other.scored_by)}
        )


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
            texts = (
                (numbers - FIRST)[numbers >= FIRST].tolist() for numbers in (prompt_L, wanted_L)
            )
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
