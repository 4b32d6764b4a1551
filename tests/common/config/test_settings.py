from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, Field

from docs.make.configuration import markdown_tables
from lipt.common.config.knobs import option_help, sections
from lipt.common.config.run_config import (
    AugmentationConfig,
    LearnersConfig,
    Precision,
    PruningConfig,
    PruningMethod,
    RunConfig,
)
from lipt.common.config.settings import load_settings
from lipt.common.config.values import (
    dump,
    overrides_to_proto,
    run_config_from_proto,
    run_config_to_proto,
    validate,
)
from lipt.common.errors import ConfigError
from lipt.common.rpc.messages import fill_message, message_to_dict
from lipt.coordinator.settings import CoordinatorSettings, with_own_modules
from lipt.core.tasks import LearnerTask
from lipt.data.inputs.specs import Column, ColumnFormat, ColumnsFormat, ColumnType, ImageFormat
from lipt.data.targets.values import MultiLabel, Regression, SingleLabel
from lipt.v1 import config_pb2, worker_pb2
from lipt.worker.settings import WorkerSettings


def load(**flags: object) -> CoordinatorSettings:
    digits = {"dataset": {"source": "digits"}}
    return load_settings(CoordinatorSettings, config=None, flags=digits | flags)


def test_flags_override_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "run.toml"
    config.write_text(
        'listen = "file:1"\ndevice = "file"\nlog_level = "DEBUG"\n'
        '[dataset]\nsource = "digits"\n[run.learners]\nnum_steps = 1\nnum_learners = 2\n'
        "num_minibatches = 3\n"
    )
    monkeypatch.setenv("LIPT_DEVICE", "environment")
    monkeypatch.setenv("LIPT_LISTEN", "environment:1")
    monkeypatch.setenv("LIPT_RUN__LEARNERS__NUM_LEARNERS", "20")
    flags = {"listen": "flag:1", "run": {"learners": {"num_steps": 10}}}
    settings = load_settings(CoordinatorSettings, config=config, flags=flags)
    shown = (settings.listen, settings.device, settings.log_level)
    assert shown == ("flag:1", "environment", "DEBUG")
    learners = settings.run.learners
    assert (learners.num_steps, learners.num_learners, learners.num_minibatches) == (10, 20, 3)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("lisen = 'x'", "lisen: there is no such setting. Did you mean listen"),
        ("[lease]\nseconds = 5", r"lease\.seconds: .* or lease\.duration_seconds\?"),
        ("[lease]\nduration_seconds = nan", r"lease\.duration_seconds = nan: .*finite"),
        ("[lease]\nduration_seconds = 1e9", r"duration_seconds = 1000000000\.0: .*equal to 3600"),
        ("[lease]\nduration_seconds = 'x'", r"lease\.duration_seconds = 'x': .*valid number"),
        (
            "[lease]\nduration_seconds = 30\n[run.learners]\ndeadline_seconds = 5",
            r"deadline_seconds = 5 is below lease\.duration_seconds = 30: .* 0, .* or to 30",
        ),
        ("log_level = 'LOUD'", "log_level = 'LOUD': .*'DEBUG', 'INFO', 'WARNING' or 'ERROR'"),
        (
            "[run.learners]\nnum_steps = 1\nnum_snapshots = 2",
            "Lower num_snapshots, or raise num_st",
        ),
        ("listen = ", "cannot be read as TOML"),
        ("listen = " + "[" * 5000, "cannot be read as TOML: it is nested more than 64 levels deep"),
        ("listen." + ".".join("a" * 5000) + " = 1", "nested more than 64 levels deep"),
    ],
)
def test_bad_file_is_refused_with_allowed_values(tmp_path: Path, text: str, words: str) -> None:
    config = tmp_path / "run.toml"
    config.write_text(text)
    with pytest.raises(ConfigError, match=words) as caught:
        load_settings(CoordinatorSettings, config=config, flags={"dataset": {"source": "digits"}})
    assert str(config) in str(caught.value)


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("LIPT_REQUIRE_TOKEN", "maybe", "require_token = 'maybe': .*valid boolean"),
        ("LIPT_DATASET__IMAGE_SIZE", "big", "dataset.image_size = 'big': .*valid integer"),
        ("LIPT_ALLOW_MODULES", "mine", "allow_modules = 'mine': .*be a list, such as"),
        ("LIPT_ALLOW_MODULES", "[" * 5000, r"allow_modules = '\[+\.\.\.\[+': .*be a list, such as"),
        ("LIPT_RUN__LEARNERS__NUM_STEPS", "{}", "num_steps = '{}': .*valid integer"),
        ("LIPT_LOG_LEVEL", "LOUD", "log_level = 'LOUD': .*'DEBUG'"),
    ],
)
def test_a_variable_of_another_type_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, words: str
) -> None:
    config = tmp_path / "run.toml"
    config.write_text("[dataset]\nsource = 'digits'\n")
    monkeypatch.setenv(variable, value)
    with pytest.raises(ConfigError, match=f"^{variable}: .*{words}"):
        load_settings(CoordinatorSettings, config=config, flags={})


def test_an_override_of_many_levels_is_shown_in_short() -> None:
    deep: dict[str, Any] = {}
    for _ in range(5000):
        deep = {"a": deep}
    with pytest.raises(ConfigError, match=r"seed = \{'a': \{'a': ") as refused:
        overrides_to_proto({"seed": deep})
    assert len(str(refused.value)) < 200


def test_only_the_operator_s_own_factories_are_allowed() -> None:
    own = {"source": "mine.data:train"}
    settings = load(dataset=own, run={"model": "torchvision:resnet18"}, allow_modules=("also",))
    assert with_own_modules(settings).allow_modules == ("also", "mine.data")
    assert load(limits={"compute_memory": "1.5GiB"}).limits.compute_memory == 3 * 2**29
    worker = load_settings(WorkerSettings, config=None, flags={"max_memory": "2000000000"})
    assert worker.max_memory == 2 * 10**9


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
        ({"nonsense": 1}, "nonsense: there is no such setting"),
        ({"learners": {"steps": 1}}, r"learners\.steps: there is no such setting"),
        ({"learners": 3}, "learners = 3: input should be a valid dictionary"),
        ({"pruning": {"method": "axe"}}, "input should be 'magnitude', 'snip', 'random' or 'none'"),
        ({"seed": "seven"}, "seed = 'seven'"),
        ({"seed": -1}, "seed = -1"),
        ({"learners": {"learning_rate": 1e308}}, "learning_rate = 1e.308: .*less than or equal"),
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
def test_task_is_unchanged_after_the_wire(task: LearnerTask) -> None:
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
def test_impossible_task_is_refused(field: str, value: Any, words: str) -> None:
    message = sent(TASK)
    setattr(message, field, value)
    with pytest.raises(ConfigError, match=words):
        read(message)


def test_a_column_of_unknown_type_is_refused() -> None:
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


class Oven(BaseModel):
    """How the soup is
    kept warm.

    No part of the files.
    """

    watts: float = Field(default=0.5, gt=0.0, le=2.0, description="Power, theta*.")
    label: str = Field(default="on", max_length=80, description="Is `*on*`, or_off|broken.")


class Kitchen(BaseModel):
    cooks: int = Field(default=3, ge=1, le=10_000, description="How many cooks there are.")
    oven: Oven = Oven()
    spare: Oven = Field(default=Oven(), description="For when it breaks.")
    precision: Precision = Field(default=Precision.AUTO, description="Of the scales.")
    open_late: bool = Field(default=False, description="Whether it closes after midnight.")


OVEN_TABLE = r"""
| setting | default | allowed | what it does |
|---|---|---|---|
| `watts` | `0.5` | above 0, at most 2 | Power, theta\*. |
| `label` | `"on"` | at most 80 characters | Is `*on*`, or\_off\|broken. |
""".strip()


def test_tables_escape_markdown_outside_code() -> None:
    assert markdown_tables(Kitchen, level=3).split("\n\n")[1:4] == [
        "### `[oven]`",
        "How the soup is kept warm.",
        OVEN_TABLE,
    ]


def test_flag_help_has_the_setting_s_description_values_and_default() -> None:
    names = ("cooks", "precision", "open_late", "spare.watts")
    assert [option_help(Kitchen, name) for name in names] == [
        "How many cooks there are. [1 to 10000; default: 3]",
        "Of the scales. [auto, float32 or bfloat16; default: auto]",
        "Whether it closes after midnight.",
        "Power, theta*. [above 0, at most 2; default: 0.5]",
    ]
    text = option_help(Kitchen, "cooks", note="Repeatable.", show_default=False)
    assert text == "How many cooks there are. Repeatable. [1 to 10000]"


@pytest.mark.parametrize(
    ("num_steps", "num_snapshots", "steps"),
    [
        (10, 0, ()),
        (10, 1, (10,)),
        (10, 2, (5, 10)),
        # 10/3 and 20/3
        (10, 3, (3, 7, 10)),
        # 2.5 and 7.5 round up
        (10, 4, (3, 5, 8, 10)),
        (5, 5, (1, 2, 3, 4, 5)),
        (1, 1, (1,)),
    ],
)
def test_snapshots_are_equidistant(
    num_steps: int, num_snapshots: int, steps: tuple[int, ...]
) -> None:
    config = LearnersConfig(num_steps=num_steps, num_snapshots=num_snapshots)
    assert config.snapshot_steps == steps


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
def test_number_too_large_for_a_record_is_refused(value: float) -> None:
    # JSON has no such numbers: a run's record with one could not be read at the next start.
    for section in ("initialization", "learners"):
        with pytest.raises(ConfigError, match=rf"{section}\.learning_rate = .*finite"):
            validate(RunConfig, {section: {"learning_rate": value}})
