import pytest
import torch
from torch import Tensor

from lipt.common.data import Dataset
from lipt.common.errors import BudgetError, ConfigError, UnknownNameError
from lipt.trainer.main_training import fit
from lipt.trainer.main_training.records import EpochRecord
from lipt.trainer.main_training.steps import place_model
from lipt.trainer.resampling.redrawing import Redrawn
from lipt.trainer.subsets.weighted import example_losses
from tests.trainer.main_training.conftest import RECIPE, net


def test_the_losses_are_the_steps_own(digits: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    # One step without dropout: its losses are those of the initial weights.
    model = net()
    model.layers[4] = torch.nn.Identity()
    initial = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    source = Redrawn("infobatch", digits, 12, 0)
    assert source.losses is not None
    told: list[tuple[Tensor, Tensor]] = []
    monkeypatch.setattr(source.losses, "note", lambda *losses: told.append(losses))
    changes = {"steps": 1, "batch_size": 48, "label_smoothing": 0.1}
    recipe = RECIPE.model_copy(update=changes)
    calls: list[int] = []
    model.register_forward_pre_hook(lambda *_: calls.append(int(model.training)))
    fit(model, digits, recipe=recipe, reselect=source, initial=initial)
    assert sum(calls) == 1  # no forward pass besides that of the step
    ((ids, losses),) = told
    assert len(set(ids.tolist())) == 48
    again = net()
    again.layers[4] = torch.nn.Identity()
    placed, forward_pass = place_model(again, digits, recipe, torch.device("cpu"), ())
    placed.train()
    logits = forward_pass(placed, digits.images(ids))
    expected = example_losses(logits, digits.labels_N[ids], label_smoothing=0.1)
    torch.testing.assert_close(losses, expected.detach())


def test_infobatch_takes_the_steps_of_its_budget_and_sees_everything_first(
    digits: Dataset,
) -> None:
    # Four epochs of 12 batches of a fixed subset of 720 are 48 steps.
    records: list[EpochRecord] = []
    changes = {"batch_size": 64, "learning_rate": 0.02, "steps": None, "epochs": 4}
    recipe = RECIPE.model_copy(update=changes)
    source = Redrawn("infobatch", digits, 720, seed=3)
    trained = fit(net(), digits, recipe=recipe, reselect=source, on_epoch=[records.append])
    assert trained.num_steps == 48
    assert records[0].num_examples == 1442
    assert 721 < records[1].num_examples < 1442


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("random", {"pool": "2"}, "pool: there is no such setting"),
        ("infobatch", {"pool": "2"}, "pool: there is no such setting; there are prune, annealing"),
        ("infobatch", {"prune": "1"}, "prune = '1'"),
    ],
)
def test_every_way_names_itself_and_refuses_what_it_does_not_take(
    digits: Dataset, name: str, options: dict[str, str], words: str
) -> None:
    source = Redrawn(name, digits, 40, 2)
    expected = {"redraw": name, "budget": 40, "seed": 2}
    assert source.identity == {**source.identity, **expected}
    assert source.subset.strategy == f"redrawn_{name}"
    with pytest.raises(ConfigError, match=words):
        Redrawn(name, digits, 40, 2, options)
    with pytest.raises(BudgetError, match=r"budget 1443 is outside 1\.\.1442"):
        Redrawn(name, digits, 1443, 0)


def test_an_unknown_way_is_refused(digits: Dataset) -> None:
    with pytest.raises(UnknownNameError, match="Choose from: random, infobatch"):
        Redrawn("often", digits, 40, 2)
