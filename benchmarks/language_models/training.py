"""Training of a small causal model, its losses by example, merged learners, and their fit.

Shapes: N examples, L positions, V tokens, K sources, D features, R fits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from benchmarks.language_models.sources import LENGTH, NUM_TOKENS, Encoded
from lipt.core.pretraining.merged_tokens import MergedTokens
from lipt.core.pretraining.simplex import uniform
from lipt.data.inputs.specs import Column, ColumnsSpec, ColumnType
from lipt.data.targets.values import MASKED, NextTokens
from lipt.models.causal import CausalTransformer

Weights = Mapping[str, Tensor]

BATCH = 32
_TEST_BATCH = 64
# Examples of so many positions are passed apart from longer ones.
_SHORT = 32
TARGET = NextTokens(NUM_TOKENS, LENGTH)
_INPUTS = ColumnsSpec((Column("", ColumnType.INT64, (LENGTH,), num_values=NUM_TOKENS),))


def trimmed(batch: Encoded) -> Encoded:
    """Without the positions after the last one that counts."""
    end = int((batch.wanted_NL != MASKED).any(dim=0).nonzero().max()) + 1
    return Encoded(batch.tokens_NL[:, :end], batch.wanted_NL[:, :end])


def by_length(batch: Encoded) -> list[Encoded]:
    """Short and long examples apart, each without needless positions."""
    is_long_N = (batch.wanted_NL[:, _SHORT:] != MASKED).any(dim=1)
    return [trimmed(batch[some_N]) for some_N in (is_long_N, ~is_long_N) if bool(some_N.any())]


def empty_model() -> CausalTransformer:
    return CausalTransformer(num_classes=NUM_TOKENS, inputs=_INPUTS)


def new_model(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return empty_model()


def train(
    initial: Weights,
    batches: Sequence[Encoded],
    *,
    learning_rate: float = 1e-3,
    train_only: str = "",
) -> dict[str, Tensor]:
    """AdamW over the batches: a tenth of warm-up, then a line to zero. Returns the weights."""
    model = empty_model()
    model.load_state_dict(dict(initial))
    optimizer = torch.optim.AdamW(
        [one for name, one in model.named_parameters() if train_only in name],
        lr=learning_rate,
        betas=(0.9, 0.95),
        weight_decay=0.01,
    )
    warm = max(1, len(batches) // 10)

    def rate(step: int) -> float:
        return min((step + 1) / warm, (len(batches) - step) / (len(batches) - warm))

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    for batch in batches:
        optimizer.zero_grad()
        for part in by_length(batch):
            losses_B = TARGET.losses(model(part.tokens_NL), part.wanted_NL)
            torch.autograd.backward(losses_B.sum() / len(batch))
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    return {name: one.detach().clone() for name, one in model.state_dict().items()}


def mixed_batches(
    sources: Sequence[Encoded], shares_K: Tensor, num_steps: int, seed: int
) -> list[Encoded]:
    """Batches of examples drawn by shares; a source is drawn from again after its last example."""
    draws = torch.Generator().manual_seed(seed)
    total = num_steps * BATCH
    owners_N = torch.multinomial(shares_K.double(), total, replacement=True, generator=draws)
    tokens, wanted = (torch.empty(total, sources[0].tokens_NL.shape[1]).long() for _ in range(2))
    for source, part in enumerate(sources):
        at_N = (owners_N == source).nonzero().flatten()
        rounds = -(-len(at_N) // len(part))
        ids = [torch.randperm(len(part), generator=draws) for _ in range(rounds)]
        chosen = torch.cat([*ids, torch.empty(0).long()])[: len(at_N)]
        tokens[at_N], wanted[at_N] = part.tokens_NL[chosen], part.wanted_NL[chosen]
    return [
        Encoded(*pair)
        for pair in zip(torch.split(tokens, BATCH), torch.split(wanted, BATCH), strict=True)
    ]


def parts_of(examples: Encoded) -> list[Encoded]:
    return [examples[at : at + _TEST_BATCH] for at in range(0, len(examples), _TEST_BATCH)]


@torch.no_grad()
def losses_of(weights: Weights, examples: Encoded) -> Tensor:
    model = empty_model()
    model.load_state_dict(dict(weights))
    losses = [
        TARGET.losses(model(part.tokens_NL), part.wanted_NL)
        for part in map(trimmed, parts_of(examples))
    ]
    return torch.cat(losses)


@torch.no_grad()
def exact_match(weights: Weights, examples: Encoded) -> float:
    """The share of examples whose greedy completion is right in every token and ends."""
    model = empty_model()
    model.load_state_dict(dict(weights))
    # Greedy decoding is right in all tokens exactly if each token is the most likely one after
    # the right ones before it.
    right = list[Tensor]()
    for part in map(trimmed, parts_of(examples)):
        found_NL = model(part.tokens_NL).argmax(dim=-1)
        right.append(((found_NL == part.wanted_NL) | (part.wanted_NL == MASKED)).all(dim=1))
    return float(torch.cat(right).float().mean())


@torch.no_grad()
def hidden_means(weights: Weights, examples: Encoded) -> Tensor:
    """Position-weighted means of the last hidden states; N x D."""
    model = empty_model()
    model.load_state_dict(dict(weights))
    means = list[Tensor]()
    for part in parts_of(examples):
        ranks_NL = (part.tokens_NL != 0).cumsum(dim=1) * (part.tokens_NL != 0)
        weights_NL = ranks_NL / ranks_NL.sum(dim=1, keepdim=True)
        means.append(torch.einsum("nl,nld->nd", weights_NL, model.hidden(part.tokens_NL)))
    return torch.cat(means)


def merged_of(initial: Weights, added: Mapping[str, Tensor], examples: Encoded) -> MergedTokens:
    """The library's merged learners on examples of a target."""
    end = trimmed(examples)
    batches = torch.split(end.tokens_NL, _TEST_BATCH)
    model = empty_model()
    return MergedTokens(model, dict(initial), dict(added), batches, TARGET, end.wanted_NL)


def gradient_shares(merged: MergedTokens, examples: Encoded, num_steps: int = 30) -> Tensor:
    """Exponentiated gradient on the network's own loss: slopes are <gradient, added_k>."""
    model, num_sources = empty_model(), merged.num_sources
    shares_K, rate, least, best_K = uniform(num_sources), 2.0, float("inf"), uniform(num_sources)
    slope_K = torch.zeros(num_sources).double()
    for _ in range(num_steps):
        model.load_state_dict(merged.weights(shares_K))
        model.zero_grad()
        total = 0.0
        for part in map(trimmed, parts_of(examples)):
            loss = TARGET.losses(model(part.tokens_NL), part.wanted_NL).sum() / len(examples)
            torch.autograd.backward(loss)
            total += float(loss.detach())
        if total > least:
            rate /= 2
        else:
            least, best_K, rate = total, shares_K, rate * 1.3
            slope_K = sum(
                torch.tensordot(merged.added[name].double(), one.grad.double(), dims=one.ndim)
                for name, one in model.named_parameters()
                if one.grad is not None
            )
        shares_K = (best_K.clamp(min=1e-12).log() - rate * slope_K).softmax(dim=0)
    return best_K
