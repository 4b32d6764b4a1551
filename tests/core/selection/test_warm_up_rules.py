from __future__ import annotations

from typing import Any

import pytest

from lipt.common.blobs.blob import BlobName
from lipt.common.config.run_config import InitializationConfig, RunConfig
from lipt.common.errors import InvalidRequestError, LiptError, OverLimitError, StrategyOptionError
from lipt.common.images.formats import ImageFormat
from lipt.coordinator.compute.jobs.selecting import SelectSubset
from lipt.coordinator.compute.messages import Cost
from lipt.core.results import CommittedLearner, Outcome
from lipt.core.stages.choice import Question
from lipt.core.stages.question import SubsetQuery, needs_no_learners, question_of

FILE = BlobName.of(b"the user's")


def query(strategy: str, pretraining: str = "", **asked: Any) -> SubsetQuery:
    options = {"pretraining": pretraining} if pretraining else {}
    options |= asked.pop("options", {})
    wanted = {"run": "r", "fraction": None, "budget": 10, "balanced": None, "weights": None}
    return SubsetQuery(strategy=strategy, options=options, **wanted | asked)


IMAGE = ImageFormat(1, 8, 8, mean=(0.5,), std=(0.25,))


def asked_for(
    strategy: str, pretraining: str = "", *, given_weights: str | None = None, **asked: Any
) -> Question:
    """What a query to a run comes to, which needs no theta_p where it asks for a warm-up."""
    theta_p = None if pretraining.startswith("epochs") else BlobName.of(b"theta_p")
    begins = InitializationConfig(weights_sha256=given_weights)
    config = RunConfig(model="resnet8", initialization=begins)
    learners = (CommittedLearner(0, (), BlobName.of(b"learner")),)
    run = Outcome("r", config, IMAGE, BlobName.of(b"theta*"), theta_p, learners)
    asking = query(strategy, pretraining, **asked)
    return question_of(run, asking, 1000, backbone=None, max_warm_up_epochs=200)


def test_a_warm_up_begins_with_theta_star_and_needs_no_theta_p() -> None:
    asked = asked_for("craig", "epochs:15.0")
    assert asked.options == (("pretraining", "epochs:15"),)
    assert asked.weights == asked.initial == BlobName.of(b"theta*")
    assert asked.proxy is None
    assert SelectSubset.answering(asked).cost is Cost.DEAR
    assert needs_no_learners(query("craig", "epochs:15"))


def test_lipt_is_as_if_nothing_were_said() -> None:
    # So that the subsets of before keep their keys.
    assert asked_for("craig", "lipt") == asked_for("craig")
    assert asked_for("uniform", "lipt") == asked_for("uniform")
    assert not needs_no_learners(query("craig", "lipt"))


def test_own_features_stand_beside_the_errors_of_a_warm_up() -> None:
    assert asked_for("craig", "epochs:1", features=FILE).features == FILE


@pytest.mark.parametrize(
    ("strategy", "pretraining", "asked", "error", "message"),
    [
        ("uniform", "epochs:1", {}, StrategyOptionError, "looks at no model.*grand"),
        ("forgetting", "epochs:1", {}, StrategyOptionError, "learners.*Leave 'pretraining' out"),
        ("auto", "epochs:1", {}, StrategyOptionError, "by the proxy auto.*Leave"),
        ("grand", "15", {}, StrategyOptionError, "cannot be '15'.*epochs:N, epochs:NxR"),
        ("grand", "epochs:1", {"labels": "none"}, InvalidRequestError, "all labels.*Leave one"),
        ("grand", "epochs:1", {"weights": FILE}, InvalidRequestError, "or yours.*Leave one"),
        ("grand", "epochs:1", {"proxy": "auto"}, InvalidRequestError, "own head.*proxy soup"),
        ("kcenter", "epochs:1", {"features": FILE}, InvalidRequestError, "or the features"),
        (
            *("el2n", "epochs:1", {"options": {"models": "learners"}}),
            *(StrategyOptionError, "ask the run's learners.*those options out"),
        ),
        ("craig", "epochs:1x2", {}, StrategyOptionError, "pretraining=epochs:1, or .*el2n, grand"),
        ("grand", "epochs:21x10", {}, OverLimitError, "takes 210 .*warm_up_epochs allows 200.*few"),
        ("grand", "epochs:0x201", {}, OverLimitError, "takes 201 epochs"),
        (
            *("grand", "epochs:1x2", {"given_weights": "0" * 64}),
            *(InvalidRequestError, "2 random beginnings.*pretraining=epochs:1"),
        ),
    ],
)
def test_what_cannot_be_is_refused_with_a_remedy(
    strategy: str,
    pretraining: str,
    asked: dict[str, Any],
    error: type[LiptError],
    message: str,
) -> None:
    with pytest.raises(error, match=message):
        asked_for(strategy, pretraining, **asked)
