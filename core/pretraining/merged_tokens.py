"""Merged learners of next tokens: logits of all texts would not fit into memory.

Losses are computed part by part. Around some shares the loss of linear logits is taken to second
order: its slope is exact, its curvature is the covariance of the sources' slopes under the model's
own next-token probabilities, so it is convex. A text then stores 1 + K + K^2 numbers, whatever the
vocabulary.

Shapes: N texts, B of a part, L positions, X of them that count, V tokens, K sources, R fits,
D features.
Source: Schraudolph 2002, "Fast Curvature Matrix-Vector Products" (the Gauss-Newton matrix).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from lipt.common.computation import computation
from lipt.common.tensor_files import Weights
from lipt.core.passes import texts_at_once, with_mean_states
from lipt.core.pretraining.merged import SLOPE_STEP, Merged
from lipt.core.pretraining.simplex import Losses
from lipt.data.inputs.specs import Inputs, call_model, tokens_in
from lipt.data.targets.kinds import TargetKind
from lipt.data.targets.values import MASKED, Target
from lipt.models.head import evaluation_mode

# Logits whose curvature is computed at a time.
_MOST_SLOPES = 2**23


@dataclass(frozen=True)
class MergedTokens(Merged):
    """Merged learners whose `target` is `NextTokens`; `targets_N` are N x L."""

    def features(self, batches: Iterable[Inputs]) -> Tensor:
        """Means of the head's inputs under theta*, later positions weighted more; N x D."""
        self.load(self.initial)
        with evaluation_mode(self.model), computation(1), torch.no_grad():
            return torch.cat([with_mean_states(self.model, inputs)[1].cpu() for inputs in batches])

    def scored(self, by_fold: Sequence[Tensor], fold_N: Tensor) -> tuple[Tensor, float]:
        losses_N, tally = torch.empty(len(fold_N)), self.target.tally()
        for fold, shares_K in enumerate(by_fold):
            self.load(self.weights(shares_K))
            own_N, start = fold_N == fold, 0
            for tokens_BL, wanted_BL in self._parts(1):
                rows = slice(start, start + len(wanted_BL))
                own_B, start = own_N[rows], rows.stop
                if bool(own_B.any()):
                    # A pass of a large model costs more than all else.
                    outputs_BLV = self._logits(tokens_BL[own_B.to(tokens_BL.device)])
                    tally.add(outputs_BLV, wanted_BL[own_B])
                    losses_N[rows][own_B] = self.target.losses(outputs_BLV, wanted_BL[own_B])
        return losses_N, tally.score()

    def linearized(self, around_K: Tensor) -> Losses:
        num_sources = len(around_K)
        corners_KK = torch.eye(num_sources, dtype=torch.float64)
        nearby = [around_K + SLOPE_STEP * (corner_K - around_K) for corner_K in corners_KK]
        weights = [self.weights(shares_K) for shares_K in (around_K, *nearby)]
        expansions = list[tuple[Tensor, Tensor, Tensor]]()
        for inputs, wanted_BL in self._parts(1 + num_sources):
            logits = list[Tensor]()
            for point in weights:
                self.load(point)
                logits.append(self._logits(inputs)[wanted_BL != MASKED])
            expansions.append(_expanded(logits, wanted_BL))
        value_N, slope_NK, curve_NKK = map(torch.cat, zip(*expansions, strict=True))

        def losses(weights_RK: Tensor) -> Tensor:
            move_RK = weights_RK - around_K
            curved_RN = torch.einsum("rk,nkj,rj->rn", move_RK, curve_NKK, move_RK) / 2
            return value_N + move_RK @ slope_NK.T + curved_RN

        return losses

    def _losses(self, weights: Weights) -> Tensor:
        self.load(weights)
        return torch.cat(
            [
                self.target.losses(self._logits(tokens), labels_BL)
                for tokens, labels_BL in self._parts(1)
            ]
        )

    def _parts(self, num_models: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Tokens of some texts and their next tokens, as many as fit for so many models."""
        size, start = max(1, texts_at_once(self.target) // num_models), 0
        for inputs in self.batches:
            for tokens_BL in torch.split(tokens_in(inputs), size):
                yield tokens_BL, self.targets_N[start : start + len(tokens_BL)]
                start += len(tokens_BL)

    def _logits(self, inputs: Inputs) -> Tensor:
        # A computation sets its own gradient mode.
        with evaluation_mode(self.model), computation(1), torch.no_grad():
            return call_model(self.model, inputs).float().cpu()


def merged_class(target: Target) -> type[Merged]:
    """The merged learners of a target's kind."""
    return MergedTokens if target.kind is TargetKind.TOKENS else Merged


def _expanded(logits: Sequence[Tensor], wanted_BL: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Each text's loss, its slopes and its curvature by the shares; B, B x K, B x K x K float64.

    `logits` are X x V at the positions that count: around the shares, then towards each source.
    """
    counted_BL = wanted_BL != MASKED
    share_X = (counted_BL / counted_BL.sum(dim=1, keepdim=True))[counted_BL].double()
    owner_X, wanted_X = counted_BL.nonzero()[:, 0], wanted_BL[counted_BL]
    num_sources = len(logits) - 1
    parts = list[tuple[Tensor, Tensor]]()
    size = max(1, _MOST_SLOPES // (num_sources * logits[0].shape[1]))
    for some_X in torch.split(torch.arange(len(wanted_X)), size):
        start_XV, *moved = (logits_XV[some_X] for logits_XV in logits)
        p_XV = start_XV.softmax(dim=1)
        slopes_XKV = (torch.stack(moved, dim=1) - start_XV[:, None]) / SLOPE_STEP
        mean_XK = torch.einsum("xkv,xv->xk", slopes_XKV, p_XV)
        centred_XKV = (slopes_XKV - mean_XK[:, :, None]) * p_XV.sqrt()[:, None]
        own_XK = slopes_XKV.gather(2, wanted_X[some_X, None, None].expand(-1, num_sources, 1))
        parts.append((mean_XK - own_XK[:, :, 0], centred_XKV @ centred_XKV.transpose(1, 2)))
    slope_XK, curve_XKK = map(torch.cat, zip(*parts, strict=True))
    value_X = functional.cross_entropy(logits[0], wanted_X, reduction="none")

    def by_text(each_X: Tensor) -> Tensor:
        weighted_X = each_X.double() * share_X.reshape(-1, *[1] * (each_X.ndim - 1))
        means_B = torch.zeros(len(wanted_BL), *each_X.shape[1:], dtype=torch.float64)
        return means_B.index_add_(0, owner_X, weighted_X)

    return by_text(value_X), by_text(slope_XK), by_text(curve_XKK)
