from __future__ import annotations

from collections.abc import Callable

import pytest
from pydantic import ValidationError

from lipt.coordinator.state.records import RunRecord

MakeRun = Callable[..., RunRecord]


def test_a_field_that_this_version_does_not_know_is_refused(make_run: MakeRun) -> None:
    values = make_run().model_dump(mode="json")
    assert RunRecord.model_validate(values) == make_run()
    with pytest.raises(ValidationError, match="new_field"):
        RunRecord.model_validate(values | {"new_field": 1})


def test_a_change_of_a_field_that_is_not_there_is_refused(make_run: MakeRun) -> None:
    with pytest.raises(TypeError, match=r"RunRecord has no fields \['stat'\]"):
        make_run().changed(stat=1)
