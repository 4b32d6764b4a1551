"""Merged learners of next tokens against the network itself, and n-grams by hand."""

import pytest
import torch
from torch import Tensor, nn

from lipt.core.mixture.ngrams import ngram_probabilities, ngram_shares
from lipt.core.mixture.readiness import constant_losses
from lipt.core.pretraining.merged import added_by
from lipt.core.pretraining.merged_tokens import MergedTokens
from lipt.data.targets.values import MASKED, NextTokens

NUM_TOKENS, LENGTH = 7, 5


class Bigrams(nn.Module):
    """Logits of the next token by the last one."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(NUM_TOKENS, 4)
        self.fc = nn.Linear(4, NUM_TOKENS)

    def forward(self, tokens_BL: Tensor) -> Tensor:
        logits_BLV: Tensor = self.fc(torch.tanh(self.tokens(tokens_BL)))
        return logits_BLV


def merged(num_sources: int = 3, size: float = 0.3) -> MergedTokens:
    torch.manual_seed(0)
    model = Bigrams()
    initial = {name: one.clone() for name, one in model.state_dict().items()}
    learners = [
        {name: one + size * torch.randn_like(one) for name, one in initial.items()}
        for _ in range(num_sources)
    ]
    tokens_NL = torch.randint(1, NUM_TOKENS, (8, LENGTH))
    wanted_NL = torch.randint(0, NUM_TOKENS, (8, LENGTH))
    wanted_NL[:, :2] = MASKED
    wanted_NL[3, 2:4] = MASKED
    added = added_by(initial, learners)
    target = NextTokens(NUM_TOKENS, LENGTH)
    return MergedTokens(model, initial, added, torch.split(tokens_NL, 5), target, wanted_NL)


AROUND = torch.tensor([0.5, 0.2, 0.3], dtype=torch.float64)


def test_losses_are_the_networks_own() -> None:
    one = merged()
    one.model.load_state_dict(one.weights(AROUND))
    outputs = torch.cat([one.model(tokens_BL) for tokens_BL in one.batches])
    assert torch.allclose(one.losses_at(AROUND), one.target.losses(outputs, one.targets_N))


def test_the_quadratic_is_exact_at_its_point_and_its_slope_nearly_so() -> None:
    one = merged()
    losses = one.linearized(AROUND)
    assert torch.allclose(losses(AROUND[None])[0].float(), one.losses_at(AROUND), atol=1e-5)
    move_K = torch.tensor([0.02, -0.01, -0.01], dtype=torch.float64)
    found = losses((AROUND + move_K)[None]) - losses((AROUND - move_K)[None])
    exact = one.losses_at(AROUND + move_K) - one.losses_at(AROUND - move_K)
    assert torch.allclose(found[0].float(), exact, atol=2e-4)


def test_the_quadratic_is_convex() -> None:
    losses, ends = merged().linearized(AROUND), torch.eye(3, dtype=torch.float64)
    middle = losses(((ends[0] + ends[1]) / 2)[None])[0]
    assert bool((middle <= (losses(ends)[0] + losses(ends)[1]) / 2 + 1e-9).all())


def test_of_linear_logits_the_curvature_is_exact() -> None:
    # Without an embedding's part the logits are linear in the shares: compare second differences.
    one = merged(size=0.05)
    for name in ("tokens.weight", "fc.weight"):
        one.added[name].zero_()
    losses = one.linearized(AROUND)
    move_K = torch.tensor([0.4, -0.2, -0.2], dtype=torch.float64)
    found = losses((AROUND + move_K)[None])[0].float()
    assert torch.allclose(found, one.losses_at(AROUND + move_K), atol=1e-5)


def test_small_parts_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = merged().linearized(AROUND)(torch.eye(3).double())
    monkeypatch.setattr("lipt.core.passes._MOST_LOGITS", 1)
    monkeypatch.setattr("lipt.core.pretraining.merged_tokens._MOST_SLOPES", 1)
    assert torch.allclose(merged().linearized(AROUND)(torch.eye(3).double()), whole, atol=1e-6)


def test_each_fold_is_scored_by_its_own_shares() -> None:
    one, fold_N = merged(), torch.tensor([0, 1] * 4)
    corners = list(torch.eye(3).double())[:2]
    losses_N, score = one.scored(corners, fold_N)
    each = torch.stack([one.losses_at(corner_K) for corner_K in corners])
    assert torch.allclose(losses_N, each[fold_N, torch.arange(8)])
    assert 0 <= score <= 1


def test_features_weigh_later_positions_more_and_padding_not_at_all() -> None:
    one = merged()
    tokens_NL = torch.tensor([[1, 2, 0, 0, 0]])
    hidden_LD = torch.tanh(one.model.tokens(tokens_NL))[0].detach()  # type: ignore[operator]
    wanted_D = hidden_LD[0] / 3 + 2 * hidden_LD[1] / 3
    assert torch.allclose(one.features([tokens_NL])[0], wanted_D)


def test_the_target_between_two_learners_gets_their_shares() -> None:
    # Labels drawn from theta(w) have their least loss near w.
    one, shares_K = merged(2, size=1.0), torch.tensor([0.8, 0.2]).double()
    tokens_NL = torch.randint(1, NUM_TOKENS, (600, LENGTH))
    one.model.load_state_dict(one.weights(shares_K))
    p_XV = one.model(tokens_NL).flatten(0, 1).softmax(dim=1)
    wanted_NL = torch.multinomial(p_XV, 1).reshape(600, LENGTH)
    drawn = MergedTokens(one.model, one.initial, one.added, [tokens_NL], one.target, wanted_NL)
    fitted = drawn.fit(seed=0, num_resamples=10)
    assert torch.allclose(fitted.weights_K, shares_K, atol=0.1)


def test_a_constant_answer_is_the_frequency_of_tokens() -> None:
    pool_NL = torch.tensor([[0, 0, MASKED], [1, MASKED, MASKED]])
    found = constant_losses(NextTokens(2, 3), pool_NL, torch.tensor([[0, 1, MASKED]]))
    # Counts with one more each: 3 and 2 of 5.
    wanted = -(torch.tensor([0.6, 0.4]).log()).mean()
    assert torch.allclose(found, wanted[None])


def test_ngrams_by_hand() -> None:
    # The source has seen 1 after 2 twice, and no longer context of the asked text.
    source = torch.tensor([[2, 2]]), torch.tensor([[1, 1]])
    asked = torch.tensor([[0, 2]]), torch.tensor([[MASKED, 1]])
    (found,) = ngram_probabilities([source], asked, 3, order=2)
    single = (2 + 5 / 3) / 7
    assert torch.allclose(found, torch.tensor([(2 + 5 * single) / 7]).double())


def test_ngram_shares_follow_the_tokens_that_count() -> None:
    probabilities_XK = torch.tensor([[0.9, 0.1], [0.9, 0.1], [0.1, 0.9]]).double()
    wanted_NL = torch.tensor([[1, MASKED], [1, MASKED], [1, MASKED]])
    assert ngram_shares(probabilities_XK, wanted_NL, torch.tensor([0, 1]))[0] > 0.99
    assert ngram_shares(probabilities_XK, wanted_NL, torch.tensor([2]))[1] > 0.99
