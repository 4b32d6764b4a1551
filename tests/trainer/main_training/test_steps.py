import threading
from dataclasses import replace

import pytest
import torch
from torch.nn.utils import parameters_to_vector

from lipt.common.errors import DataError, SubsetError
from lipt.common.tensor_files import Weights
from lipt.data.dataset import Dataset
from lipt.data.inputs.model_input import images_in
from lipt.trainer.main_training import Recipe
from lipt.trainer.main_training.steps import Steps, TrainingExamples, augmented, place_model
from tests.core.signals.made_up import made_up_dataset
from tests.pretended import Pretended, brought
from tests.trainer.made_up import made_up_subset

CPU = torch.device("cpu")


def pictures(num_images: int = 6) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(256, (num_images, 3, 16, 16), generator=generator, dtype=torch.uint8)


def given(recipe: Recipe, step: int = 0) -> torch.Tensor:
    found = augmented(recipe, step, pictures())
    assert isinstance(found, torch.Tensor)
    return found


@pytest.mark.parametrize("method", ["crop", "crop_flip", "randaugment"])
def test_every_step_and_seed_has_its_own_draws(method: str) -> None:
    recipe = Recipe.model_validate({"augmentation": method})
    assert torch.equal(given(recipe), given(recipe))
    assert not torch.equal(given(recipe), given(recipe, step=1))
    assert not torch.equal(given(recipe), given(recipe.model_copy(update={"seed": 1})))


def test_randaugment_needs_uint8_images() -> None:
    with pytest.raises(DataError, match=r"images are torch\.float32"):
        augmented(Recipe(augmentation="randaugment"), 0, pictures().float())


RECIPE = Recipe(batch_size=16, steps=4, augmentation="crop_flip", nesterov=True, warmup_steps=2)


def stepped(dataset: Dataset, device: torch.device, there: Pretended | None = None) -> Weights:
    """The weights after an epoch; what was waited for before its first step is forgotten."""
    model, forward_pass = place_model("resnet8", dataset, RECIPE, device, ())
    examples = TrainingExamples(None, dataset, RECIPE, device)
    steps = Steps(model, forward_pass, RECIPE, 4)
    if there is not None:
        there.waits.clear()
    batches = RECIPE.batches(torch.arange(len(dataset)))
    for step, batch in enumerate(examples.batches(batches)):
        steps.take(step, batch)
    return model.state_dict()


def test_no_step_waits_for_the_device() -> None:
    dataset = made_up_dataset(64)
    expected = stepped(dataset, torch.device("cpu"))
    with Pretended() as there:
        found = stepped(dataset, there.device, there)
        assert there.waits == {}
        weights = brought(found)
    for name, tensor in expected.items():
        torch.testing.assert_close(weights[name], tensor, rtol=1e-4, atol=1e-5, msg=name)


@pytest.fixture
def no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lipt.trainer.main_training.steps._device_budget_bytes", lambda _: 0)


@pytest.mark.parametrize("fixture", [None, "no_room"])
def test_batches_have_the_requested_examples_in_order(
    digits: Dataset, fixture: str | None, request: pytest.FixtureRequest
) -> None:
    if fixture is not None:
        request.getfixturevalue(fixture)
    subset = made_up_subset([3, 7, 12, 40, 900], [1, 2, 3, 4, 5], fingerprint=digits.fingerprint)
    examples = TrainingExamples(subset, digits, RECIPE, CPU)
    positions = [torch.tensor([4, 0]), torch.tensor([1]), torch.tensor([2, 3, 1])]
    for batch, positions_B in zip(examples.batches(positions), positions, strict=True):
        ids_B = examples.ids_N[positions_B]
        assert torch.equal(images_in(batch.examples_B), digits.images(ids_B))
        assert torch.equal(batch.targets_B, digits.targets_N[ids_B])
        # Of mean 1: (position + 1) / 3.
        torch.testing.assert_close(batch.weights_B, (positions_B + 1) / 3)


@pytest.mark.parametrize(("settings", "clipped"), [({}, True), ({"max_gradient_norm": 0}, False)])
def test_gradients_are_clipped_to_the_recipe_s_norm(
    digits: Dataset, settings: dict[str, float], clipped: bool
) -> None:
    given = {"augmentation": "none", "learning_rate": 0.5, "weight_decay": 0, **settings}
    recipe = Recipe.model_validate(given)
    model, forward_pass = place_model("mlp", digits, recipe, CPU, ())
    before = parameters_to_vector(model.parameters()).detach()
    (batch,) = TrainingExamples(None, digits, recipe, CPU).batches([torch.arange(64)])
    heavy = replace(batch, weights_B=torch.full((64,), 100.0))
    Steps(model, forward_pass, recipe, 10).take(0, heavy)
    moved = (parameters_to_vector(model.parameters()) - before).norm().item()
    # The learning rate times the norm, which the weights make large.
    assert moved == pytest.approx(2.5, abs=1e-3) if clipped else moved > 5


def test_targets_mix_label_and_soft_label(digits: Dataset) -> None:
    soft = torch.full((4, 10), 0.1, dtype=torch.float16).numpy()
    ids = [3, 7, 12, 40]
    subset = made_up_subset(ids, fingerprint=digits.fingerprint, soft_labels=soft)
    recipe = RECIPE.model_copy(update={"soft_labels": 0.3, "augmentation": "none"})
    model, forward_pass = place_model("resnet8", digits, recipe, CPU, ())
    examples = TrainingExamples(subset, digits, recipe, CPU)
    (batch,) = examples.batches([torch.tensor([2, 0])])
    logits = forward_pass(model, batch.examples_B)
    hard = torch.nn.functional.one_hot(digits.targets_N[torch.tensor([12, 3])], 10)
    expected = torch.nn.functional.cross_entropy(logits, 0.7 * hard + 0.03, reduction="sum")
    loss, _ = Steps(model, forward_pass, recipe, 1).take(0, batch).tolist()
    assert loss == pytest.approx(expected.item(), rel=1e-3)
    with pytest.raises(SubsetError, match="the subset has none"):
        TrainingExamples(made_up_subset(ids, fingerprint=digits.fingerprint), digits, recipe, CPU)


@pytest.mark.usefixtures("no_room")
def test_leaving_early_stops_decoding(digits: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded = list[torch.Tensor]()
    examples, decode = TrainingExamples(None, digits, RECIPE, CPU), TrainingExamples._decode
    monkeypatch.setattr(
        TrainingExamples, "_decode", lambda *given: (decoded.append(given[1]), decode(*given))[1]
    )
    batches = examples.batches(list(torch.arange(100).split(5)))
    next(batches)
    batches.close()  # type: ignore[attr-defined]  # of 20 batches
    # The one that was taken, and those ahead of it.
    assert 1 <= len(decoded) <= 3
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("decode")]
