"""`lipt train`: main training on a subset, or on redrawn examples, with the paper's recipe."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from lipt.common.targets.kinds import TargetKind
from lipt.common.terminal import complain
from lipt.trainer.cli.display.output import print_result
from lipt.trainer.cli.options import (
    AllowModule,
    Budget,
    Coordinator,
    Fraction,
    ImageSize,
    Json,
    Options,
    Preset,
    Proxy,
    Run,
    grouped,
    modules_of,
    require_apart,
    require_place,
    require_replaceable,
)
from lipt.trainer.views import WEIGHTS_KINDS, WeightsKind
from lipt.trainer.writing.formatting import format_percent

if TYPE_CHECKING:
    from lipt.common.data import Dataset
    from lipt.common.weights.specs import Weights
    from lipt.trainer.cli.commands.reselecting import Reselecting
    from lipt.trainer.client.client import Client
    from lipt.trainer.main_training import Trained
    from lipt.trainer.main_training.examples import SubsetSource
    from lipt.trainer.main_training.records import OnEpoch
    from lipt.trainer.reselection.reselection import SelectionOptions
    from lipt.trainer.subsets.subset import Subset


@dataclass(frozen=True)
class Choice:
    """A strategy or a way to redraw in place of a file, and what is asked for each time."""

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

    def request(self, *, subset_given: bool) -> SelectionOptions:
        """What to ask for; nothing where no strategy was given.

        Raises:
            ConfigError: flags that do not go together.
        """
        from lipt.common.errors import ConfigError
        from lipt.trainer.cli.overrides import parse_options

        self._require_one_way(subset_given=subset_given)
        if self.strategy is None:
            self._require_nothing_alone()
        if self.strategy is None and self.redraw is None:
            return {}
        if (self.fraction is None) == (self.budget is None):
            raise ConfigError("give one of --fraction and --budget, e.g. --fraction 0.1")
        if self.strategy is None:
            return {}
        asked: SelectionOptions = {
            "fraction": self.fraction,
            "budget": self.budget,
            "options": parse_options(self.options or []),
            "prefetch": self.prefetch,
        }
        if self.preset is not None:
            asked["preset"] = self.preset
        if self.proxy is not None:
            asked["proxy"] = self.proxy
        return asked if self.every is None else {**asked, "every": self.every}

    def redrawing(self) -> Callable[[Dataset, int], SubsetSource] | None:
        """Makes a source of the data to train on and a seed; None where nothing is redrawn.

        Raises:
            ConfigError: an option does not exist, or is out of range.
        """
        from lipt.common.subsets import resolve_budget
        from lipt.trainer.cli.overrides import parse_options
        from lipt.trainer.resampling.sources import redraw

        if self.redraw is None:
            return None
        draw = redraw(self.redraw, parse_options(self.options or []))

        def make(train: Dataset, seed: int) -> SubsetSource:
            budget = resolve_budget(
                fraction=self.fraction, budget=self.budget, num_examples=len(train)
            )
            return draw(train, budget, seed)

        return make

    def _require_one_way(self, *, subset_given: bool) -> None:
        from lipt.common.errors import ConfigError

        if self.redraw is not None and (subset_given or self.strategy is not None):
            other = "--subset" if subset_given else "--strategy"
            raise ConfigError(
                f"{other} and --redraw were both given. Drop one: --redraw takes its examples from "
                "all of --data."
            )
        if subset_given and self.strategy is not None:
            raise ConfigError(
                "--subset and --strategy were both given. Drop one: a strategy's subset is asked "
                "for again as the model changes."
            )

    def _require_nothing_alone(self) -> None:
        from lipt.common.errors import ConfigError

        for_both: dict[str, object] = {
            "--fraction": self.fraction,
            "--budget": self.budget,
            "--option": self.options or None,
        }
        for name, value in for_both.items():
            if value is not None and self.redraw is None:
                raise ConfigError(
                    f"{name} was given without --strategy or --redraw. Give one of them, or none."
                )
        for_strategies: dict[str, object] = {
            "--preset": self.preset,
            "--proxy": self.proxy,
            "--every": self.every,
            "--prefetch": self.prefetch or None,
        }
        for name, value in for_strategies.items():
            if value is not None:
                raise ConfigError(f"{name} was given without --strategy. Give both, or none.")


# What installs them; they are imported by the names of their flags.
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
        """Look for the packages of those that were asked for; imports none of them.

        Raises:
            MissingExtraError: one is not installed.
        """
        from lipt.common.imports import require_extra

        for name in self._asked():
            require_extra(name, package=_PACKAGES[name], extra="loggers", needed_for=f"--{name}")

    def started(self, stack: ExitStack, subset: Subset | None) -> list[OnEpoch]:
        """Those that were asked for; each ends with the last step, or with `stack`.

        Args:
            stack: of the training.
            subset: what is trained on, where that is known beforehand; they are told of it.

        Raises:
            MissingExtraError: a package lacks something itself.
            ConfigError: one does not begin.
        """
        from lipt.trainer.main_training import callbacks

        loggers: list[OnEpoch] = []
        for name, value in self._asked().items():
            logger = getattr(callbacks, name)(value)
            stack.callback(logger.close)
            if subset is not None:
                logger.describe(subset)
            loggers.append(logger)
        return loggers

    def _asked(self) -> dict[str, str]:
        return {name: value for name, value in vars(self).items() if value is not None}


_SCRATCH = "scratch"
# EX_TEMPFAIL of sysexits.h: the same command is worth another start.
_PAUSED = 75


@grouped
def train(
    *,
    data: Annotated[str, typer.Option(help="The data that the subset was chosen from.")],
    model: Annotated[str, typer.Option(help="resnet8, resnet18, torchvision:NAME, ...")],
    subset: Annotated[
        Path | None, typer.Option(help="A file of 'lipt subset get'; without it, all examples.")
    ] = None,
    choice: Choice,
    test: Annotated[
        str | None, typer.Option(help="Data to measure accuracy on, e.g. cifar10-test:DIR.")
    ] = None,
    image_size: ImageSize = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the subset (200).")] = None,
    steps: Annotated[
        int | None, typer.Option(help="Optimizer steps, in place of --epochs.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="NAME=VALUE", help="A setting of the recipe, e.g. learning_rate=0.05."
        ),
    ] = None,
    init: Annotated[
        str,
        typer.Option(help=f"{_SCRATCH}, or a run's weights: {WEIGHTS_KINDS}."),
    ] = _SCRATCH,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="A .safetensors file to write the final weights to."),
    ] = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option(help="A file to save progress in; training goes on from it where it exists."),
    ] = None,
    checkpoint_seconds: Annotated[
        float,
        typer.Option(min=0, help="Seconds between checkpoints; 0 writes one after every epoch."),
    ] = 60.0,
    minutes: Annotated[
        float | None,
        typer.Option(
            min=0, help="Pause by then with --checkpoint and status 75; the same command goes on."
        ),
    ] = None,
    log: Annotated[Path, typer.Option(help="A file that gets a line of JSON per epoch.")] = Path(
        "train.jsonl"
    ),
    loggers: Loggers,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    allow_module: AllowModule = None,
    run: Run = "latest",
    json: Json = False,
    coordinator: Coordinator,
) -> None:
    """Train a model on a subset: SGD, cosine from 0.1, batch 256, crop and flip."""
    _require(init, minutes, checkpoint)
    loggers.require()
    from lipt.common.process.machine import wait_passively

    wait_passively()
    from lipt.common.config.values import validate
    from lipt.common.weights.files import pack
    from lipt.trainer.cli.commands.reselecting import Reselecting
    from lipt.trainer.cli.display.output import left_out_by, open_talking
    from lipt.trainer.cli.display.training_progress import TrainingProgress, resumed_text
    from lipt.trainer.cli.overrides import collect_overrides, refusing_as_usage
    from lipt.trainer.main_training import Recipe, Schedule, fit
    from lipt.trainer.main_training.callbacks import LoggerWarning
    from lipt.trainer.main_training.records import JsonLines
    from lipt.trainer.reselection.reselection import ReselectionWarning
    from lipt.trainer.subsets.subset import Subset
    from lipt.trainer.writing.files import write_atomically

    with refusing_as_usage():
        given = {"epochs": epochs, "steps": steps}
        recipe = validate(Recipe, collect_overrides(given, settings or [], None))
        request = choice.request(subset_given=subset is not None)
        redrawing = choice.redrawing()
    require_replaceable(out, checkpoint)
    require_place(log)
    require_apart(
        {
            "--subset": subset,
            "--checkpoint": checkpoint,
            "--out": out,
            "--log": log,
        }
    )
    chosen = None if subset is None else Subset.load(subset)
    modules = modules_of(allow_module, data, test, model)
    with _pausing(), ExitStack() as stack:
        progress = TrainingProgress()
        initial, reselecting, quarantined = None, None, () if chosen is None else chosen.quarantined
        if init != _SCRATCH or choice.strategy is not None:
            client = stack.enter_context(coordinator.connect())
            if choice.strategy is not None:
                reselecting = Reselecting(client, run, choice.strategy, request, progress.say)
                reselecting.require_model(model)
                run = reselecting.run
                quarantined = left_out_by(client)
            if init != _SCRATCH:
                initial = _weights(client, run, init)
        opened = partial(open_talking, image_size=image_size, modules=modules)
        train_data, test_data = (
            opened(data, quarantined=quarantined),
            None if test is None else opened(test),
        )
        progress.score_name = train_data.target.kind.score_name
        lines = stack.enter_context(closing(JsonLines(log)))
        stack.enter_context(progress)
        stack.enter_context(progress.saying(ReselectionWarning, LoggerWarning))
        trained = fit(
            model,
            train_data,
            subset=chosen,
            test=test_data,
            recipe=recipe,
            schedule=Schedule(checkpoint_seconds=checkpoint_seconds),
            device=device,
            initial=initial,
            checkpoint=checkpoint,
            max_seconds=None if minutes is None else 60 * minutes,
            reselect=reselecting if redrawing is None else redrawing(train_data, recipe.seed),
            on_epoch=(lines, progress.on_epoch, *loggers.started(stack, chosen)),
            on_step=progress.on_step,
            on_resume=lambda found: progress.say(f"{checkpoint}: {resumed_text(found)}"),
            allowed_modules=modules,
        )
    if out is not None:
        write_atomically(out, pack(trained.weights))
    _report(trained, out, reselecting, redrawn=redrawing is not None, json=json)


def _require(init: str, minutes: float | None, checkpoint: Path | None) -> None:
    if init != _SCRATCH and WeightsKind.parse(init) is None:
        raise typer.BadParameter(
            f"{init!r} is none of {_SCRATCH}, {WEIGHTS_KINDS}.", param_hint="--init"
        )
    if minutes is not None and checkpoint is None:
        raise typer.BadParameter("Name a --checkpoint to go on from.", param_hint="--minutes")


@contextmanager
def _pausing() -> Iterator[None]:
    """End with a sentence and a status of its own where the time is up."""
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


def _report(
    trained: Trained,
    out: Path | None,
    reselecting: Reselecting | None,
    *,
    redrawn: bool,
    json: bool,
) -> None:
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
