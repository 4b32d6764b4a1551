"""Training of a small causal model, its losses by example, merged learners, and their fit.

Shapes: N examples, L positions, V tokens, K sources, D features, R fits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from benchmarks.language_models.sources import LENGTH, NUM_TOKENS, Encoded
from lipt.core.pretraining.merged_tokens import MergedTokens, with_mean_states
from lipt.core.pretraining.simplex import uniform
from lipt.data.inputs.specs import Column, ColumnsSpec, ColumnType
from lipt.data.targets.values import MASKED, NextTokens
from lipt.models.transformers import CausalTransformer

Weights = Mapping[str, Tensor]

# Examples of so many positions are passed apart from longer ones.
_SHORT = 32
_INPUTS = ColumnsSpec((Column("", ColumnType.INT64, (LENGTH,), num_values=NUM_TOKENS),))
_TARGET = NextTokens(NUM_TOKENS, LENGTH)


def empty_model() -> CausalTransformer:
    return CausalTransformer(num_classes=NUM_TOKENS, inputs=_INPUTS)


def _text_of(tokens: Sequence[int]) -> str:
    return bytes(tokens).decode(errors="replace")


@dataclass(frozen=True)
class Network:
    """A causal model and how it trains.

    build: the model, whose weights are loaded next. learned: part of the names of what is trained.
    rate: of the optimizer. is_half: whether products are computed in bfloat16, but for a fit.
    text_of: the text of tokens without BEGIN and END, numbered from 0.
    """

    build: Callable[[], nn.Module] = empty_model
    target: NextTokens = _TARGET
    batch_size: int = 32
    test_batch_size: int = 64
    rate: float = 1e-3
    learned: str = ""
    is_half: bool = False
    text_of: Callable[[Sequence[int]], str] = _text_of

    def precision(self) -> AbstractContextManager[object]:
        return torch.autocast("cpu", torch.bfloat16, enabled=self.is_half)

    def loaded(self, weights: Weights) -> nn.Module:
        model = self.build()
        model.load_state_dict(dict(weights), strict=not self.learned)
        return model


SMALL = Network()


def trimmed(batch: Encoded) -> Encoded:
    """Without the positions after the last one that counts."""
    end = int((batch.wanted_NL != MASKED).any(dim=0).nonzero().max()) + 1
    return Encoded(batch.tokens_NL[:, :end], batch.wanted_NL[:, :end])


def by_length(batch: Encoded) -> list[Encoded]:
    """Short and long examples apart, each without needless positions."""
    is_long_N = (batch.wanted_NL[:, _SHORT:] != MASKED).any(dim=1)
    return [trimmed(batch[some_N]) for some_N in (is_long_N, ~is_long_N) if bool(some_N.any())]


def new_model(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return empty_model()


def train(
    initial: Weights,
    batches: Sequence[Encoded],
    *,
    learning_rate: float | None = None,
    network: Network = SMALL,
) -> dict[str, Tensor]:
    """AdamW over the batches: a tenth of warm-up, then a line to zero. Returns the weights."""
    model = network.loaded(initial)
    learned = {name: one for name, one in model.named_parameters() if network.learned in name}
    optimizer = torch.optim.AdamW(
        learned.values(), lr=learning_rate or network.rate, betas=(0.9, 0.95), weight_decay=0.01
    )
    warm = max(1, len(batches) // 10)

    def rate(step: int) -> float:
        return min((step + 1) / warm, (len(batches) - step) / (len(batches) - warm))

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    for batch in batches:
        optimizer.zero_grad()
        for part in by_length(batch):
            with network.precision():
                outputs_BLV = model(part.tokens_NL)
            losses_B = network.target.losses(outputs_BLV.float(), part.wanted_NL)
            torch.autograd.backward(losses_B.sum() / len(batch))
        nn.utils.clip_grad_norm_(learned.values(), 1.0)
        optimizer.step()
        schedule.step()
    return {name: model.state_dict()[name].detach().clone() for name in initial}


def mixed_batches(
    sources: Sequence[Encoded],
    shares_K: Tensor,
    num_steps: int,
    seed: int,
    network: Network = SMALL,
) -> list[Encoded]:
    """Batches of examples drawn by shares; a source is drawn from again after its last example."""
    draws = torch.Generator().manual_seed(seed)
    total = num_steps * network.batch_size
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
        for pair in zip(
            torch.split(tokens, network.batch_size),
            torch.split(wanted, network.batch_size),
            strict=True,
        )
    ]


def parts_of(examples: Encoded, network: Network = SMALL) -> list[Encoded]:
    size = network.test_batch_size
    return [examples[at : at + size] for at in range(0, len(examples), size)]


def losses_of(weights: Weights, examples: Encoded, network: Network = SMALL) -> Tensor:
    return score(weights, examples, network)[0]


def exact_match(weights: Weights, examples: Encoded, network: Network = SMALL) -> float:
    return float(score(weights, examples, network)[1].float().mean())


@torch.no_grad()
def score(weights: Weights, examples: Encoded, network: Network = SMALL) -> tuple[Tensor, Tensor]:
    """Each example's loss, and whether its greedy completion is right in every token and ends."""
    model, losses, right = network.loaded(weights), list[Tensor](), list[Tensor]()
    for part in map(trimmed, parts_of(examples, network)):
        with network.precision():
            outputs_NLV = model(part.tokens_NL)
        losses.append(network.target.losses(outputs_NLV.float(), part.wanted_NL))
        # Greedy decoding is right in all tokens exactly if each token is the most likely one after
        # the right ones before it.
        found_NL = outputs_NLV.argmax(dim=-1)
        right.append(((found_NL == part.wanted_NL) | (part.wanted_NL == MASKED)).all(dim=1))
    return torch.cat(losses), torch.cat(right)


@torch.no_grad()
def hidden_means(weights: Weights, examples: Encoded, network: Network = SMALL) -> Tensor:
    """Position-weighted means of the last hidden states; N x D."""
    model = network.loaded(weights)
    with network.precision():
        means = [
            with_mean_states(model, part.tokens_NL)[1].float()
            for part in parts_of(examples, network)
        ]
    return torch.cat(means)


def merged_of(
    initial: Weights, added: Mapping[str, Tensor], examples: Encoded, network: Network = SMALL
) -> MergedTokens:
    """The library's merged learners on examples of a target."""
    end = trimmed(examples)
    batches = torch.split(end.tokens_NL, network.test_batch_size)
    model, target = network.loaded(initial), network.target
    return MergedTokens(model, dict(initial), dict(added), batches, target, end.wanted_NL)


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
            loss = SMALL.target.losses(model(part.tokens_NL), part.wanted_NL).sum() / len(examples)
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
