"""Planning: from what a user asks for to an estimate; the data is opened, and no run begins."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lipt.common.config.run_config import RunConfig
from lipt.common.config.settings import load_settings
from lipt.common.config.validation import merge, validate
from lipt.common.errors import ConfigError
from lipt.common.process.machine import this_machine
from lipt.common.subsets import resolve_budget
from lipt.common.targets.kinds import kinds_in_words
from lipt.coordinator.compute.context import Context
from lipt.coordinator.settings import CoordinatorSettings
from lipt.core.fitting import fit_defaults
from lipt.core.proxies.proxy import SOUP, Proxy
from lipt.core.selection.registry import find_strategy
from lipt.core.selection.strategy import Need
from lipt.core.sharding import num_validation_examples, require_shards_fit
from lipt.defaults import default_model
from lipt.estimates.choosing import Choice, count_choice
from lipt.estimates.clock import Stopwatch
from lipt.estimates.counting import Machine, Subject, count_run
from lipt.estimates.estimate import Estimate, estimate
from lipt.estimates.measuring import Measurer
from lipt.estimates.resident import resident_bytes
from lipt.estimates.subject import data_figures, subject_of
from lipt.estimates.trials import can_be_tried, try_strategy
from lipt.estimates.work import Range, Stage, Task, exactly

# Told what is being done.
Tell = Callable[[str], None]


@dataclass(frozen=True)
class Question:
    """What is asked about.

    Attributes:
        source: the data's name.
        model: the model's name; None for one that suits the data.
        overrides: settings of the run, nested as in `RunConfig`.
        strategy: what chooses.
        options: of the strategy, as text.
        fraction, budget: one of them says how many are chosen.
        balanced: None for the strategy's default.
        proxy: None for the strategy's default.
        num_workers: that train at a time, on this machine.
        image_size: that images are scaled to; None keeps small ones.
        device: what is computed on.
        allow_modules: that data and model may be imported from.
    """

    source: str
    model: str | None = None
    overrides: Mapping[str, Any] | None = None
    strategy: str = "auto"
    options: Mapping[str, str] | None = None
    fraction: float | None = 0.1
    budget: int | None = None
    balanced: bool | None = None
    proxy: str | None = None
    num_workers: int = 1
    image_size: int | None = None
    device: str = "auto"
    allow_modules: tuple[str, ...] = ()


def plan(question: Question, *, measure: bool = True, tell: Tell = lambda _: None) -> Estimate:
    """What a run and a subset would take here.

    Args:
        question: what is asked about.
        measure: whether pieces of the work are timed; without, no seconds are told.
        tell: told what is being done.

    Raises:
        LiptError: the data, the model, a setting or the strategy cannot be used, with the words
            of the service.
    """
    # Before anything is opened: that is what a process takes that has done nothing.
    process_bytes = resident_bytes()
    with tempfile.TemporaryDirectory(prefix="lipt-plan-") as folder:
        context = Context(_settings(question, Path(folder)), send=lambda _: None)
        tell(f"opening {question.source}")
        watch = Stopwatch()
        dataset = context.dataset
        opening = watch.seconds(context.dataset.num_threads)
        config, fitted = _config(question, context)
        model = context.new_model(config)
        subject = subject_of(
            dataset, context.new_model(config).cpu(), config, batch_size=context.batch_size
        )
        choice = _choice(question, subject, config.learners.num_learners)
        cores = this_machine().num_cores
        machine = Machine(question.num_workers, cores, process_bytes)
        stages = (
            *count_run(config, subject, machine),
            *count_choice(choice, config, subject, machine),
        )
        rates: dict[Task, Range] = {}
        if measure:
            rates = _rates(stages, Measurer(context, config, model), tell)
            rates[Task.OPENING] = opening
            if can_be_tried(choice):
                tell(f"trying {choice.strategy.name} on made-up signals")
                rates[Task.SELECTING] = try_strategy(
                    choice,
                    subject,
                    num_validation=len(context.split(config).validation_ids),
                    threads=config.evaluation_threads,
                    device=context.device,
                )
            if context.device.type != "cpu":
                # What a CPU computed meanwhile says nothing of it.
                rates = {task: exactly(seconds.high) for task, seconds in rates.items()}
    return estimate(
        stages,
        rates,
        subject=(
            f"{question.source}: {subject.data.num_examples:,} examples of "
            f"{subject.data.inputs}, {config.model}, {choice.budget:,} by {choice.strategy.name}"
        ),
        fitted=fitted,
        num_learners=config.learners.num_learners * config.learners.redundancy,
        machine=machine,
    )


def _settings(question: Question, folder: Path) -> CoordinatorSettings:
    return load_settings(
        CoordinatorSettings,
        config=None,
        flags={
            "dataset": {"source": question.source, "image_size": question.image_size},
            "state_dir": folder,
            "device": question.device,
            "allow_modules": question.allow_modules,
        },
    )


def _config(question: Question, context: Context) -> tuple[RunConfig, str]:
    """The run's settings as a coordinator would fit them to the data, and what it would say."""
    dataset, overrides = context.dataset, dict(question.overrides or {})
    named = {"model": question.model or default_model(dataset.inputs)}
    config = validate(RunConfig, merge(named, overrides))
    figures = data_figures(dataset)
    held_out = num_validation_examples(figures.class_counts, config.validation)
    num_train = figures.num_examples - held_out
    asked = set(overrides.get("learners", {}))
    found = fit_defaults(config.learners, num_train, asked=asked)
    require_shards_fit(num_train, found.learners)
    return config.model_copy(update={"learners": found.learners}), found.said


def _choice(question: Question, subject: Subject, num_learners: int) -> Choice:
    strategy = find_strategy(question.strategy)
    options = strategy.parse_options(dict(question.options or {}))
    kind, kinds = subject.data.target.kind, strategy.kinds_for(options)
    if kind not in kinds:
        raise ConfigError(
            f"strategy {strategy.name!r} works with {kinds_in_words(kinds)} data, and "
            f"{question.source} is of {kind.words} data. Choose another strategy."
        )
    proxy = Proxy.parse(question.proxy or strategy.proxy)
    looked_at = strategy.needs_for(options) & {Need.SIGNALS, Need.VALIDATION, Need.FEATURES}
    return Choice(
        strategy,
        options,
        resolve_budget(
            fraction=None if question.budget is not None else question.fraction,
            budget=question.budget,
            num_examples=subject.data.num_examples,
        ),
        strategy.resolve_balance(question.balanced),
        proxy if looked_at else SOUP,
        num_learners,
    )


def _rates(stages: tuple[Stage, ...], measurer: Measurer, tell: Tell) -> dict[Task, Range]:
    """What was measured of the tasks that there are."""
    tasks = sorted({task for stage in stages for task in stage.tasks}, key=list(Task).index)
    rates: dict[Task, Range] = {}
    for task in tasks:
        if task in {Task.OPENING, Task.SELECTING, Task.FINISHING}:
            continue
        tell(f"measuring: {task}")
        if task is Task.TRAINING:
            trained, finished = measurer.learner()
            rates[task], rates[Task.FINISHING] = trained, finished
        else:
            rates[task] = measurer.seconds(task)
    return rates
