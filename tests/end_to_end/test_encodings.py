"""Learners in every encoding, from workers to the soup."""

from __future__ import annotations

from typing import Any

from lipt.common.states import RunState
from lipt.trainer import Client


def test_exact_encodings_give_the_same_soup_and_the_others_a_smaller_one(
    client: Client, small_run: dict[str, Any]
) -> None:
    finals = {}
    for encoding in ("bitmask", "planes", "bfloat16_planes"):
        learners = {**small_run["learners"], "encoding": encoding}
        run = client.start_run({**small_run, "learners": learners}, name=encoding)
        finals[encoding] = client.wait(run.run_id)
        assert finals[encoding].state is RunState.READY
    bitmask, planes, rounded = finals.values()
    assert planes.pretrained_weights == bitmask.pretrained_weights
    assert rounded.pretrained_weights != bitmask.pretrained_weights
    sizes = [final.costs.bytes_from_workers for final in finals.values() if final.costs]
    assert sizes[1] < 0.9 * sizes[0]
    assert sizes[2] < 0.5 * sizes[0]
