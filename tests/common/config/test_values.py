from dataclasses import replace
from typing import Any

import pytest

from lipt.common.config.knobs import sections
from lipt.common.config.run_config import (
    AugmentationConfig,
    LearnersConfig,
    PruningConfig,
    PruningMethod,
    RunConfig,
)
from lipt.common.config.tasks import LearnerTask
from lipt.common.config.values import (
    did_you_mean,
    dump,
    overrides_to_proto,
    run_config_from_proto,
    run_config_to_proto,
    validate,
)
from lipt.common.errors import ConfigError
from lipt.common.images.formats import ImageFormat
from lipt.common.inputs.specs import Column, ColumnFormat, ColumnsFormat, ColumnType
from lipt.common.rpc.messages import fill_message, message_to_dict
from lipt.common.targets.values import MultiLabel, Regression, SingleLabel
from lipt.trainer.main_training.recipe import Recipe
from lipt.v1 import config_pb2, worker_pb2

TASK = LearnerTask(
    model="resnet8",
    num_classes=10,
    image=ImageFormat(3, 32, 32, mean=(0.5, 0.25, 0.75), std=(0.5, 0.25, 1.0)),
    learners=LearnersConfig(num_steps=3),
    augmentation=AugmentationConfig(num_ops=1),
    pruning_method=PruningMethod.SNIP,
    density=0.875,
    seed=2**62,
)


def sent(task: LearnerTask) -> worker_pb2.LearnerTask:
    return worker_pb2.LearnerTask.FromString(
        fill_message(worker_pb2.LearnerTask(), dump(task)).SerializeToString()
    )


def read(message: worker_pb2.LearnerTask) -> LearnerTask:
    return validate(LearnerTask, message_to_dict(message))


def test_run_config_has_the_same_fields_on_the_wire() -> None:
    top: Any = config_pb2.RunConfig.DESCRIPTOR
    parts = [("", top), *((it.name, it.message_type) for it in top.fields if it.message_type)]
    wire = {(part, field.name) for part, message in parts for field in message.fields}
    settings = {(part.name, knob.name) for part in sections(RunConfig) for knob in part.knobs}
    assert wire == settings | {("", part.name) for part in sections(RunConfig) if part.name}


def test_run_config_survives_the_wire() -> None:
    config = RunConfig(
        model="wrn28_10",
        seed=7,
        learners=LearnersConfig(num_learners=3, learning_rate=0.25),
        pruning=PruningConfig(method=PruningMethod.RANDOM, density_min=0.5),
    )
    arrived = config_pb2.RunConfig.FromString(run_config_to_proto(config).SerializeToString())
    assert run_config_from_proto(arrived, RunConfig()) == config


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"nonsense": 1}, "nonsense: there is no such setting; there are model"),
        ({"learners": {"steps": 1}}, r"learners\.steps: there is no such setting"),
        ({"learners": 3}, "learners = 3: input should be a valid dictionary"),
        ({"pruning": {"method": "axe"}}, "input should be 'magnitude', 'snip', 'random' or 'none'"),
        ({"seed": "seven"}, "seed = 'seven'"),
        ({"seed": -1}, "seed = -1"),
        ({"seed": (1, 2)}, r"seed = \(1, 2\)"),
    ],
)
def test_bad_override_names_the_setting(overrides: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        overrides_to_proto(overrides)


COLUMNS = (
    # Figures travel as they are: both sides compute with the same.
    ColumnFormat(Column("", ColumnType.FLOAT64, (), standardized=True), (0.1,), (1e-3,)),
    ColumnFormat(Column("tokens", ColumnType.INT64, (128,), num_values=30_000)),
    ColumnFormat(Column("mask", ColumnType.BOOL, (2, 3))),
)
NUMBERS = Regression(mean=(0.1, 1e9), std=(0.3, 1e-9))


@pytest.mark.parametrize(
    "task",
    [
        TASK,
        replace(TASK, image=None, columns=ColumnsFormat(COLUMNS[:1])),
        replace(TASK, image=None, columns=ColumnsFormat(COLUMNS[1:])),
        replace(TASK, num_classes=4, other_target=MultiLabel(4)),
        replace(TASK, num_classes=2, other_target=NUMBERS),
    ],
)
def test_task_survives_the_wire(task: LearnerTask) -> None:
    again = read(sent(task))
    assert again == task
    assert again.inputs == (task.image or task.columns)
    assert again.target == (task.other_target or SingleLabel(10))


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("density", 0.0, r"density = 0\.0: input should be greater than 0"),
        ("density", float("nan"), "density = nan: "),
        ("num_classes", 0, "num_classes = 0: input should be greater than or equal to 1"),
        ("pruning_method", 99, "pruning_method = '99': input should be 'magnitude', 'snip'"),
    ],
)
def test_task_that_cannot_be_done_is_refused(field: str, value: Any, words: str) -> None:
    message = sent(TASK)
    setattr(message, field, value)
    with pytest.raises(ConfigError, match=words):
        read(message)


def test_a_column_of_no_known_type_is_refused() -> None:
    message = sent(replace(TASK, image=None, columns=ColumnsFormat(COLUMNS[1:])))
    column = message.columns.columns[0].column
    for number in (0, 99):
        column.type = number  # type: ignore[assignment]
        with pytest.raises(ConfigError, match=r"columns\.columns\.0\.column\.type"):
            read(message)
    column.type = worker_pb2.COLUMN_TYPE_INT8
    column.shape[:] = [2] * 9
    with pytest.raises(ConfigError, match=r"columns\.0\.column\.shape"):
        read(message)
    column.shape[:] = [0]
    with pytest.raises(ConfigError, match=r"shape\.0 = 0"):
        read(message)


@pytest.mark.parametrize(
    ("name", "question"),
    [
        ("density_mn", "did you mean pruning.density_min?"),
        ("pruning.num_learners", "did you mean learners.num_learners?"),
        ("learning_rat", "did you mean initialization.learning_rate or learners.learning_rate?"),
        ("xyzzy", ""),
    ],
)
def test_a_name_that_is_like_a_setting_gets_a_question(name: str, question: str) -> None:
    assert did_you_mean(name, RunConfig) == question


def test_a_recipe_s_setting_that_there_is_not_is_refused_with_what_was_meant() -> None:
    with pytest.raises(ConfigError, match=r"did you mean learning_rate\?"):
        validate(Recipe, {"learning_rates": 1})
