"""Views: the coordinator's answers as frozen values, read from messages by their fields' types.

Imported without gRPC, protobuf or torch. A view's field is read from the message's field of the
same name, or from the names in its metadata's `of` ("outer.inner" for a nested field):

    a view, tuple, Mapping   a message, a repeated field, a map
    X | None                 None where the message has no such field set
    a state                  an enum's member, UNKNOWN where this version does not know it
    str                      a text, or an enum's member in small letters, or its number
    datetime                 a timestamp, None where it is out of range
    RunConfig                the configuration, validated
"""

from __future__ import annotations

import dataclasses
import functools
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from operator import attrgetter
from types import NoneType
from typing import TYPE_CHECKING, Any, TypeVar

from lipt.common.states import LearnerPhase, LearnerState, RunState
from lipt.data.targets.kinds import TargetKind

if TYPE_CHECKING:  # pydantic takes 0.1 s, and only readers of a configuration need it
    from google.protobuf.message import Message

    from lipt.common.config.run_config import RunConfig

ViewT = TypeVar("ViewT")

# Used where neither a strategy, nor a fraction or budget is given.
DEFAULT_STRATEGY, DEFAULT_FRACTION = "auto", 0.1


def view_of(view: type[ViewT], message: Message) -> ViewT:
    """Convert a message to a view; ConfigError for an invalid configuration."""
    kind: Any = view
    types, values = _types(kind), {}
    for part in dataclasses.fields(kind):
        if part.metadata:
            values[part.name] = attrgetter(*part.metadata["of"])(message)
        else:
            values[part.name] = _read(message, part.name, types[part.name])
    return view(**values)


@functools.cache
def _types(view: Any) -> Mapping[str, Any]:
    from lipt.common.config.run_config import RunConfig  # noqa: PLC0415 - pydantic

    return typing.get_type_hints(view, localns={"RunConfig": RunConfig})


def _read(message: Message, name: str, kind: Any) -> Any:
    inner = typing.get_args(kind)
    if NoneType in inner:
        if not message.HasField(name):
            return None
        kind = inner[0]
    value, enum = getattr(message, name), message.DESCRIPTOR.fields_by_name[name].enum_type
    if typing.get_origin(kind) is tuple:
        return tuple(_converted(item, inner[0], enum) for item in value)
    return _converted(value, kind, enum)


def _converted(value: Any, kind: Any, enum: Any) -> Any:
    if enum is not None:
        from lipt.common.rpc.messages import enum_value  # noqa: PLC0415 - protobuf

        text = enum_value(enum, value)
        if issubclass(kind, StrEnum):
            return kind(text) if text in set(kind) else kind("unknown")
        return text
    if typing.get_origin(kind) is Mapping:
        return dict(value)
    if kind is datetime:
        try:
            return value.ToDatetime(tzinfo=UTC)
        except ValueError:  # a year that datetime does not have
            return None
    if not hasattr(value, "DESCRIPTOR"):
        return value
    if hasattr(kind, "model_dump"):
        from lipt.common.config.values import run_config_from_proto  # noqa: PLC0415 - pydantic

        return run_config_from_proto(value, kind())
    return view_of(kind, value)


class WeightsKind(StrEnum):
    """A run's weights: theta* (initial) or theta_p (pretrained)."""

    INITIAL = "initial"
    PRETRAINED = "pretrained"


@dataclass(frozen=True)
class BlobView:
    sha256: str
    size_bytes: int


@dataclass(frozen=True)
class ProgressView:
    """Progress of an activity; `total` is 0 if unknown, `ahead` counts earlier jobs."""

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
    """A learner's part in the soup: (1 - alpha) soup + alpha learner, if kept."""

    position: int
    accuracy: float
    soup_accuracy: float
    alpha: float
    kept: bool

    def __str__(self) -> str:
        return f"kept, alpha {self.alpha:.3g}" if self.kept else "discarded"


@dataclass(frozen=True)
class LearnerView:
    """One learner: its worker, progress and result."""

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
    # None until the soup has tried it.
    ingredient: IngredientView | None
    phase: LearnerPhase = LearnerPhase.UNKNOWN
    num_steps: int = 0
    leased_at: datetime | None = None
    committed_at: datetime | None = None
    # In training, and the steps that they were reported after; up to 20.
    losses: tuple[float, ...] = ()
    loss_steps: tuple[int, ...] = ()


@dataclass(frozen=True)
class SoupView:
    initial_accuracy: float
    mean_learner_accuracy: float
    best_learner_accuracy: float
    soup_accuracy: float
    num_kept: int
    num_validation_examples: int


@dataclass(frozen=True)
class CostsView:
    initialization_seconds: float
    sharding_seconds: float
    training_seconds: float
    merging_seconds: float
    bytes_to_workers: int
    bytes_from_workers: int


@dataclass(frozen=True)
class RunView:
    """A run at one revision; runs in a listing lack their learners.

    waiting_reason: why no connected worker can train its queued learners.
    lowered_defaults: defaults that were lowered to fit the data.
    initialization_note: which weights were used with a new head.
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
    waiting_reason: str = ""
    lowered_defaults: str = ""
    initialization_note: str = ""
    # By source: their names; learner i trains on source i modulo their number.
    sources: tuple[str, ...] = ()

    @property
    def ended(self) -> bool:
        """Whether the run is ready, failed, cancelled or unreadable."""
        return self.state.ended

    @property
    def goes_on(self) -> bool:
        """Whether the run is neither ended nor held."""
        return not self.ended and self.state is not RunState.HELD

    @property
    def outcome(self) -> str:
        """The state, and the message if any."""
        message = self.message.removesuffix(".")
        return str(self.state) + (f": {message}" if message else "")

    @property
    def label(self) -> str:
        """The name, or the id without one."""
        return self.name or self.run_id


@dataclass(frozen=True)
class DatasetView:
    """The data set; images have a shape, other examples columns, and non-class targets strata."""

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
    source_names: tuple[str, ...] = ()
    source_counts: tuple[int, ...] = ()
    number_columns: tuple[str, ...] = ()
    category_columns: tuple[str, ...] = ()

    @property
    def targets(self) -> str:
        if self.other_target is None:
            return f"{len(self.class_names)} classes"
        # Default names are numbers.
        named = ", ".join(name for name in self.target_names if not name.isdigit())
        return f"{self.other_target} targets{f' ({named})' if named else ''}"

    @property
    def inputs(self) -> str:
        if self.columns:
            return ", ".join(map(str, self.columns))
        return f"{'x'.join(map(str, self.image_shape))} images"


@dataclass(frozen=True)
class TargetView:
    """Target kind of multi-label or regression data."""

    kind: str

    def __str__(self) -> str:
        known = {str(kind): kind.words for kind in TargetKind}
        return known.get(self.kind, self.kind)


@dataclass(frozen=True)
class ColumnView:
    """One tensor of an example other than an image."""

    name: str
    type: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        shape = "x".join(map(str, self.shape))
        return f"{self.name} {self.type}[{shape}]".strip()


@dataclass(frozen=True)
class WorkerView:
    """A registered worker; `assignment` is "run/learner" or empty."""

    worker_id: str
    name: str
    device: str
    versions: Mapping[str, str]
    assignment: str
    seconds_since_last_call: float
    idle_reason: str = ""
    certificate_expires_at: datetime | None = None


@dataclass(frozen=True)
class InfoView:
    """A coordinator's protocol, versions, data, defaults and workers."""

    protocol: tuple[int, int] = field(metadata={"of": ("protocol.major", "protocol.minor")})
    versions: Mapping[str, str]
    device: str
    dataset: DatasetView | None
    default_run: RunConfig
    workers: tuple[WorkerView, ...]


@dataclass(frozen=True)
class CallerView:
    """Name and roles of the caller: "worker", "trainer", "admin"."""

    name: str
    roles: tuple[str, ...]


@dataclass(frozen=True)
class TokenView:
    """An access token, perhaps expired or revoked."""

    token_id: str
    name: str
    role: str
    created_at: datetime | None
    expires_at: datetime | None
    revoked_at: datetime | None
    created_by: str
    scores: bool
    source: str = ""


@dataclass(frozen=True)
class GivenTokenView:
    """A new token with its secret, which is not shown again."""

    token: TokenView
    secret: str = field(repr=False)


@dataclass(frozen=True)
class PageLinkView:
    """A link to the coordinator's page that signs in the first browser that opens it."""

    url: str = field(repr=False)
    expires_at: datetime | None
