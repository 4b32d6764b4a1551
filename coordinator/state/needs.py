"""Needed blobs: those that the records refer to; the others can be removed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lipt.common.blobs.blob import BlobName
from lipt.common.states import RunState
from lipt.coordinator.state.contents import Contents, opened_read_only
from lipt.coordinator.state.records import RunRecord

_GIVEN_UP = (RunState.FAILED, RunState.CANCELLED)


@dataclass(frozen=True)
class Need:
    """A blob, and what needs it."""

    blob: BlobName
    whose: str


def needed_blobs(contents: Contents) -> tuple[Need, ...]:
    """The blobs that these records need.

    A run always needs its weights. It needs shards, and results that wait for a second worker,
    while learners are trained. It needs its learners' results and snapshots unless it failed or
    was cancelled: strategies that watch training read them.
    """
    return (
        *(need for run in contents.runs for need in _of_run(run)),
        *(
            Need(subset.blob, f"subset {subset.strategy} ({subset.digest[:12]}) of {subset.run_id}")
            for subset in contents.subsets
        ),
        *(
            Need(diagnosis.blob, f"diagnosis {diagnosis.proxy} of {diagnosis.run_id or 'the data'}")
            for diagnosis in contents.diagnoses
        ),
    )


def named_by(run: RunRecord) -> Iterator[BlobName]:
    """The blobs that a run's record names."""
    for learner in run.learners:
        yield from (learner.shard, *learner.snapshots)
        if learner.result is not None:
            yield learner.result
    for blob in (run.initial_weights, run.pretrained_weights):
        if blob is not None:
            yield blob


def useful_digests(contents: Contents) -> frozenset[str]:
    """Digests of uploads that records name: they are kept, and may be missing.

    The weights that a subset was selected on decide whether a later request may keep the subset.
    """
    selected_on = (subset.weights_sha256 for subset in contents.subsets)
    return frozenset(filter(None, selected_on)) | given_digests(contents)


def given_digests(contents: Contents) -> frozenset[str]:
    """Digests of weights that runs started from: a damaged theta* is made of them again."""
    given = (run.config.initialization.weights_sha256 for run in contents.runs)
    return frozenset(filter(None, given))


def _of_run(run: RunRecord) -> Iterator[Need]:
    for name, blob in (("theta*", run.initial_weights), ("theta_p", run.pretrained_weights)):
        if blob is not None:
            yield Need(blob, f"{name} of run {run.name}")
    for learner in run.learners:
        whose = f"of learner {learner.index} of run {run.name}"
        if learner.state.open and not run.state.ended:
            yield Need(learner.shard, f"the shard {whose}")
            for copy in learner.copies:
                for blob in copy.files:
                    yield Need(blob, f"what {copy.worker_name} handed in {whose}")
        if learner.result is not None and run.state not in _GIVEN_UP:
            yield Need(learner.result, f"the result {whose}")
            for number, snapshot in enumerate(learner.snapshots):
                yield Need(snapshot, f"snapshot {number} {whose}")


_DIGEST = re.compile(r"[0-9a-f]{64}")
# A record that is no JSON names nothing.
_NAMED = """
    SELECT json_extract(body, '$.shard', '$.result', '$.snapshots') FROM learners
    WHERE json_valid(body)
    UNION ALL
    SELECT json_extract(body, '$.initial_weights', '$.pretrained_weights',
        '$.config.initialization.weights_sha256') FROM runs
    WHERE json_valid(body)
    UNION ALL
    SELECT json_extract(body, '$.blob') FROM subsets WHERE json_valid(body)
    UNION ALL
    SELECT json_extract(body, '$.blob') FROM diagnoses WHERE json_valid(body)
"""


def named_digests(directory: Path) -> Iterator[str]:
    """Digests that a directory's records name, needed or not; all other blobs are uploads.

    SQLite takes them out of the JSON; some come more than once.

    Raises:
        StateError: there is no database, or it is damaged.
    """
    with opened_read_only(directory) as connection:
        for (named,) in connection.execute(_NAMED):
            yield from _DIGEST.findall(named)
