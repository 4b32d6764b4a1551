from __future__ import annotations

import pytest
import torch

from lipt.common.data import Dataset
from lipt.common.errors import DataError
from lipt.common.weights.specs import Weights
from lipt.trainer.main_training import Recipe
from lipt.trainer.main_training.examples import Examples
from lipt.trainer.main_training.steps import Steps, augmented, place_model
from tests.core.signals.made_up import made_up_dataset
from tests.pretended import Pretended, brought

COPIES_K = torch.tensor([1, 4])


def pictures(num_images: int = 6) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(256, (num_images, 3, 16, 16), generator=generator, dtype=torch.uint8)


def given(recipe: Recipe, copies_K: torch.Tensor | None = None, step: int = 0) -> torch.Tensor:
    found = augmented(recipe, step, pictures(), copies_K)
    assert isinstance(found, torch.Tensor)
    return found


def test_without_augmentation_images_stay_as_they_are() -> None:
    assert torch.equal(given(Recipe(augmentation="none")), pictures())


@pytest.mark.parametrize("method", ["crop", "crop_flip", "randaugment"])
def test_every_step_and_seed_has_draws_of_its_own(method: str) -> None:
    recipe = Recipe.model_validate({"augmentation": method})
    assert torch.equal(given(recipe), given(recipe))
    assert not torch.equal(given(recipe), given(recipe, step=1))
    assert not torch.equal(given(recipe), given(recipe.model_copy(update={"seed": 1})))


@pytest.mark.parametrize("method", ["crop", "crop_flip", "randaugment"])
def test_copies_alone_are_augmented_where_the_data_is_not(method: str) -> None:
    recipe = Recipe.model_validate({"augmentation": "none", "coreset_augmentation": method})
    found, stored = given(recipe, COPIES_K), pictures()
    changed = [not torch.equal(one, other) for one, other in zip(found, stored, strict=True)]
    assert changed == [False, True, False, False, True, False]


def test_what_the_others_get_does_not_depend_on_the_copies() -> None:
    plain, beside = given(Recipe()), given(Recipe(), COPIES_K)
    same = [torch.equal(one, other) for one, other in zip(plain, beside, strict=True)]
    assert same == [True, False, True, True, False, True]


def test_copies_do_not_get_the_datas_augmentation_before_their_own() -> None:
    """With a way of their own that shifts by nothing and changes nothing they are as stored."""
    recipe = Recipe(augmentation="crop_flip", coreset_augmentation="crop", padding=0)
    assert torch.equal(given(recipe, COPIES_K)[COPIES_K], pictures()[COPIES_K])


def test_randaugment_without_operations_is_crop_and_flip() -> None:
    bare = Recipe(augmentation="randaugment", randaugment_ops=0)
    assert torch.equal(given(bare), given(Recipe(augmentation="crop_flip")))


def test_a_batch_may_have_no_copy() -> None:
    none = torch.empty(0, dtype=torch.int64)
    assert torch.equal(given(Recipe(), none), given(Recipe()))


def test_what_is_no_image_has_no_augmentation() -> None:
    rows = {"x": torch.ones(3, 2)}
    assert augmented(Recipe(), 0, rows, None) is rows


def test_randaugment_of_what_are_no_bytes_is_refused() -> None:
    with pytest.raises(DataError, match=r"images are torch\.float32"):
        augmented(Recipe(augmentation="randaugment"), 0, pictures().float(), None)


RECIPE = Recipe(batch_size=16, steps=4, label_smoothing=0.1, nesterov=True, warmup_steps=2)


def stepped(dataset: Dataset, device: torch.device, there: Pretended | None = None) -> Weights:
    """The weights after an epoch; what was waited for before its first step is forgotten."""
    model, forward_pass = place_model("resnet8", dataset, RECIPE, device, ())
    examples = Examples(None, dataset, device, weighted=True)
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
