from pathlib import Path

import pytest

from lipt.common.config.settings import load_settings
from lipt.common.errors import ConfigError
from lipt.coordinator.settings import CoordinatorSettings, with_own_modules
from lipt.worker.settings import WorkerSettings


def load(**flags: object) -> CoordinatorSettings:
    digits = {"dataset": {"source": "digits"}}
    return load_settings(CoordinatorSettings, config=None, flags=digits | flags)


def test_flags_win_over_the_environment_which_wins_over_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
        ("lisen = 'x'", "lisen: there is no such setting; there are listen, state_dir, "),
        ("[lease]\nseconds = 5", r"lease\.seconds: there is .*; there are duration_seconds$"),
        ("[run.learners]\ndensity = 1", r"run\.learners\.density: .* num_learners, num_minibat"),
        ("[lease]\nduration_seconds = nan", r"lease\.duration_seconds = nan: .*finite"),
        ("[lease]\nduration_seconds = 1e9", r"duration_seconds = 1000000000\.0: .*equal to 3600"),
        ("[lease]\nduration_seconds = 'x'", r"lease\.duration_seconds = 'x': .*valid number"),
        (
            "[lease]\nduration_seconds = 30\n[run.learners]\ndeadline_seconds = 5",
            r"deadline_seconds = 5 is below lease\.duration_seconds = 30: .* 0, .* or to 30",
        ),
        ("log_level = 'LOUD'", "log_level = 'LOUD': .*'DEBUG', 'INFO', 'WARNING' or 'ERROR'"),
        ("listen = ", "is not TOML"),
    ],
)
def test_bad_file_is_refused_with_file_key_and_what_is_allowed(
    tmp_path: Path, text: str, words: str
) -> None:
    config = tmp_path / "run.toml"
    config.write_text(text)
    with pytest.raises(ConfigError, match=words) as caught:
        load_settings(CoordinatorSettings, config=config, flags={"dataset": {"source": "digits"}})
    assert str(config) in str(caught.value)


@pytest.mark.parametrize("deadline", [0.0, 30.0, 3600.0])
def test_deadline_of_a_lease_or_more_or_none_is_taken(deadline: float) -> None:
    settings = load(run={"learners": {"deadline_seconds": deadline}})
    assert settings.run.learners.deadline_seconds == deadline


def test_own_factories_are_allowed_and_others_are_not() -> None:
    own = {"source": "mine.data:train"}
    settings = load(dataset=own, run={"model": "torchvision:resnet18"}, allow_modules=("also",))
    assert with_own_modules(settings).allow_modules == ("also", "mine.data")


def test_sizes_are_written_with_their_unit_or_as_bytes() -> None:
    assert load(limits={"compute_memory": "1.5GiB"}).limits.compute_memory == 3 * 2**29
    worker = load_settings(WorkerSettings, config=None, flags={"max_memory": "2000000000"})
    assert worker.max_memory == 2 * 10**9


@pytest.mark.parametrize(
    ("size", "words"),
    [("5 MB", "greater than or equal to 1073741824"), ("much", "could not parse value and unit")],
)
def test_size_that_nothing_could_run_in_is_refused(size: str, words: str) -> None:
    with pytest.raises(ConfigError, match=f"max_memory = '{size}': .*{words}"):
        load_settings(WorkerSettings, config=None, flags={"max_memory": size})
