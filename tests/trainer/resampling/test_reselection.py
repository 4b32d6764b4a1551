import json
import warnings
from collections.abc import Callable
from typing import Any

import pytest
from torch import nn

from lipt.common.errors import (
    ComputeError,
    ConfigError,
    LiptError,
    NotACoordinatorError,
    SubsetError,
    UnreachableError,
    WeightsError,
    WrongOffsetError,
)
from lipt.common.tensor_files import pack
from lipt.trainer.resampling.reselection import Reselection, ReselectionWarning
from lipt.trainer.subsets.subset import Subset
from tests.trainer.made_up import FakeClient, made_up_subset


def subset_of(number: int) -> Subset:
    return made_up_subset([number])


@pytest.fixture
def fake() -> FakeClient:
    return FakeClient(subset_of)


@pytest.fixture
def model() -> nn.Linear:
    return nn.Linear(2, 2)


Make = Callable[..., Reselection]


@pytest.fixture
def make(fake: FakeClient, model: nn.Linear) -> Make:
    def reselection(**options: Any) -> Reselection:
        given = {"strategy": "craig", "fraction": 0.1, **options}
        return Reselection(fake, model, **given)  # type: ignore[arg-type]

    return reselection


def digests(reselection: Reselection, epochs: range) -> list[int]:
    return [int(reselection.before_epoch(epoch).indices[0]) for epoch in epochs]


def test_later_subsets_use_current_weights(make: Make, fake: FakeClient, model: nn.Linear) -> None:
    reselection = make(every=2, run="r-1", balanced=False, options={"a": 1})
    assert digests(reselection, range(6)) == [0, 0, 1, 1, 2, 2]
    assert fake.weights == [None, *[pack(model.state_dict())] * 2]
    expected: dict[str, Any] = {"run": "r-1", "strategy": "craig", "fraction": 0.1}
    expected |= {"balanced": False, "options": {"a": 1}}
    assert fake.asked[0] == expected
    identity = {**expected, "options": {"a": "1"}, "every": 2}
    assert json.loads(json.dumps(reselection.identity)) == identity
    # Told what training has now, a strategy may answer that it is still good.
    weights = pack(model.state_dict())
    assert fake.asked[1] == {**expected, "weights": weights, "previous": subset_of(0)}


def test_an_absent_coordinator_costs_one_warning(make: Make, fake: FakeClient) -> None:
    reselection = make(every=2)
    fake.refusals = [UnreachableError("away."), UnreachableError("still away.")]
    digests(reselection, range(2))
    with pytest.warns(ReselectionWarning, match=r"epoch 2: no new subset \(away\.\)"):
        assert reselection.before_epoch(2).indices[0] == 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert reselection.before_epoch(3).indices[0] == 0  # away, but nothing new to say
        assert reselection.before_epoch(4).indices[0] == 3  # back
    assert [selected.epoch for selected in reselection.history] == [4]


def test_the_same_epoch_again_changes_nothing(make: Make, fake: FakeClient) -> None:
    # Lightning and Hugging Face set a sampler's epoch themselves, and a callback does too.
    reselection = make(every=1)
    fake.refusals = [UnreachableError("away.")]
    reselection.before_epoch(0)
    reselection.before_epoch(0)
    with pytest.warns(ReselectionWarning):
        first = reselection.before_epoch(1)
    assert reselection.before_epoch(1) is first
    # The third answer: the first subset, the one that did not come, and this one were asked for.
    assert reselection.before_epoch(2).indices[0] == 2
    assert len(reselection.history) == 1


@pytest.mark.parametrize(
    "error",
    [
        *(kind("why.") for kind in (NotACoordinatorError, ComputeError, SubsetError)),
        WrongOffsetError("out of step ten times in a row."),
        OSError("no such file."),
    ],
)
def test_a_failure_does_not_end_training(make: Make, fake: FakeClient, error: LiptError) -> None:
    reselection = make(every=1)
    reselection.before_epoch(0)
    fake.refusals = [error]
    with pytest.warns(ReselectionWarning, match=str(error)):
        assert reselection.before_epoch(1).indices[0] == 0
    assert reselection.before_epoch(2).indices[0] == 2


def test_weights_of_another_model_end_training(make: Make, fake: FakeClient) -> None:
    # It would be refused every time: a training that goes on would never re-select.
    reselection = make(every=1)
    reselection.before_epoch(0)
    fake.refusals = [WeightsError("other names.")]
    with pytest.raises(WeightsError):
        reselection.before_epoch(1)


@pytest.mark.parametrize("num_epochs", [5, 6])
def test_unneeded_reselections_are_skipped(make: Make, fake: FakeClient, num_epochs: int) -> None:
    reselection = make(every=2, num_epochs=num_epochs)
    # A finished training announces the epoch that would follow.
    assert digests(reselection, range(7)) == [0, 0, 1, 1, 2, 2, 2]
    assert len(fake.asked) == 3


def test_a_checkpoint_restores_the_reselection(make: Make, fake: FakeClient) -> None:
    reselection = make(every=3)
    digests(reselection, range(3))
    state = json.loads(json.dumps(reselection.state_dict()))
    other = make(every=3)
    other.load_state_dict(state)
    assert other.subset == reselection.subset
    assert other.before_epoch(2) == reselection.subset  # no epoch twice
    asked = len(fake.asked)
    assert other.before_epoch(3) == subset_of(asked)
    fake.refusals = [UnreachableError("away.")]
    with pytest.warns(ReselectionWarning):
        digests(reselection, range(4))
    other = make(every=3)
    other.load_state_dict(reselection.state_dict())
    assert other.before_epoch(3) == subset_of(0)
    assert other.before_epoch(4) == subset_of(len(fake.asked) - 1) != subset_of(0)


def test_a_strategy_without_weights_cannot_reselect(make: Make, fake: FakeClient) -> None:
    with pytest.raises(ConfigError, match=r"aum selects by .*Train on its one"):
        make(strategy="aum")
    assert not fake.asked


def test_a_warm_up_option_applies_to_the_first_subset(make: Make, fake: FakeClient) -> None:
    options = {"pretraining": "epochs:15", "space": "features"}
    reselection = make(every=1, options=options)
    digests(reselection, range(2))
    assert [asked["options"] for asked in fake.asked] == [options, {"space": "features"}]
    assert reselection.identity["options"] == options
