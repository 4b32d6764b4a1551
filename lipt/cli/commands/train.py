"""`lipt train` on a subset or on resampled examples, and `lipt distill` to synthetic images."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from typer import BadParameter, Exit, Option

from lipt.cli import options as shared
from lipt.cli.output import (
    TrainingProgress,
    open_with_progress,
    print_result,
    quarantined_by,
    run_with_progress,
    training_progress,
    warnings_as_lines,
)
from lipt.common.process import wait_passively
from lipt.common.terminal import print_error
from lipt.data.targets.kinds import TargetKind

if TYPE_CHECKING:
    from torch import nn

    from lipt.data.dataset import Dataset
    from lipt.trainer.client.client import Client
    from lipt.trainer.main_training import Trained
    from lipt.trainer.main_training.records import OnEpoch
    from lipt.trainer.main_training.training import MakeSubsetSource
    from lipt.trainer.resampling.reselection import Reselection, SelectionOptions
    from lipt.trainer.resampling.samplers import RepeatedRandom
    from lipt.trainer.subsets.subset import Subset


@dataclass(frozen=True)
class ExamplesFlags:
    strategy: str | None = Option(
        None, "--strategy", "-s", help="Have the coordinator choose, in place of --subset."
    )
    resample: bool = Option(
        False,
        "--resample",
        help="Draw other random examples for every epoch, without a coordinator.",
    )
    fraction: shared.Fraction = None
    budget: shared.Budget = None
    option: shared.Options = None
    preset: shared.Preset = None
    proxy: shared.Proxy = None
    every: int | None = Option(None, min=1, help="Epochs until the next choice (20).")

    def require(self, subset: Path | None) -> None:
        ways = {"--subset": subset, "--strategy": self.strategy, "--resample": self.resample}
        given = [name for name, value in ways.items() if value]
        if len(given) > 1:
            raise BadParameter(f"{' and '.join(given)} were both given. Drop one.")
        if self.strategy or self.resample:
            shared.require_size(self.fraction, self.budget)
        for names, way, is_given in (
            ("fraction budget", "--strategy or --resample", self.strategy or self.resample),
            ("option preset proxy every", "--strategy", self.strategy),
        ):
            for name in names.split():
                if getattr(self, name) and not is_given:
                    raise BadParameter(f"--{name} was given without {way}. Give both, or none.")

    def request(self, run: str, *, soft_labels: bool) -> SelectionOptions:
        asked: SelectionOptions = {
            "run": run,
            "fraction": self.fraction,
            "budget": self.budget,
            "options": shared.parse_options(self.option),
            "preset": self.preset,
            "proxy": self.proxy,
        }
        if soft_labels:
            asked["soft_labels"] = True
        return asked if self.every is None else {**asked, "every": self.every}

    def source(self, train: Dataset, seed: int) -> RepeatedRandom | None:
        from lipt.common.requests import Budget
        from lipt.trainer.resampling.samplers import RepeatedRandom

        if not self.resample:
            return None
        size = len(train)
        budget = Budget(self.fraction, self.budget).of(size)
        return RepeatedRandom(train, budget, seed)


def _reselecting(
    client: Client,
    strategy: str,
    request: SelectionOptions,
    progress: TrainingProgress,
    made: list[Reselection],
) -> MakeSubsetSource:
    from lipt.trainer.resampling.reselection import Reselection

    def make(model: nn.Module, first: Subset | None) -> Reselection:
        asked: SelectionOptions = {**request, "first": first}
        made.append(Reselection(client, model, strategy, **asked))
        if first is None and (why := made[-1].subset.stopped_early):
            progress.print_line(f"{strategy} stopped early: {why}")
        return made[-1]

    return make


@dataclass(frozen=True)
class Loggers:
    tensorboard: str | None = Option(None, metavar="DIR", help="Log to TensorBoard, too.")
    wandb: str | None = Option(None, metavar="PROJECT", help="Log to Weights & Biases, too.")
    mlflow: str | None = Option(None, metavar="EXPERIMENT", help="Log to MLflow, too.")

    def started(self, stack: ExitStack, subset: Subset | None) -> list[OnEpoch]:
        """Return the requested loggers; each ends with the last step, or with `stack`."""
        from lipt.trainer.tracking import Logger

        loggers: list[OnEpoch] = []
        for name, value in vars(self).items():
            if value is not None:
                logger = Logger(name, value, subset)
                stack.callback(logger.close)
                loggers.append(logger)
        return loggers


@dataclass(frozen=True)
class Files:
    out: Path | None = Option(None, "--out", "-o", help="A .safetensors file for the weights.")
    checkpoint: Path | None = Option(
        None, help="A file for progress; training continues from an existing one."
    )
    checkpoint_seconds: float = Option(
        60.0, min=0, help="Seconds between checkpoints; 0 writes one after every epoch."
    )
    minutes: float | None = Option(
        None,
        min=0,
        help="Pause by then with --checkpoint and status 75; the same command continues.",
    )
    log: Path = Option("train.jsonl", help="A file that gets a line of JSON per epoch.")

    def require(self, subset: Path | None) -> None:
        if self.minutes is not None and self.checkpoint is None:
            raise BadParameter("--minutes needs a --checkpoint to continue from.")
        shared.require_replaceable(self.out, self.checkpoint)
        shared.require_place(self.log)
        written = {"--checkpoint": self.checkpoint, "--out": self.out, "--log": self.log}
        shared.require_apart({"--subset": subset, **written})


_SCRATCH = "scratch"


@shared.grouped
def train(
    *,
    data: str = Option(..., help="The data that the subset was chosen from."),
    model: shared.Model,
    subset: Path | None = Option(None, help="A file of 'lipt subset get'; else all examples."),
    soft_labels: float = Option(
        0.0, min=0, max=1, help="Share of the targets that is the subset's soft labels, e.g. 0.5."
    ),
    choice: ExamplesFlags,
    test: str | None = Option(None, help="Data to measure accuracy on, e.g. cifar10-test:DIR."),
    image_size: shared.ImageSize = None,
    training: shared.TrainingFlags,
    init: Literal["scratch", "initial", "pretrained"] = Option(
        _SCRATCH, help="From scratch, or from a run's weights: theta* or theta_p."
    ),
    files: Files,
    loggers: Loggers,
    device: shared.Device = "auto",
    allow_module: shared.AllowModule = None,
    run: shared.Run = "latest",
    json: shared.Json = False,
    coordinator: shared.Coordinator,
) -> None:
    """Train a model on a subset.

    The recipe is SGD, cosine from 0.1, batch 256, images cropped and flipped.
    """
    from lipt.trainer.tracking import LoggerWarning, require_trackers

    require_trackers(name for name, target in vars(loggers).items() if target is not None)
    wait_passively()
    from safetensors.torch import load

    from lipt.trainer.main_training import Schedule, TrainingPaused, fit
    from lipt.trainer.main_training.records import write_line
    from lipt.trainer.resampling.reselection import ReselectionWarning
    from lipt.trainer.subsets.subset import Subset

    recipe = training.recipe(soft_labels=soft_labels)
    choice.require(subset)
    request = choice.request(run, soft_labels=soft_labels > 0)
    files.require(subset)
    chosen = None if subset is None else Subset.load(subset)
    modules = shared.modules_of(allow_module, data, test, model)
    with ExitStack() as stack:
        progress = stack.enter_context(training_progress())
        reselecting, initial, made = None, None, list["Reselection"]()
        quarantined = () if chosen is None else chosen.quarantined
        if choice.strategy is not None or init != _SCRATCH:
            client = stack.enter_context(coordinator.connect())
            if choice.strategy is not None:
                run = request["run"] = _run_of(client, run, model)
                reselecting = _reselecting(client, choice.strategy, request, progress, made)
                quarantined = quarantined_by(client)
            initial = None if init == _SCRATCH else load(client.weights(run, init))
        opened = partial(open_with_progress, image_size=image_size, modules=modules)
        train_data = opened(data, quarantined=quarantined)
        progress.score_name = train_data.target.kind.score_name
        lines = partial(write_line, stack.enter_context(files.log.open("a", encoding="utf-8")))
        stack.enter_context(warnings_as_lines(ReselectionWarning, LoggerWarning))
        try:
            trained = fit(
                model,
                train_data,
                subset=chosen,
                test=None if test is None else opened(test),
                recipe=recipe,
                schedule=Schedule(checkpoint_seconds=files.checkpoint_seconds),
                device=device,
                initial=initial,
                checkpoint=files.checkpoint,
                max_seconds=None if files.minutes is None else 60 * files.minutes,
                reselect=choice.source(train_data, recipe.seed) or reselecting,
                on_epoch=(lines, progress.on_epoch, *loggers.started(stack, chosen)),
                on_step=progress.on_step,
                on_resume=progress.on_resume,
                allowed_modules=modules,
            )
        except TrainingPaused as paused:
            print_error("lipt", str(paused))
            raise Exit(75) from None  # EX_TEMPFAIL: the same command is worth another start
    _finish(trained, files.out, made, resampled=choice.resample, json=json)


def _run_of(client: Client, run: str, model: str) -> str:
    """The run's id; refuses a model whose weights the run cannot select on."""
    from lipt.common.errors import ConfigError

    view = client.ready_run(run)
    if view.config.model != model:
        raise ConfigError(
            f"run {view.label} selects on weights of {view.config.model}, but --model is "
            f"{model}. Give --model {view.config.model}, or another --run."
        )
    return view.run_id


def _finish(
    trained: Trained, out: Path | None, chosen: list[Reselection], *, resampled: bool, json: bool
) -> None:
    from lipt.common.tensor_files import pack
    from lipt.trainer.files import write_atomically

    if out is not None:
        write_atomically(out, pack(trained.weights))
    history = [selected for source in chosen for selected in source.history]
    waited = sum(source.waited_seconds for source in chosen)
    on_subset = trained.subset_accuracies[-1][1]
    measures = {
        "num_steps": trained.num_steps,
        "seconds": trained.seconds,
        "score": trained.kind.score_name,
        "test_accuracy": trained.test_accuracy,
        "subset_accuracy": on_subset,
        "recipe": trained.recipe,
        "weights": out,
        "waited_seconds": waited,
        "reselections": history,
    }
    trained_on = "the last epoch's examples" if resampled else "the subset"
    accuracies = [f"{on_subset:.1%} on {trained_on}"]
    if trained.test_accuracy is not None:
        accuracies.insert(0, f"{trained.test_accuracy:.1%} on the test set")
    score = "" if trained.kind is TargetKind.CLASS else f"{trained.kind.score_name} "
    steps = f"{trained.num_steps} steps in {trained.seconds:.0f} s"
    lines = [f"{steps}: {score}{', '.join(accuracies)}; {trained.recipe.augmentation_text}"]
    if chosen:
        times = "once" if len(history) == 1 else f"{len(history)} times"
        waiting = f"training waited {waited:.1f} s for subsets"
        lines.append(f"the subset was chosen again {times}; {waiting}")
    print_result(measures, lines, as_json=json)


def distill(
    *,
    data: str = Option(..., help="The images to distil."),
    per_class: int = Option(..., help="How many synthetic images of each class."),
    stages: int = Option(1, help="Stages that the images are made in, equally many in each."),
    seed: int = Option(0, help="Seed of all draws."),
    settings: list[str] | None = Option(
        None, "--set", metavar="NAME=VALUE", help="A setting of the distillation: matches=20."
    ),
    model: str = Option("convnet", help="Makes the images; a model without batch norm."),
    out: Path = Option(..., "--out", "-o", help="A folder; an existing one is continued."),
    subset: Path | None = Option(None, help="A file of 'lipt subset get' to distil; else all."),
    later: Path | None = Option(None, help="Another one, of harder examples, for later stages."),
    image_size: shared.ImageSize = None,
    device: shared.Device = "auto",
    allow_module: shared.AllowModule = None,
    json: shared.Json = False,
) -> None:
    """Experimental: distil images into a few synthetic ones."""
    if later is not None and stages == 1:
        raise BadParameter("--later is for stages after the first: give --stages, too.")
    shared.require_place(out, folder=True)
    wait_passively()
    from lipt.trainer.distillation import Distillation
    from lipt.trainer.distillation import distill as distil
    from lipt.trainer.subsets.subset import Subset

    given = {"per_class": per_class, "stages": stages, "seed": seed}
    settled = shared.validated(Distillation, shared.collect_overrides(given, settings))
    first, harder = (None if file is None else Subset.load(file) for file in (subset, later))
    modules = shared.modules_of(allow_module, data, model)
    real = open_with_progress(data, image_size=image_size, modules=modules)
    where: dict[str, Any] = {"device": device, "allowed_modules": modules}
    make = partial(distil, real, model, settled, out, subset=first, later=harder, **where)
    synthetic = run_with_progress(lambda report: make(report=report))
    num_images = len(synthetic.labels_N)
    images = f"{num_images} images of {len(synthetic.class_names)} classes"
    lines = [
        f"{images} in {synthetic.num_stages} stages: {out}",
        f"train on them with: lipt train --data distilled:{out}",
    ]
    shown = {
        "folder": out,
        "images": num_images,
        "digest": synthetic.digest,
        "stages": synthetic.manifest["stages"],
    }
    print_result(shown, lines, as_json=json)
