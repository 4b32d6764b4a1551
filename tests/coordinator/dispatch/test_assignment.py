from __future__ import annotations

import pytest

from lipt.common.errors import InvalidRequestError
from lipt.coordinator.dispatch.assignment import AssignmentKey


@pytest.mark.parametrize("text", ["", "r", "r/", "/1", "r/-1", "r/1.5", "r/x", "r/" + "9" * 5000])
def test_malformed_assignment_id_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError, match="RUN/INDEX"):
        AssignmentKey.parse(text)


def test_assignment_id_is_run_and_index() -> None:
    assert AssignmentKey.parse("abc/12") == AssignmentKey("abc", 12)
    assert str(AssignmentKey("abc", 12)) == "abc/12"
