"""Kept runs: the ended runs that were asked for last; whoever asks for one asks for more of it."""

from __future__ import annotations

from collections import OrderedDict

from lipt.coordinator.state.records import RunRecord

# A run of four learners takes some 40 KB, a learner some 3 KB of it.
_MOST_RUNS = 250
_MOST_LEARNERS = 5_000


class KeptRuns:
    """Records in memory, of a bounded number of runs and learners; the one asked for last stays."""

    def __init__(self, *, most_runs: int = _MOST_RUNS, most_learners: int = _MOST_LEARNERS) -> None:
        self._most_runs, self._most_learners = most_runs, most_learners
        # The one that was asked for last comes last.
        self._runs: OrderedDict[str, RunRecord] = OrderedDict()
        self._num_learners = 0

    def __len__(self) -> int:
        return len(self._runs)

    def find(self, run_id: str) -> RunRecord | None:
        """A run that is kept."""
        if run_id not in self._runs:
            return None
        self._runs.move_to_end(run_id)
        return self._runs[run_id]

    def keep(self, run: RunRecord) -> None:
        """Keep a run's record; those that nobody has asked for the longest make room."""
        self.forget(run.run_id)
        self._runs[run.run_id] = run
        self._num_learners += len(run.learners)
        while len(self._runs) > 1 and (
            len(self._runs) > self._most_runs or self._num_learners > self._most_learners
        ):
            self.forget(next(iter(self._runs)))

    def forget(self, run_id: str) -> None:
        """Keep a run's record no more; harmless where it is not kept."""
        run = self._runs.pop(run_id, None)
        if run is not None:
            self._num_learners -= len(run.learners)
