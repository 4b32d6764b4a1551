from __future__ import annotations

import pytest
from pydantic import ValidationError

from lipt.common.config.knobs import sections
from lipt.common.config.run_config import (
    PRESETS,
    FingerprintKind,
    LearnersConfig,
    RunConfig,
    SoupSearch,
)
from lipt.common.config.values import validate
from lipt.common.errors import ConfigError


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
def test_snapshots_are_evenly_spaced_up_to_the_last_state(
    num_steps: int, num_snapshots: int, steps: tuple[int, ...]
) -> None:
    config = LearnersConfig(num_steps=num_steps, num_snapshots=num_snapshots)
    assert config.snapshot_steps == steps


@pytest.mark.parametrize(("num_steps", "num_snapshots"), [(1, 2), (10, 11)])
def test_more_snapshots_than_states_are_refused(num_steps: int, num_snapshots: int) -> None:
    with pytest.raises(ValidationError, match=r"Lower num_snapshots, or raise num_steps"):
        LearnersConfig(num_steps=num_steps, num_snapshots=num_snapshots)


FLOATS = [
    f"{section.name}.{knob.name}"
    for section in sections(RunConfig)
    for knob in section.knobs
    if isinstance(knob.default, float)
]


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
@pytest.mark.parametrize("path", FLOATS)
def test_figure_that_no_record_could_hold_is_refused(path: str, value: float) -> None:
    # JSON has no such numbers: a run's record with one could not be read at the next start.
    section, _, field = path.partition(".")
    with pytest.raises(ConfigError, match=rf"{section}\.{field} = .*finite"):
        validate(RunConfig, {section: {field: value}})


def test_kind_is_told_from_the_value() -> None:
    assert FingerprintKind.of("f" * 64) is FingerprintKind.of("") is FingerprintKind.SAMPLED
    assert FingerprintKind.of("full-" + "f" * 64) is FingerprintKind.FULL


def test_the_papers_preset_has_its_learners_and_its_search() -> None:
    config = validate(RunConfig, PRESETS["paper"])
    learners = config.learners
    sizes = (learners.num_learners, learners.num_minibatches, learners.num_steps)
    assert (*sizes, learners.batch_size) == (10, 1, 10, 256)
    assert (config.soup.search, config.soup.num_alphas) == (SoupSearch.GRID, 10)
