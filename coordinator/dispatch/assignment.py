"""Assignment key: one learner of one run, as workers name it in every call."""

from __future__ import annotations

from typing import NamedTuple, Self

from lipt.common.errors import InvalidRequestError

# Python refuses to read numbers of thousands of digits, and no run has so many learners.
_MAX_INDEX_DIGITS = 9


class AssignmentKey(NamedTuple):
    """A run and the index of a learner in it; in calls "RUN/INDEX"."""

    run_id: str
    learner: int

    def __str__(self) -> str:
        return f"{self.run_id}/{self.learner}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """The key that an assignment id stands for.

        Raises:
            InvalidRequestError: it is not RUN/INDEX.
        """
        run_id, _, index = text.rpartition("/")
        if not run_id or not index.isdecimal() or len(index) > _MAX_INDEX_DIGITS:
            raise InvalidRequestError(f"assignment id {text!r} is not RUN/INDEX.")
        return cls(run_id, int(index))
