import io
import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lipt import Recipe, fit
from lipt.common.errors import ConfigError, DataError, DivergedError, SignalsError
from lipt.data.dataset import Dataset
from lipt.data.loading import load, open_data
from lipt.data.sources.rows import ColumnRows
from lipt.data.sources.user_data import rows_of_data
from lipt.data.targets.kinds import TargetKind
from lipt.trainer.main_training import Schedule, Trained, evenly, training
from lipt.trainer.main_training.records import write_line
from lipt.trainer.subsets.subset import Subset
from tests.causal_folders import write_model
from tests.in_memory import in_memory
from tests.trainer.main_training.conftest import RECIPE, equal, net

MakeSubset = Callable[..., Subset]


def test_training_learns_the_subset_and_generalizes(
    digits: Dataset, digits_test: Dataset, subset_of: MakeSubset
) -> None:
    subset = subset_of(digits, range(0, 1442, 5))
    recipe = RECIPE.model_copy(update={"steps": 150, "batch_size": 32})
    trained = fit(net(), digits, subset=subset, test=digits_test, recipe=recipe)
    assert trained.num_steps == 150
    assert trained.subset_accuracies[-1][0] == 150
    assert trained.subset_accuracies[-1][1] > 0.95
    assert trained.test_accuracy is not None
    assert trained.test_accuracy > 0.8
    assert re.fullmatch(
        r"<Trained 150 of 150 steps in \S+ s; test accuracy \S+%; augmentation: none>",
        repr(trained),
    )


@pytest.mark.parametrize("augmentation", ["none", "crop_flip"])
def test_one_seed_gives_one_result(
    digits: Dataset, subset_of: MakeSubset, augmentation: str
) -> None:
    recipe = RECIPE.model_copy(update={"augmentation": augmentation})
    subset = subset_of(digits, range(40))
    assert equal(*(fit("resnet8", digits, subset=subset, recipe=recipe) for _ in range(2)))


def test_small_images_are_not_augmented_unless_asked(digits: Dataset) -> None:
    plain = fit(net(), digits, recipe=RECIPE)
    fitted = fit(net(), digits, recipe=RECIPE.model_copy(update={"augmentation": "auto"}))
    assert equal(fitted, plain)
    assert fitted.recipe.augmentation == "none"


def test_training_starts_from_the_initial_weights(digits: Dataset) -> None:
    begun = fit(net(1), digits, recipe=RECIPE, initial=net(2).state_dict())
    assert equal(begun, fit(net(2), digits, recipe=RECIPE))


def test_a_compiled_module_trains_as_it_does_itself_and_keeps_its_names(digits: Dataset) -> None:
    compiled: Any = torch.compile(net(), backend="eager")
    trained = fit(compiled, digits, recipe=RECIPE)
    assert equal(trained, fit(net(), digits, recipe=RECIPE))
    begun = fit(compiled, digits, recipe=RECIPE, initial=trained.weights)
    assert begun.weights.keys() == net().state_dict().keys()


class BreaksOnWhite(nn.Linear):
    """NaN for an image without a dark pixel."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - as in nn.Linear
        rows_BD = input.flatten(1)
        factor_B = torch.where(rows_BD.amin(dim=1) > 0, torch.nan, 1.0)
        return super().forward(rows_BD) * factor_B[:, None]


def test_an_example_on_which_the_untrained_model_is_not_finite_is_named(digits: Dataset) -> None:
    images = digits.images(torch.arange(40)).clone()
    images[17] = 255
    data = in_memory("white", digits.class_names, digits.labels_N[:40], "0" * 64, images)
    with pytest.raises(SignalsError, match="not finite for 1 of 40 examples, with ids 17: "):
        fit(BreaksOnWhite(64, 10), data, recipe=RECIPE)


def test_a_loss_of_texts_that_is_not_finite_is_explained() -> None:
    texts = open_data([{"t": "ab"}, {"t": "c"}], target="text=t&max_length=4")
    with pytest.raises(DivergedError, match=r"the loss is nan .*Lower the learning rate"):
        fit("text:causal", texts, recipe=Recipe(steps=3, batch_size=2, learning_rate=1e30))


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (nn.Sequential(nn.Flatten(), nn.Linear(64, 7)), r"to the shape \(2, 7\)"),
        (nn.Sequential(nn.Flatten(), nn.Linear(64, 10).double()), r"call model\.float\(\)"),
        (nn.Linear(64, 10).requires_grad_(requires_grad=False), "fails on 1x8x8 images"),
        (net().to("meta"), "on the meta device"),
    ],
)
def test_a_module_that_cannot_be_trained_is_refused(
    digits: Dataset, model: nn.Module, words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        fit(model, digits, recipe=RECIPE)


def test_epoch_records_are_cumulative_json_lines(
    digits: Dataset, digits_test: Dataset, subset_of: MakeSubset
) -> None:
    log = io.StringIO()
    steps: list[tuple[int, int]] = []
    fit(
        net(),
        digits,
        subset=subset_of(digits, range(40)),
        test=digits_test,
        recipe=RECIPE,
        schedule=Schedule(test_at=evenly(2), subset_at=evenly(4)),
        on_epoch=[partial(write_line, log)],
        on_step=lambda step, total: steps.append((step, total)),
    )
    written = [json.loads(line) for line in log.getvalue().splitlines()]
    assert [line["step"] for line in written] == [3, 6, 9, 12]
    assert [line["test_accuracy"] is None for line in written] == [True, False, True, False]
    assert not any(line["subset_accuracy"] is None for line in written)
    assert steps == [(step, 12) for step in range(1, 13)]


def test_evaluations_within_an_epoch_do_not_change_training(
    digits: Dataset, digits_test: Dataset, subset_of: MakeSubset
) -> None:
    def run(schedule: Schedule) -> Trained:
        subset = subset_of(digits, range(96))  # two epochs of six steps
        return fit(net(), digits, subset=subset, test=digits_test, recipe=RECIPE, schedule=schedule)

    within = run(Schedule(test_at=evenly(4), subset_at=evenly(3)))
    at_the_end = run(Schedule(test_at=(), subset_at=None))
    assert equal(within, at_the_end)
    assert [one.step for one in within.evaluations] == [3, 6, 9, 12]
    assert [step for step, _ in within.subset_accuracies] == [4, 8, 12]
    assert [one.step for one in at_the_end.evaluations] == [12]
    assert within.test_accuracy == at_the_end.test_accuracy == at_the_end.evaluations[0].accuracy


def test_evaluation_time_is_not_training_time(
    digits: Dataset, digits_test: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A clock that only accuracies move: a hundred seconds each.
    now = [0.0]

    def accuracy(*_: object) -> float:
        now[0] += 100
        return 0.5

    monkeypatch.setattr(training, "accuracy", accuracy)
    monkeypatch.setattr(training, "monotonic", lambda: now[0])
    schedule = Schedule(test_at=evenly(4), subset_at=())
    trained = fit(net(), digits, test=digits_test, recipe=RECIPE, schedule=schedule)
    # Looks at 3, 6, 9 and 12 of 12 steps, and at the subset after the last one.
    assert trained.seconds == trained.evaluation_seconds == 500
    assert [one.seconds for one in trained.evaluations] == [0, 0, 0, 0]


@pytest.mark.parametrize(
    ("shape", "names", "words"),
    [
        ((3, 8, 8), "0123456789", r"test set \(mine\) holds 3x8x8 images, but the training set"),
        ((1, 8, 8), "x123456789", r"test set \(mine\) has x, which the training set \(digits"),
        ((1, 8, 8), "abc", r"test set \(mine\) has a, b, c, which the training .*: it has 0, 1, 2"),
    ],
)
def test_a_test_set_of_other_images_or_classes_is_refused(
    digits: Dataset, shape: tuple[int, ...], names: str, words: str
) -> None:
    images_NCHW = torch.zeros(3, *shape, dtype=torch.uint8)
    test = in_memory("mine", tuple(names), torch.arange(3), "f" * 64, images_NCHW)
    steps: list[tuple[int, int]] = []
    with pytest.raises(DataError, match=words):
        fit(net(), digits, test=test, recipe=RECIPE, on_step=lambda *step: steps.append(step))
    assert not steps


def test_contradictory_training_arguments_are_refused(digits: Dataset) -> None:
    wild = RECIPE.model_copy(update={"learning_rate": 1e30, "steps": 200})
    with pytest.raises(DivergedError, match=r"rate 1e\+30.*Lower the learning rate"):
        fit(net(), digits, recipe=wild)
    with pytest.raises(ConfigError, match=r"may take 480 s and has no checkpoint.*Name a file"):
        fit(net(), digits, recipe=RECIPE, max_seconds=480)


PLAIN_RECIPE = Recipe(steps=60, batch_size=16, learning_rate=0.05, augmentation="none")


def opened(targets: object, *, seed: int = 0) -> Dataset:
    """Examples of three figures, and what is made of these."""
    inputs_ND = torch.randn(64, 3, generator=torch.Generator().manual_seed(seed))
    rows = [(row, made) for row, made in zip(inputs_ND, targets(inputs_ND), strict=True)]  # type: ignore[operator]
    found = rows_of_data("mine:data", rows)
    assert isinstance(found, ColumnRows)
    return load(found)


def numbers(inputs_ND: Tensor) -> list[float]:
    """In units of their own: a thousand and more."""
    return (1000 + 100 * inputs_ND[:, 0] - 50 * inputs_ND[:, 2]).tolist()


def labels(inputs_ND: Tensor) -> list[list[int]]:
    return (inputs_ND[:, :2] > 0).int().tolist()


def classes(inputs_ND: Tensor) -> list[int]:
    return (inputs_ND[:, 0] > 0).int().tolist()


@pytest.mark.parametrize(
    ("targets", "num_outputs", "kind"),
    [(numbers, 1, TargetKind.NUMBER), (labels, 2, TargetKind.CLASSES)],
)
def test_a_linear_model_learns_what_is_linear(
    targets: object, num_outputs: int, kind: TargetKind
) -> None:
    torch.manual_seed(0)
    train, test = opened(targets), opened(targets, seed=1)
    trained = fit(nn.Linear(3, num_outputs), train, test=test, recipe=PLAIN_RECIPE, device="cpu")
    assert trained.kind is kind
    assert trained.test_accuracy is not None
    assert trained.test_accuracy > 0.9


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing:FutureWarning")
def test_a_live_causal_model_is_trained_in_place_by_its_own_names(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    write_model(tmp_path / "m", vocab_size=256, tokenizer=False)
    texts = "".join(json.dumps({"text": "abcab" * row}) + "\n" for row in range(1, 9))
    (tmp_path / "texts.jsonl").write_text(texts)
    data = f"jsonl:{tmp_path}/texts.jsonl?text=text&max_length=8"
    live = transformers.AutoModelForCausalLM.from_pretrained
    model, start = live(tmp_path / "m"), live(tmp_path / "m").state_dict()
    trained = fit(model, data, recipe={"steps": 2, "batch_size": 4})
    state = model.state_dict()
    assert trained.weights.keys() == state.keys()
    assert all(torch.equal(trained.weights[name], state[name]) for name in state)
    assert not torch.equal(state["model.norm.weight"], start["model.norm.weight"])
    # Its weights are taken back by these names.
    again = fit(live(tmp_path / "m"), data, recipe={"steps": 2, "batch_size": 4}, initial=start)
    assert equal(again, trained)
    peft = pytest.importorskip("peft")
    adapted = peft.get_peft_model(model, peft.LoraConfig(target_modules=["q_proj"]))
    with pytest.raises(ConfigError, match=r"has an adapter of peft.*Give model\.merge_and_unload"):
        fit(adapted, data, recipe={"steps": 1})
