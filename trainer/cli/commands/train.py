"""`lipt train`: main training on a subset, or on redrawn examples, with the paper's recipe."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from lipt.common.targets.kinds import TargetKind
from lipt.common.terminal import complain
from lipt.trainer.cli.display.output import (
    left_out_by,
    open_talking,
    print_result,
    run_talking,
)
from lipt.trainer.cli.options import (
    AllowModule,
    Budget,
    Coordinator,
    Device,
    Fraction,
    ImageSize,
    Json,
    Model,
    Options,
    Preset,
    Proxy,
    Run,
    Training,
    grouped,
    modules_of,
    require_apart,
    require_place,
    require_replaceable,
)
from lipt.trainer.views import WEIGHTS_KINDS, WeightsKind
from lipt.trainer.writing.formatting import format_percent

if TYPE_CHECKING:
    from torch import nn

    from lipt.common.data import Dataset
    from lipt.common.weights.specs import Weights
    from lipt.trainer.client.client import Client
    from lipt.trainer.main_training import Trained
    from lipt.trainer.main_training.examples import SubsetSource
    from lipt.trainer.main_training.records import OnEpoch
    from lipt.trainer.resampling.reselection import Reselection, SelectionOptions
    from lipt.trainer.subsets.subset import Subset

# Options that go with each way to choose examples, in place of a file.
_GO_WITH = {
    "--redraw": {"--fraction", "--budget", "--option"},
    "--strategy": {
        *("--fraction", "--budget", "--option"),
        *("--preset", "--proxy", "--every", "--prefetch"),
    },
}


@dataclass(frozen=True)
class Choice:
    """A strategy or a way to redraw in place of a file, with its options."""

    strategy: Annotated[
        str | None,
        typer.Option(
            "--strategy", "-s", help="Have the coordinator choose the subset, in place of --subset."
        ),
    ] = None
    redraw: Annotated[
        Literal["random", "stale", "infobatch"] | None,
        typer.Option(
            "--redraw",
            help="Draw other examples for every epoch, without a coordinator: random ones, those "
            "with the highest last losses, or all but half of the easy ones.",
        ),
    ] = None
    fraction: Fraction = None
    budget: Budget = None
    options: Options = None
    preset: Preset = None
    proxy: Proxy = None
    every: Annotated[
        int | None, typer.Option(min=1, help="Epochs until the subset is chosen again (20).")
    ] = None
    prefetch: Annotated[
        bool,
        typer.Option(
            "--prefetch",
            help="Ask for the next subset an epoch early, so that training does not wait.",
        ),
    ] = False

    def require(self, *, subset_given: bool) -> None:
        """Refuse options that do not go together."""
        from lipt.common.errors import ConfigError

        ways = {"--subset": subset_given, "--strategy": self.strategy, "--redraw": self.redraw}
        given = [name for name, value in ways.items() if value]
        if len(given) > 1:
            raise ConfigError(f"{' and '.join(given)} were both given. Drop one.")
        way = given[0] if given else ""
        options: dict[str, object] = {
            "--fraction": self.fraction,
            "--budget": self.budget,
            "--option": self.options,
            "--preset": self.preset,
            "--proxy": self.proxy,
            "--every": self.every,
            "--prefetch": self.prefetch,
        }
        for name, value in options.items():
            if value and name not in _GO_WITH.get(way, ()):
                needed = [way for way, names in _GO_WITH.items() if name in names]
                raise ConfigError(
                    f"{name} was given without {' or '.join(reversed(needed))}. Give both, or none."
                )
        if way in _GO_WITH and (self.fraction is None) == (self.budget is None):
            raise ConfigError("give one of --fraction and --budget, e.g. --fraction 0.1")

    def request(self, *, soft_labels: bool) -> SelectionOptions:
        """What a strategy is asked for each time."""
        from lipt.trainer.cli.overrides import parse_options

        asked: SelectionOptions = {
            "fraction": self.fraction,
            "budget": self.budget,
            "options": parse_options(self.options or []),
            "prefetch": self.prefetch,
        }
        if soft_labels:
            asked["soft_labels"] = True
        if self.preset is not None:
            asked["preset"] = self.preset
        if self.proxy is not None:
            asked["proxy"] = self.proxy
        return asked if self.every is None else {**asked, "every": self.every}

    def redrawing(self) -> Callable[[Dataset, int], SubsetSource] | None:
        """Makes a source of the data to train on and a seed; None where nothing is redrawn."""
        from lipt.common.subsets import resolve_budget
        from lipt.trainer.cli.overrides import parse_options
        from lipt.trainer.resampling.redrawing import redraw

        if self.redraw is None:
            return None
        draw = redraw(self.redraw, parse_options(self.options or []))

        def make(train: Dataset, seed: int) -> SubsetSource:
            budget = resolve_budget(
                fraction=self.fraction, budget=self.budget, num_examples=len(train)
            )
            return draw(train, budget, seed)

        return make


@dataclass
class Reselecting:
    """Source of subsets for `fit`, with a summary of what it did."""

    client: Client
    run: str
    strategy: str
    request: SelectionOptions
    say: Callable[[str], None]
    _first_seconds: float = field(default=0.0, init=False)
    _source: Reselection | None = field(default=None, init=False)

    def require_model(self, model: str) -> None:
        """Refuse a model whose weights the run could not select on, before it is trained."""
        from lipt.common.errors import ConfigError

        view = self.client.ready_run(self.run)
        self.run = view.run_id
        if view.config.model != model:
            raise ConfigError(
                f"run {view.label} selects on weights of {view.config.model}, but --model is "
                f"{model}. Give --model {view.config.model}, or another --run."
            )

    def __call__(self, model: nn.Module, first: Subset | None) -> Reselection:
        """The source for a model in training, which begins with `first` or asks."""
        from lipt.trainer.resampling.reselection import Reselection

        if first is None:
            started = monotonic()
            first = run_talking(self._ask_first, self.say)
            self._first_seconds = monotonic() - started
            if first.stopped_early:
                self.say(f"{first.strategy} stopped early: {first.stopped_early}")
        asked: SelectionOptions = {**self.request, "run": self.run, "first": first}
        self._source = Reselection(self.client, model, self.strategy, **asked)
        return self._source

    def _ask_first(self, report: Callable[[str], None]) -> Subset:
        from lipt.trainer.resampling.reselection import require_reselectable

        report(f"waiting for the first subset by {self.strategy}")
        require_reselectable(self.client, self.strategy)
        return self.client.subset(
            self.run,
            self.strategy,
            fraction=self.request.get("fraction"),
            budget=self.request.get("budget"),
            options=self.request.get("options"),
            preset=self.request.get("preset"),
            proxy=self.request.get("proxy"),
            soft_labels=self.request.get("soft_labels", False),
            on_progress=lambda progress: report(f"{self.strategy}: {progress.activity}"),
        )

    def history(self) -> list[Any]:
        """Every subset that was chosen again, in order."""
        return [] if self._source is None else self._source.history

    @property
    def waited_seconds(self) -> float:
        """How long training stood still for subsets, the first one included."""
        later = 0.0 if self._source is None else self._source.waited_seconds
        return self._first_seconds + later

    def summary(self) -> str:
        """How often the subset was chosen again, and how long training waited for that."""
        history = self.history()
        times = "once" if len(history) == 1 else f"{len(history)} times"
        stale = sum(selected.stale_epochs > 0 for selected in history)
        aged = f" ({stale} on weights an epoch old)" if stale else ""
        return (
            f"the subset was chosen again {times}{aged}; training waited "
            f"{self.waited_seconds:.1f} s for subsets"
        )


# Packages by the flags that need them.
_PACKAGES = {"tensorboard": "tensorboard", "wandb": "wandb", "mlflow": "mlflow-skinny"}


@dataclass(frozen=True)
class Loggers:
    """Where else training's measures go."""

    tensorboard: Annotated[
        str | None, typer.Option(metavar="DIR", help="Log to TensorBoard, too.")
    ] = None
    wandb: Annotated[
        str | None, typer.Option(metavar="PROJECT", help="Log to Weights & Biases, too.")
    ] = None
    mlflow: Annotated[
        str | None, typer.Option(metavar="EXPERIMENT", help="Log to MLflow, too.")
    ] = None

    def require(self) -> None:
        """Look for the packages of those that were asked for; imports none of them."""
        from lipt.common.imports import require_extra

        for name, value in vars(self).items():
            if value is not None:
                package = _PACKAGES[name]
                require_extra(name, package=package, extra="loggers", needed_for=f"--{name}")

    def started(self, stack: ExitStack, subset: Subset | None) -> list[OnEpoch]:
        """Those that were asked for; each ends with the last step, or with `stack`."""
        from lipt.trainer.tracking import Logger

        loggers: list[OnEpoch] = []
        for name, value in vars(self).items():
            if value is not None:
                logger = Logger(name, value)
                stack.callback(logger.close)
                if subset is not None:
                    logger.describe(subset)
                loggers.append(logger)
        return loggers


@dataclass(frozen=True)
class Checkpoints:
    """Where progress is saved, and when training pauses."""

    checkpoint: Annotated[
        Path | None,
        typer.Option(help="A file to save progress in; training goes on from it where it exists."),
    ] = None
    checkpoint_seconds: Annotated[
        float,
        typer.Option(min=0, help="Seconds between checkpoints; 0 writes one after every epoch."),
    ] = 60.0
    minutes: Annotated[
        float | None,
        typer.Option(
            min=0, help="Pause by then with --checkpoint and status 75; the same command goes on."
        ),
    ] = None


_SCRATCH = "scratch"
# EX_TEMPFAIL of sysexits.h: the same command is worth another start.
_PAUSED = 75

_Subset = Annotated[
    Path | None, typer.Option(help="A file of 'lipt subset get'; without it, all examples.")
]
_SoftLabels = Annotated[
    float,
    typer.Option(
        min=0, max=1, help="Share of the targets that is the subset's soft labels, e.g. 0.5."
    ),
]
_Test = Annotated[
    str | None, typer.Option(help="Data to measure accuracy on, e.g. cifar10-test:DIR.")
]
_Out = Annotated[
    Path | None,
    typer.Option("--out", "-o", help="A .safetensors file to write the final weights to."),
]
_Log = Annotated[Path, typer.Option(help="A file that gets a line of JSON per epoch.")]
_Init = Annotated[str, typer.Option(help=f"{_SCRATCH}, or a run's weights: {WEIGHTS_KINDS}.")]


@grouped
def train(
    *,
    data: Annotated[str, typer.Option(help="The data that the subset was chosen from.")],
    model: Model,
    subset: _Subset = None,
    soft_labels: _SoftLabels = 0.0,
    choice: Choice,
    test: _Test = None,
    image_size: ImageSize = None,
    training: Training,
    init: _Init = _SCRATCH,
    out: _Out = None,
    saving: Checkpoints,
    log: _Log = Path("train.jsonl"),
    loggers: Loggers,
    device: Device = "auto",
    allow_module: AllowModule = None,
    run: Run = "latest",
    json: Json = False,
    coordinator: Coordinator,
) -> None:
    """Train a model on a subset: SGD, cosine from 0.1, batch 256, crop and flip."""
    _require(init, saving)
    loggers.require()
    from lipt.common.process.machine import wait_passively

    wait_passively()
    from lipt.trainer.cli.display.progress import TrainingProgress, resumed_text
    from lipt.trainer.cli.overrides import refusing_as_usage
    from lipt.trainer.main_training import Schedule, fit
    from lipt.trainer.main_training.records import JsonLines
    from lipt.trainer.resampling.reselection import ReselectionWarning
    from lipt.trainer.subsets.subset import Subset
    from lipt.trainer.tracking import LoggerWarning

    recipe = training.recipe(soft_labels=soft_labels)
    with refusing_as_usage():
        choice.require(subset_given=subset is not None)
        request, redrawing = choice.request(soft_labels=soft_labels > 0), choice.redrawing()
    checkpoint = saving.checkpoint
    _require_places({"--subset": subset}, checkpoint, out, log)
    chosen = None if subset is None else Subset.load(subset)
    modules = modules_of(allow_module, data, test, model)
    with _pausing(), ExitStack() as stack:
        progress = TrainingProgress()
        reselecting, initial = None, None
        quarantined = () if chosen is None else chosen.quarantined
        if choice.strategy is not None or init != _SCRATCH:
            client = stack.enter_context(coordinator.connect())
            if choice.strategy is not None:
                reselecting = Reselecting(client, run, choice.strategy, request, progress.say)
                reselecting.require_model(model)
                run, quarantined = reselecting.run, left_out_by(client)
            initial = None if init == _SCRATCH else _weights(client, run, init)
        opened = partial(open_talking, image_size=image_size, modules=modules)
        train_data = opened(data, quarantined=quarantined)
        progress.score_name = train_data.target.kind.score_name
        lines = stack.enter_context(closing(JsonLines(log)))
        stack.enter_context(progress.saying(ReselectionWarning, LoggerWarning))
        trained = fit(
            model,
            train_data,
            subset=chosen,
            test=None if test is None else opened(test),
            recipe=recipe,
            schedule=Schedule(checkpoint_seconds=saving.checkpoint_seconds),
            device=device,
            initial=initial,
            checkpoint=checkpoint,
            max_seconds=None if saving.minutes is None else 60 * saving.minutes,
            reselect=reselecting if redrawing is None else redrawing(train_data, recipe.seed),
            on_epoch=(lines, progress.on_epoch, *loggers.started(stack, chosen)),
            on_step=progress.on_step,
            on_resume=lambda found: progress.say(f"{checkpoint}: {resumed_text(found)}"),
            allowed_modules=modules,
        )
    _finish(trained, out, reselecting, redrawn=redrawing is not None, json=json)


def _require(init: str, saving: Checkpoints) -> None:
    if init != _SCRATCH and WeightsKind.parse(init) is None:
        raise typer.BadParameter(
            f"{init!r} is none of {_SCRATCH}, {WEIGHTS_KINDS}.", param_hint="--init"
        )
    if saving.minutes is not None and saving.checkpoint is None:
        raise typer.BadParameter("Name a --checkpoint to go on from.", param_hint="--minutes")


def _require_places(
    read: dict[str, Path | None], checkpoint: Path | None, out: Path | None, log: Path
) -> None:
    require_replaceable(out, checkpoint)
    require_place(log)
    require_apart({**read, "--checkpoint": checkpoint, "--out": out, "--log": log})


@contextmanager
def _pausing() -> Iterator[None]:
    from lipt.trainer.main_training import TrainingPaused

    try:
        yield
    except TrainingPaused as paused:
        complain("lipt", str(paused))
        raise typer.Exit(_PAUSED) from None


def _weights(client: Client, run: str, kind: str) -> Weights:
    from lipt.common.weights.files import read_container

    content = client.weights(run, kind)
    container = read_container(content, max_bytes=len(content), max_tensors=len(content))
    return {name: container.tensor(name) for name in container.specs}


def _finish(
    trained: Trained,
    out: Path | None,
    reselecting: Reselecting | None,
    *,
    redrawn: bool,
    json: bool,
) -> None:
    from lipt.common.weights.files import pack
    from lipt.trainer.writing.files import write_atomically

    if out is not None:
        write_atomically(out, pack(trained.weights))
    measures = {
        "num_steps": trained.num_steps,
        "seconds": trained.seconds,
        "score": trained.kind.score_name,
        "test_accuracy": trained.test_accuracy,
        "subset_accuracy": trained.subset_accuracies[-1][1],
        "weights": out,
        "waited_seconds": 0.0 if reselecting is None else reselecting.waited_seconds,
        "reselections": [] if reselecting is None else reselecting.history(),
    }
    trained_on = "the last epoch's examples" if redrawn else "the subset"
    accuracies = [f"{format_percent(trained.subset_accuracies[-1][1])} on {trained_on}"]
    if trained.test_accuracy is not None:
        accuracies.insert(0, f"{format_percent(trained.test_accuracy)} on the test set")
    score = "" if trained.kind is TargetKind.CLASS else f"{trained.kind.score_name} "
    seconds = f"{trained.seconds:.0f} s"
    lines = [f"{trained.num_steps} steps in {seconds}: {score}{', '.join(accuracies)}"]
    if reselecting is not None:
        lines.append(reselecting.summary())
    print_result(measures, lines, as_json=json)
