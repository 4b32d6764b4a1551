from __future__ import annotations

from collections.abc import Callable

from lipt.common.blobs.blob import BlobName
from lipt.coordinator.dispatch.worker_blobs import LearnerFiles
from lipt.coordinator.state.records import RunRecord


def test_every_file_may_be_sent_twice_at_twice_the_size_and_a_header(
    make_run: Callable[..., RunRecord],
) -> None:
    run = make_run().changed(initial_weights=BlobName("0" * 64, 1000))
    learners = run.config.learners.model_copy(update={"num_snapshots": 3})
    run = run.changed(config=run.config.model_copy(update={"learners": learners}))
    assert LearnerFiles.of(run) == LearnerFiles(max_files=8, max_file_bytes=2000 + 2**20)


def test_without_theta_star_there_is_room_for_a_header(make_run: Callable[..., RunRecord]) -> None:
    run = make_run().changed(initial_weights=None)
    assert LearnerFiles.of(run) == LearnerFiles(max_files=2, max_file_bytes=2**20)
