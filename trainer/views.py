"""Views: what a trainer sees of the coordinator, frozen values and never the wire's messages.

Nothing here imports gRPC or torch, so that a notebook, a DataLoader's worker or
a `--help` can import it for free. `lipt.trainer.client.conversion` reads a field from the
message's field of the same name. Where its source is another, the metadata says `of` which
("outer.inner" for a nested field); of several it makes a tuple.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, NewType

from lipt.common.states import LearnerPhase, LearnerState, RunState
from lipt.common.targets.kinds import TargetKind

if TYPE_CHECKING:  # pydantic takes 0.1 s, and only readers of a configuration need it
    from lipt.common.config.run_config import RunConfig

# What chooses where nobody names a strategy.
DEFAULT_STRATEGY = "auto"
# How much is chosen where neither a fraction nor a budget is given.
DEFAULT_FRACTION = 0.1

# "worker", "trainer" or "admin"; a number where a newer coordinator has another.
RoleName = NewType("RoleName", str)
# "float32" and the like; a number likewise.
ColumnTypeName = NewType("ColumnTypeName", str)
TargetKindName = NewType("TargetKindName", str)


class WeightsKind(StrEnum):
    """Which of a run's weights: theta* (initial) or theta_p (pretrained)."""

    INITIAL = "initial"
    PRETRAINED = "pretrained"

    @classmethod
    def parse(cls, name: str) -> WeightsKind | None:
        """The kind of that name, or of what the documentation calls it; None for none."""
        symbols = {"theta*": cls.INITIAL, "theta_star": cls.INITIAL, "theta_p": cls.PRETRAINED}
        return symbols.get(name) or (cls(name) if name in set(cls) else None)


# What `WeightsKind.parse` takes, for messages and help.
WEIGHTS_KINDS = "initial (or theta*, theta_star) or pretrained (or theta_p)"


@dataclass(frozen=True)
class BlobView:
    """A stored blob's name: the digest and size of its content."""

    sha256: str
    size_bytes: int


@dataclass(frozen=True)
class ProgressView:
    """What is being done, and how much of it: `total` is 0 where that is not known.

    ahead: how many computations come first, where it waits for its turn.
    """

    activity: str
    done: int
    total: int
    ahead: int = 0

    def __str__(self) -> str:
        if self.ahead:
            return f"{self.activity}, {self.ahead} ahead"
        return self.activity + (f" {self.done}/{self.total}" if self.total else "")


@dataclass(frozen=True)
class IngredientView:
    """A learner's part in the soup: (1 - alpha) soup + alpha learner where it was kept."""

    position: int
    accuracy: float
    soup_accuracy: float
    alpha: float
    kept: bool

    def __str__(self) -> str:
        return f"kept, alpha {self.alpha:g}" if self.kept else "discarded"


@dataclass(frozen=True)
class LearnerView:
    """One learner: where it is trained, how far it is, what became of it."""

    index: int
    state: LearnerState
    density: float
    attempts: int
    worker: str = field(metadata={"of": ("worker_name",)})
    device: str
    step: int
    loss: float
    train_seconds: float
    message: str
    result: BlobView | None
    # While the soup is being made, of those that were offered so far.
    ingredient: IngredientView | None
    # What its worker last said that it does.
    phase: LearnerPhase = LearnerPhase.UNKNOWN
    # Of its training.
    num_steps: int = 0
    leased_at: datetime | None = None
    committed_at: datetime | None = None


@dataclass(frozen=True)
class SoupView:
    """Accuracies on the validation split, of theta*, the learners and the soup."""

    initial_accuracy: float
    mean_learner_accuracy: float
    best_learner_accuracy: float
    soup_accuracy: float
    num_kept: int
    num_validation_examples: int


@dataclass(frozen=True)
class CostsView:
    """Seconds per stage, and bytes between the coordinator and its workers."""

    initialization_seconds: float
    sharding_seconds: float
    training_seconds: float
    merging_seconds: float
    bytes_to_workers: int
    bytes_from_workers: int


@dataclass(frozen=True)
class RunView:
    """A run at one revision; a run of a listing comes without its learners.

    waiting: what its learners wait for that no worker there can give; may change while the
        revision stays.
    fitted: what the coordinator has lowered in its defaults so that the shards fit its data.
    note: what it took of the weights that it starts from, where its head is new.
    """

    run_id: str
    name: str
    state: RunState
    revision: int
    message: str
    fingerprint: str
    config: RunConfig
    learners: tuple[LearnerView, ...]
    progress: ProgressView | None
    created_at: datetime | None
    ended_at: datetime | None
    soup: SoupView | None
    costs: CostsView | None
    initial_weights: BlobView | None
    pretrained_weights: BlobView | None
    waiting: str = ""
    fitted: str = ""
    note: str = ""

    @property
    def ended(self) -> bool:
        """Whether the run is ready, failed or cancelled."""
        return self.state.ended

    @property
    def goes_on(self) -> bool:
        """Whether the run goes on by itself: it has not ended, and is not held."""
        return not self.ended and self.state is not RunState.HELD

    @property
    def outcome(self) -> str:
        """Its state, and what its record says of that where it says more."""
        told = self.message.removesuffix(".")
        return str(self.state) + (f": {told}" if told not in {"", self.state} else "")

    @property
    def label(self) -> str:
        """What to call it in a sentence."""
        return self.name or self.run_id


@dataclass(frozen=True)
class StrategyOptionView:
    """One option of a strategy; an empty `allowed_values` means any of the default's kind.

    help: what it is, as a phrase.
    """

    name: str
    default_value: str
    allowed_values: tuple[str, ...]
    help: str = ""


@dataclass(frozen=True)
class StrategyPresetView:
    """Values of a strategy's options by one name; summary: what they are and whose."""

    name: str
    summary: str


@dataclass(frozen=True)
class StrategyView:
    """A selection strategy that the coordinator offers.

    needs: what has to be there for it: "nothing", "labels" alone, "signals", "features",
        "validation split", "learners", "paired features", ...
    cost: how its work grows: N examples, C classes, d features, k budget.
    default_proxy: what judges the examples where a request names no proxy.
    works_without_labels: whether a subset of it can be had with labels="none".
    target_kinds: of targets that it can choose by: "class", "classes" (multi-label), "number"
        (regression).
    """

    name: str
    summary: str
    paper: str
    returns_weights: bool
    balanced_by_default: bool
    options: tuple[StrategyOptionView, ...]
    needs: tuple[str, ...] = ()
    cost: str = ""
    presets: tuple[StrategyPresetView, ...] = ()
    default_proxy: str = ""
    works_without_labels: bool = False
    target_kinds: tuple[str, ...] = ()

    @property
    def needs_classes(self) -> bool:
        """Whether it can choose by classes alone, as far as the coordinator says."""
        return self.target_kinds == (TargetKind.CLASS,)


@dataclass(frozen=True)
class DatasetView:
    """The coordinator's data set; of images it has a shape, of other examples columns.

    other_target: what is to be told where that is no single class; classes are the groups then in
        which examples are dealt with.
    target_names: of the labels or the numbers.
    quarantined: ids of image files that cannot be used, among `num_examples`.
    """

    source: str
    num_examples: int
    class_names: tuple[str, ...]
    class_counts: tuple[int, ...]
    fingerprint: str
    image_shape: tuple[int, int, int] = field(metadata={"of": ("channels", "height", "width")})
    columns: tuple[ColumnView, ...] = ()
    other_target: TargetView | None = None
    target_names: tuple[str, ...] = ()
    quarantined: tuple[int, ...] = ()

    @property
    def targets(self) -> str:
        """What is to be told of each, as messages have it."""
        if self.other_target is None:
            return f"{len(self.class_names)} classes"
        # Names that nobody gave are numbers.
        named = ", ".join(name for name in self.target_names if not name.isdigit())
        return f"{self.other_target} targets{f' ({named})' if named else ''}"

    @property
    def inputs(self) -> str:
        """What its examples are, as messages have it."""
        if self.columns:
            return ", ".join(map(str, self.columns))
        return f"{'x'.join(map(str, self.image_shape))} images"


@dataclass(frozen=True)
class TargetView:
    """What is to be told of examples without a single class."""

    kind: TargetKindName

    def __str__(self) -> str:
        known = {str(kind): kind.words for kind in TargetKind}
        return known.get(self.kind, self.kind)


@dataclass(frozen=True)
class ColumnView:
    """One tensor of every example that is no image."""

    name: str
    type: ColumnTypeName
    shape: tuple[int, ...]

    def __str__(self) -> str:
        shape = "x".join(map(str, self.shape))
        return f"{self.name} {self.type}[{shape}]".strip()


@dataclass(frozen=True)
class WorkerView:
    """A worker that the coordinator knows; `assignment` is "run/learner" or empty.

    idle_reason: what keeps it from learners that wait.
    joined_at: when the coordinator first heard of it.
    certificate_expires_at: of the certificate that it showed, if it did.
    """

    worker_id: str
    name: str
    device: str
    versions: Mapping[str, str]
    assignment: str
    seconds_since_heard: float
    idle_reason: str = ""
    joined_at: datetime | None = None
    certificate_expires_at: datetime | None = None


@dataclass(frozen=True)
class ComputationView:
    """A job of the coordinator's own, which is computed or waits.

    lane: "dear" or "cheap", the queue that it is in.
    run_id: empty where it is of the data alone.
    num_callers: who waits for it; 0 where the run itself does.
    seconds: for how long it has been computed, or has waited.
    """

    lane: str
    job: str
    run_id: str
    num_callers: int
    computing: bool
    seconds: float
    progress: ProgressView | None


@dataclass(frozen=True)
class ServiceView:
    """How a coordinator stands at one moment.

    runs: the newest ones and all that have not ended, newest first, with their learners.
    workers: at most 500 of those that are there, those with a learner first.
    computations: what is computed, then what waits.
    """

    now: datetime | None
    runs: tuple[RunView, ...]
    workers: tuple[WorkerView, ...]
    num_workers: int
    computations: tuple[ComputationView, ...]
    num_runs: int


@dataclass(frozen=True)
class InfoView:
    """Who answers: protocol, versions, data, defaults and workers."""

    protocol: tuple[int, int] = field(metadata={"of": ("protocol.major", "protocol.minor")})
    versions: Mapping[str, str]
    device: str
    dataset: DatasetView | None
    default_run: RunConfig
    workers: tuple[WorkerView, ...]


@dataclass(frozen=True)
class CallerView:
    """Who calls, as the coordinator sees it, and the roles that this gives."""

    name: str
    roles: tuple[RoleName, ...]


@dataclass(frozen=True)
class TokenView:
    """A token that a coordinator gave out; it may have ended since."""

    token_id: str
    name: str
    role: RoleName
    created_at: datetime | None
    expires_at: datetime | None
    revoked_at: datetime | None
    created_by: str


@dataclass(frozen=True)
class GivenTokenView:
    """A token with its text, which is said once."""

    token: TokenView
    secret: str = field(repr=False)


@dataclass(frozen=True)
class PageLinkView:
    """A link to the coordinator's page, which signs in the one browser that opens it first."""

    url: str = field(repr=False)
    expires_at: datetime | None
