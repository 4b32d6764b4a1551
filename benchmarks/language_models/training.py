"""Training of a small causal model, its losses by example, merged learners, and their fit.

Shapes: N examples, L positions, V tokens, K sources, D features, R fits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.language_models.sources import MASKED, Encoded
from lipt.core.mixture.simplex import Fitted, Losses, fit, uniform
from lipt.models.causal import END, CausalTransformer

Weights = Mapping[str, Tensor]

BATCH = 32
_TEST_BATCH = 64
# Share of the way to a source's learner over which a slope is measured.
_STEP = 0.05
_NUM_ROUNDS = 3


def example_losses(logits_NLV: Tensor, wanted_NL: Tensor) -> Tensor:
    """Each example's mean loss over the tokens that count."""
    losses_NL = functional.cross_entropy(
        logits_NLV.transpose(1, 2), wanted_NL, ignore_index=MASKED, reduction="none"
    )
    return losses_NL.sum(dim=1) / (wanted_NL != MASKED).sum(dim=1)


def trimmed(batch: Encoded) -> Encoded:
    """Without the positions after the last one that counts."""
    end = int((batch.wanted_NL != MASKED).any(dim=0).nonzero().max()) + 1
    return Encoded(batch.tokens_NL[:, :end], batch.wanted_NL[:, :end])


def new_model(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return CausalTransformer()


def train(
    initial: Weights,
    batches: Sequence[Encoded],
    *,
    learning_rate: float = 1e-3,
    train_only: str = "",
) -> dict[str, Tensor]:
    """AdamW over the batches: a tenth of warm-up, then a line to zero. Returns the weights."""
    model = CausalTransformer()
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
    for batch in map(trimmed, batches):
        loss = example_losses(model(batch.tokens_NL), batch.wanted_NL).mean()
        optimizer.zero_grad()
        loss.backward()
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
    return [Encoded(*pair) for pair in zip(tokens.split(BATCH), wanted.split(BATCH), strict=True)]


def parts_of(examples: Encoded) -> list[Encoded]:
    return [examples[at : at + _TEST_BATCH] for at in range(0, len(examples), _TEST_BATCH)]


@torch.no_grad()
def losses_of(weights: Weights, examples: Encoded) -> Tensor:
    model = CausalTransformer()
    model.load_state_dict(dict(weights))
    losses = [
        example_losses(model(part.tokens_NL), part.wanted_NL)
        for part in map(trimmed, parts_of(examples))
    ]
    return torch.cat(losses)


@torch.no_grad()
def exact_match(weights: Weights, examples: Encoded) -> float:
    """The share of examples whose greedy completion is right in every token and ends."""
    model = CausalTransformer()
    model.load_state_dict(dict(weights))
    # Greedy decoding is right in all tokens exactly if each token is the most likely one after
    # the right ones before it.
    right = list[Tensor]()
    for part in map(trimmed, parts_of(examples)):
        found_NL = model(part.tokens_NL).argmax(dim=-1)
        right.append(((found_NL == part.wanted_NL) | (part.wanted_NL == MASKED)).all(dim=1))
    assert any(END in part.wanted_NL for part in parts_of(examples))
    return float(torch.cat(right).float().mean())


@torch.no_grad()
def hidden_means(weights: Weights, examples: Encoded) -> Tensor:
    """Position-weighted means of the last hidden states; N x D."""
    model = CausalTransformer()
    model.load_state_dict(dict(weights))
    means = list[Tensor]()
    for part in parts_of(examples):
        ranks_NL = (part.tokens_NL != 0).cumsum(dim=1) * (part.tokens_NL != 0)
        weights_NL = ranks_NL / ranks_NL.sum(dim=1, keepdim=True)
        means.append(torch.einsum("nl,nld->nd", weights_NL, model.hidden(part.tokens_NL)))
    return torch.cat(means)


def merged_weights(initial: Weights, added: Mapping[str, Tensor], shares_K: Tensor) -> Weights:
    return {
        name: start + torch.tensordot(shares_K.to(start.dtype), added[name], dims=1)
        for name, start in initial.items()
    }


@torch.no_grad()
def quadratic_losses(
    initial: Weights, added: Mapping[str, Tensor], around_K: Tensor, examples: Encoded
) -> Losses:
    """Each example's loss as a convex quadratic of the weights, with exact value and slope.

    Logits are linear in the weights; the loss of linear logits is taken to second order, so that
    an example stores K + K^2 numbers whatever the vocabulary.
    """
    model, num_sources = CausalTransformer(), len(around_K)
    corners = [around_K + _STEP * (one - around_K) for one in torch.eye(num_sources).double()]
    all_weights = [merged_weights(initial, added, one) for one in (around_K, *corners)]
    values, slopes, curves = list[Tensor](), list[Tensor](), list[Tensor]()
    for part in map(trimmed, parts_of(examples)):
        counts_NL = part.wanted_NL != MASKED
        share_X = (counts_NL / counts_NL.sum(dim=1, keepdim=True))[counts_NL].double()
        owner_X = counts_NL.nonzero()[:, 0]
        wanted_X = part.wanted_NL[counts_NL]
        passed = list[Tensor]()
        for weights in all_weights:
            model.load_state_dict(dict(weights))
            passed.append(model(part.tokens_NL)[counts_NL])
        start_XV, *moved = passed
        p_XV = start_XV.softmax(dim=1)
        slopes_XKV = (torch.stack(moved, dim=1) - start_XV[:, None]) / _STEP
        mean_XK = torch.einsum("xkv,xv->xk", slopes_XKV, p_XV)
        second_XKK = torch.einsum("xkv,xjv,xv->xkj", slopes_XKV, slopes_XKV, p_XV)
        curve_XKK = second_XKK - mean_XK[:, :, None] * mean_XK[:, None]
        own_XK = slopes_XKV.gather(2, wanted_X[:, None, None].expand(-1, num_sources, 1))[..., 0]

        def by_example(each_X: Tensor) -> Tensor:
            weighted = each_X.double() * share_X.reshape(-1, *[1] * (each_X.ndim - 1))
            out = torch.zeros(len(part), *each_X.shape[1:], dtype=torch.float64)
            return out.index_add_(0, owner_X, weighted)

        values.append(by_example(functional.cross_entropy(start_XV, wanted_X, reduction="none")))
        slopes.append(by_example(mean_XK - own_XK))
        curves.append(by_example(curve_XKK))
    value_N, slope_NK, curve_NKK = map(torch.cat, (values, slopes, curves))

    def losses(weights_RK: Tensor) -> Tensor:
        move_RK = weights_RK - around_K
        curved_RN = torch.einsum("rk,nkj,rj->rn", move_RK, curve_NKK, move_RK) / 2
        return value_N + move_RK @ slope_NK.T + curved_RN

    return losses


def fit_quadratic(
    initial: Weights, added: Mapping[str, Tensor], examples: Encoded, seed: int
) -> Fitted:
    """Fit the shares, around the shares fitted before."""
    num_sources = len(next(iter(added.values())))
    around_K, fitted = uniform(num_sources), None
    unit = float(losses_of(merged_weights(initial, added, around_K), examples).mean())
    for last in range(_NUM_ROUNDS):
        losses = quadratic_losses(initial, added, around_K, examples)
        number = 100 if last == _NUM_ROUNDS - 1 else 1
        options = {"unit": unit / 10, "seed": seed, "num_resamples": number}
        fitted = fit(losses, len(examples), num_sources, **options)
        around_K = fitted.weights_K
    assert fitted is not None
    return fitted


def gradient_shares(
    initial: Weights, added: Mapping[str, Tensor], examples: Encoded, num_steps: int = 30
) -> Tensor:
    """Exponentiated gradient on the network's own loss: slopes are <gradient, added_k>."""
    model, num_sources = CausalTransformer(), len(next(iter(added.values())))
    shares_K, rate, least, best_K = uniform(num_sources), 2.0, float("inf"), uniform(num_sources)
    slope_K = torch.zeros(num_sources).double()
    for _ in range(num_steps):
        model.load_state_dict(dict(merged_weights(initial, added, shares_K)))
        model.zero_grad()
        total = 0.0
        for part in map(trimmed, parts_of(examples)):
            loss = example_losses(model(part.tokens_NL), part.wanted_NL).sum() / len(examples)
            loss.backward()
            total += float(loss)
        if total > least:
            rate /= 2
        else:
            least, best_K, rate = total, shares_K, rate * 1.3
            slope_K = sum(
                torch.tensordot(added[name].double(), one.grad.double(), dims=one.ndim)
                for name, one in model.named_parameters()
                if one.grad is not None
            )
        shares_K = (best_K.clamp(min=1e-12).log() - rate * slope_K).softmax(dim=0)
    return best_K


Log = Callable[[str], None]
