"""Values that nobody has computed: each test changes what it is about."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from lipt.common.config.run_config import LearnersConfig, RunConfig
from lipt.common.errors import LiptError
from lipt.common.states import LearnerState, RunState
from lipt.common.subsets import subset_digest
from lipt.core.catalogue import StrategyView
from lipt.core.mixture.result import MixtureOutcome
from lipt.trainer.comparison.outcomes import Difference, Gap, Outcome
from lipt.trainer.comparison.trial import Trial
from lipt.trainer.main_training.records import EpochRecord
from lipt.trainer.mixture import Mixture
from lipt.trainer.subsets.subset import Subset
from lipt.trainer.views import IngredientView, LearnerView, RunView
from lipt.v1 import subset_pb2
from tests.relay import Fault, change

_RUN = RunView(
    run_id="r-1",
    name="demo",
    state=RunState.TRAINING,
    revision=1,
    message="",
    fingerprint="f" * 8,
    config=RunConfig(model="resnet8", learners=LearnersConfig(num_steps=5)),
    learners=(),
    **dict.fromkeys(("progress", "created_at", "ended_at", "soup", "costs")),  # type: ignore[arg-type]
    **dict.fromkeys(("initial_weights", "pretrained_weights")),  # type: ignore[arg-type]
)
_LEARNER = LearnerView(0, LearnerState.QUEUED, 0.9, 0, "", "", 0, 0.0, 0.0, "", None, None)
_TRIAL = Trial(
    seed=0,
    strategy="uniform",
    fraction=0.1,
    num_examples=100,
    num_steps=50,
    weighted=False,
    test_accuracy=0.5,
    subset_accuracy=1.0,
    converged=True,
    pretraining_seconds=0.0,
    selection_seconds=1.0,
    training_seconds=10.0,
    bytes_sent=0,
    digest="d",
    chance=0.1,
)
_OUTCOME = Outcome(
    *("craig", 0.1, 3, 0.5, 0.01, Difference(0.0, -0.1, 0.1, 3), Gap(), Gap()),
    subset_accuracy=1.0,
    converged=True,
    num_steps=10,
    pretraining_seconds=0.0,
    selection_seconds=0.0,
    training_seconds=7.0,
    bytes_sent=0.0,
    target=None,
    reached=None,
)
_RECORD = EpochRecord(
    epoch=1,
    step=3,
    num_steps=6,
    num_examples=40,
    loss=1.0,
    accuracy=0.5,
    learning_rate=0.1,
    images_per_second=100.0,
    seconds=1.0,
    seconds_left=0.0,
)

_MIXTURE = Mixture(
    weights={"<b>day": 0.75, "night": 0.25},
    intervals={"<b>day": (0.5, 1.0), "night": (0.0, 0.5)},
    outcomes={
        "merged": MixtureOutcome({"<b>day": 0.75, "night": 0.25}, 0.225, 0.917),
        "uniform": MixtureOutcome({"<b>day": 0.5, "night": 0.5}, 0.387, 0.9),
        "size": MixtureOutcome({"<b>day": 0.1, "night": 0.9}, 0.401, 0.85),
    },
    verdict="Better than equal shares.",
    findings=("night has no example of the class <i>.",),
    manifest={"target_examples": 60},
    fingerprint="f" * 64,
    rows={"<b>day": ((0, 30),), "night": ((30, 100),)},
)

KEPT = IngredientView(position=0, accuracy=0.5, soup_accuracy=0.5, alpha=0.3, kept=True)
DISCARDED = IngredientView(position=1, accuracy=0.25, soup_accuracy=0.5, alpha=0.0, kept=False)


made_up_run = partial(replace, _RUN)
made_up_mixture = partial(replace, _MIXTURE)
made_up_trial = partial(replace, _TRIAL)
made_up_outcome = partial(replace, _OUTCOME)


def made_up_learner(index: int = 0, **changes: Any) -> LearnerView:
    return replace(_LEARNER, index=index, **changes)


def trials(
    strategy: str, accuracies: Sequence[float], fraction: float = 0.1, **changes: Any
) -> list[Trial]:
    return [
        made_up_trial(
            seed=seed,
            strategy=strategy,
            fraction=fraction,
            test_accuracy=accuracy,
            **{"digest": f"d{seed}", **changes},
        )
        for seed, accuracy in enumerate(accuracies)
    ]


def made_up_record(epoch: int, **changes: Any) -> EpochRecord:
    return replace(_RECORD, epoch=epoch, **changes)


def made_up_subset(
    indices: Sequence[int],
    weights: Sequence[float] | None = None,
    *,
    fingerprint: str = "f" * 64,
    strategy: str = "made-up",
    soft_labels: Any = None,
    **manifest: Any,
) -> Subset:
    """These examples, each of weight 1 where no weights are given."""
    indices_N = np.array(indices, np.int64)
    weights_N = np.array([1.0] * len(indices_N) if weights is None else weights, np.float32)
    soft_NC = None if soft_labels is None else np.asarray(soft_labels, np.float16)
    digest = subset_digest(indices_N, weights_N, soft_NC)
    return Subset(indices_N, weights_N, fingerprint, digest, strategy, manifest, soft_NC)


def described(**changes: Any) -> Fault:
    def edit(message: subset_pb2.GetSubsetResponse) -> None:
        if message.HasField("subset"):
            for name, value in changes.items():
                setattr(message.subset, name, value)

    return change(edit)


class FakeClient:
    """Answers with subset 0, 1, 2, ..., or with what a test puts in the way.

    asked: what was asked, by the names of the arguments.
    refusals: raised in the place of answers to questions with weights, one each.
    """

    def __init__(self, subset_of: Callable[[int], Subset]) -> None:
        self.asked: list[dict[str, Any]] = []
        self.refusals: list[LiptError] = []
        self._subset_of = subset_of

    @property
    def weights(self) -> list[bytes | None]:
        return [question.get("weights") for question in self.asked]

    def strategies(self) -> list[StrategyView]:
        plain = StrategyView("craig", "", "", True, True, (), needs=("signals",))
        return [plain, replace(plain, name="aum", needs=("learners",))]

    def subset(self, run: str, strategy: str, **options: Any) -> Subset:
        self.asked.append({"run": run, "strategy": strategy, **options})
        if self.refusals and options.get("weights") is not None:
            raise self.refusals.pop(0)
        return self._subset_of(len(self.asked) - 1)
