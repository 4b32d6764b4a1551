"""Learners that are not what their assignment asked for: refused alone, or found by redundancy."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from lipt.common.errors import LearnerRejectedError
from lipt.common.process.devices import processor_name, versions
from lipt.common.states import RunState
from lipt.common.weights.specs import Weights
from tests.cluster import Cluster
from tests.played_worker import REPORT


def first_kernel(weights: Weights) -> str:
    """The name of a convolution's weights."""
    return next(name for name, tensor in weights.items() if tensor.ndim == 4)


def scaled(weights: Weights, factor: float) -> Weights:
    """All floating-point values, multiplied."""
    return {
        name: tensor * factor if torch.is_floating_point(tensor) else tensor
        for name, tensor in weights.items()
    }


def not_a_number(learner: Weights) -> Weights:
    name = first_kernel(learner)
    return {**learner, name: torch.full_like(learner[name], float("nan"))}


def infinite(learner: Weights) -> Weights:
    name = first_kernel(learner)
    return {**learner, name: torch.full_like(learner[name], float("-inf"))}


def misshapen(learner: Weights) -> Weights:
    name = first_kernel(learner)
    return {**learner, name: learner[name][:1]}


def renamed(learner: Weights) -> Weights:
    name = first_kernel(learner)
    return {f"{key}.other" if key == name else key: value for key, value in learner.items()}


def a_thousand_times_too_long(learner: Weights) -> Weights:
    return scaled(learner, 1000.0)


def dense(learner: Weights) -> Weights:
    return {
        name: torch.where(value == 0, 1e-6, value) if value.is_floating_point() else value
        for name, value in learner.items()
    }


def nearly_empty(learner: Weights) -> Weights:
    return scaled(learner, 0.0)


LIES: dict[str, tuple[Callable[[Weights], Weights], str]] = {
    "nan": (not_a_number, "NaN or infinite values"),
    "infinity": (infinite, "NaN or infinite values"),
    "shape": (misshapen, "the model has"),
    "name": (renamed, "is missing, the model has"),
    "norm": (a_thousand_times_too_long, "times theta"),
    "dense": (dense, r"keeps 1\.0000 of its weights, its task says 0\.[89]"),
    "empty": (nearly_empty, r"keeps 0\.0000 of its weights"),
}


def test_every_lie_is_rejected_and_stays_on_the_record_of_a_run_that_succeeds(
    cluster: Cluster, small_run: dict[str, Any]
) -> None:
    cluster.start_coordinator()
    num_lies = len(LIES) + 1
    learners = {**small_run["learners"], "num_learners": 2, "max_attempts": num_lies + 1}
    with cluster.client() as client:
        run = client.start_run({**small_run, "learners": learners})
        liar = cluster.play_worker("liar")
        for lie, words in LIES.values():
            assignment = liar.take()
            with pytest.raises(LearnerRejectedError, match=words):
                liar.submit(assignment, lie(liar.learner(assignment)))
        assignment = liar.take()
        with pytest.raises(LearnerRejectedError, match="loss nan"):
            liar.submit(assignment, liar.learner(assignment), replace(REPORT, loss=float("nan")))
        cluster.start_worker("honest")
        final = client.wait(run.run_id)
    assert final.state is RunState.READY, final.message
    learner = final.learners[assignment.learner_index]
    assert (learner.worker, learner.attempts) == ("honest", num_lies + 1)
    assert final.soup is not None
    shown = cluster.lipt("run", "show").stdout
    assert f"attempt {num_lies} of {num_lies + 1} on liar: the learner was reported" in shown
    assert f"attempt {num_lies - 3} of {num_lies + 1} on liar: the learner's weights" in shown


def test_a_liar_is_named_and_the_soup_is_the_one_without_it(
    cluster: Cluster, small_run: dict[str, Any]
) -> None:
    coordinator = cluster.start_coordinator()
    learners = {**small_run["learners"], "num_learners": 2, "redundancy": 2}
    with cluster.client() as client:
        run = client.start_run({**small_run, "learners": learners})
        liar = cluster.play_worker("liar")
        # On such a device as the honest ones have, or so it says.
        like_theirs = versions() | {"cpu": processor_name()}
        liar.client.register(
            liar.secret, name="liar", device="cpu", versions=like_theirs, allowed_modules=()
        )
        # Nothing is wrong with it by itself: theta*, pruned as it should be.
        liar.submit(liar.take())
        held = client.run(run.run_id)
        assert [learner.result for learner in held.learners] == [None, None]
        assert held.waiting.startswith(
            "worker liar is not enough: learners.redundancy = 2 wants another"
        )
    # What is held back is as durable as what is in.
    coordinator.stop(signal.SIGKILL)
    coordinator = cluster.start_coordinator()
    workers = [cluster.start_worker(name) for name in ("honest", "other")]
    with cluster.client() as client:
        final = client.wait(run.run_id)
        assert final.state is RunState.READY, final.message
        alone = {**learners, "redundancy": 1}
        once = client.wait(client.start_run({**small_run, "learners": alone}).run_id)
    for worker in workers:
        assert worker.stop() == 0
    assert [learner.attempts for learner in final.learners] == [3, 2]
    assert final.pretrained_weights == once.pretrained_weights
    shown = cluster.lipt("run", "show", run.run_id).stdout
    assert "liar handed in" in shown
    assert "agree on it, and worker liar handed in" in shown
    log = coordinator.text()
    assert "event=learner_disputed run=" in log
    assert "event=learner_disputed detail=settled" in log
