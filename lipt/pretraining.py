"""Pre-training in this process: theta_p, its learners, and selection with them.

    pretrained = lipt.pretrain((images, labels))
    subset = pretrained.select("craig", fraction=0.1)

It opens no port and writes no file. The subset equals a coordinator's for the same data, model,
configuration, seed and kind of machine.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Any, Unpack

from torch import Tensor, nn

from lipt.common.blobs.blob import BlobName
from lipt.common.computation import computed
from lipt.common.config.run_config import RunConfig, merge, preset_of
from lipt.common.config.values import dump, validate
from lipt.common.errors import ConfigError
from lipt.common.imports import OWN, call_by_name_or_place, modules_of
from lipt.common.process.devices import resolve_device
from lipt.common.requests import Proxy
from lipt.common.tensor_files import Weights, copy_to_cpu, pack
from lipt.core.pipeline import PretrainingResult, begin, can_choose, choose, without_training
from lipt.core.pipeline import pretrain as pretrain_all
from lipt.core.pretraining.results import Ingredient
from lipt.core.pretraining.sharding import fit_defaults, split_validation
from lipt.core.progress import CallPart, CallParts
from lipt.core.selection.select import find_strategy
from lipt.core.signals.probabilities import PROBABILITIES, read_probabilities
from lipt.core.signals.views import INITIAL_NEEDS
from lipt.core.stages.diagnosis import diagnose
from lipt.core.stages.needed_learners import training_passes
from lipt.core.stages.resolve import NeededTraining, ResolvedRequest, Sources, resolve
from lipt.core.workspace import InMemory
from lipt.data.dataset import Dataset
from lipt.data.held_out import DataForm
from lipt.data.loading import open_data, open_set
from lipt.data.targets.kinds import TargetKind
from lipt.models.adapters import save_adapter
from lipt.models.causal_folder import by_own_names, in_data_numbers
from lipt.models.head import HEAD
from lipt.models.own_model import copy_of, in_float32_if_needed
from lipt.models.registry import ModelSource, OwnModel, comes_trained, default_model
from lipt.trainer.arguments import checked
from lipt.trainer.client.sources import (
    Features,
    SelectionArguments,
    features_source,
    request_of,
)
from lipt.trainer.client.targets import packed_targets
from lipt.trainer.diagnosis.diagnosis import Diagnosis, read_diagnosis
from lipt.trainer.progress import CallProgress, Show, progress_display
from lipt.trainer.subsets.subset import Subset
from lipt.trainer.views import CostsView, ProgressView

open_dataset = checked(computed(open_data))


def own_model(
    model: nn.Module | Callable[..., nn.Module], head: str | None = None, named: object = None
) -> OwnModel:
    """A live model: a new copy of a module, or what a function returns.

    named: the object that was given, where the model is made of it.
    """

    def make(*, num_classes: int) -> nn.Module:
        if isinstance(model, nn.Module):
            made = copy.deepcopy(model)
        else:
            made = call_by_name_or_place(model, num_classes=num_classes)
        if head is not None:
            setattr(made, HEAD, head)
        return made

    named = model if named is None else named
    named = type(named) if isinstance(named, nn.Module) else named
    return OwnModel(f"{OWN}{getattr(named, '__name__', 'model')}", make)


class Pretrained:
    """A data set and a model, trained as far as needed; arguments as in `pretrain`.

    A strategy that needs only labels, columns or patches trains no learner. `theta_p`, `learners`
    and `soup` train them. `config` is the run's whole configuration, and `lowered_defaults` lists
    defaults that were lowered to fit the data.
    """

    @checked
    @computed
    def __init__(
        self,
        data: Any,
        model: str | nn.Module | Callable[..., nn.Module] | None = None,
        *,
        target: str | None = None,
        head: str | None = None,
        seed: int = 0,
        run: Mapping[str, Any] | None = None,
        image_size: int | None = None,
        device: str = "auto",
        allow_modules: Sequence[str] = (),
        progress: bool | None = None,
    ) -> None:
        with progress_display(shown=progress) as show:
            self.data = open_set(
                *("data", data, target, image_size, allow_modules),
                progress=lambda done, total: show(ProgressView("reading the data", done, total)),
            )
        self._target = target
        self._chose_model = model is None
        model = default_model(self.data.inputs, self.data.target.kind) if model is None else model
        named = model
        if isinstance(model, nn.Module):
            inputs, num_outputs = self.data.inputs, self.data.target.num_outputs
            copied = in_data_numbers(copy_of(model), num_classes=num_outputs, inputs=inputs)
            model = in_float32_if_needed(copied, inputs)
        if isinstance(model, str) and head is not None:
            raise ConfigError(
                f"head={head!r} names a layer of your own module, and the model is {model!r}. "
                "Leave the head out, or give the module."
            )
        own = None if isinstance(model, str) else own_model(model, head, named)
        self.model = str(model) if own is None else own.name
        self.model_source: ModelSource = own or self.model
        settings: dict[str, Any] = {"model": self.model, "seed": int(seed)}
        self.begins_with: bytes | None = None
        if isinstance(model, nn.Module):
            self.begins_with = pack(copy_to_cpu(model.state_dict()))
            digest = hashlib.sha256(self.begins_with).hexdigest()
            settings["initialization"] = {"weights_sha256": digest}
        given = merge(self._preset(model), merge(settings, dict(run or {})))
        self.config, self.lowered_defaults = _fitted(self.data, given)
        self._progress = progress
        self.on_progress: Show = lambda _: None
        self._trained: dict[NeededTraining, PretrainingResult] = {}
        self.workspace = InMemory(
            self.data,
            resolve_device(device),
            allowed_modules=(*modules_of(self.model), *allow_modules),
            own_model=own,
            on_progress=self._report,
        )

    def _preset(self, model: object) -> Mapping[str, Any]:  # noqa: ARG002 - see below
        return {}

    @property
    @computed
    def theta_p(self) -> Weights:
        """Pre-trained weights."""
        return self._weights(self._all.outcome.pretrained_weights)

    @checked
    @computed
    def save_adapter(self, folder: str | Path) -> Path:
        """Write theta_p's adapter, as peft's `PeftModel.from_pretrained` loads it.

        ConfigError without adapters (`adapters.rank`), or for a model that is neither live nor in a
        folder.
        """
        return save_adapter(Path(folder), self.theta_p, self.config)

    @property
    @computed
    def theta_star(self) -> Weights:
        """Initial weights; no learner is trained for them."""
        trained = self._train(NeededTraining.INITIAL_WEIGHTS)
        return self._weights(trained.outcome.initial_weights)

    @property
    @computed
    def learners(self) -> tuple[Weights, ...]:
        """Pruned weights of every learner."""
        trained, workspace = self._all, self.workspace
        initial = trained.outcome.initial_weights
        assert initial is not None  # noqa: S101 - it was trained
        model = workspace.new_model(self.config)
        read = workspace.read_learners(self.config, initial, model)
        learners = trained.outcome.learners
        return tuple(self.by_own_names(model, read(learner.result)) for learner in learners)

    @property
    def soup(self) -> Mapping[int, Ingredient]:
        """Each learner's part in the soup by index, in the order of the greedy soup."""
        soup = self._all.soup
        assert soup is not None  # noqa: S101 - it was trained
        return dict(soup.ingredients)

    @property
    def seconds(self) -> Mapping[str, float]:
        """Seconds of each stage."""
        return {
            name: taken
            for trained in self._trained.values()
            for name, taken in trained.seconds.items()
        }

    @property
    def costs(self) -> CostsView:
        """Seconds of the stages so far; no bytes are sent to workers."""
        stages = ("initialization", "sharding", "training", "merging")
        taken = {f"{stage}_seconds": self.seconds.get(f"{stage}_seconds", 0.0) for stage in stages}
        return CostsView(**taken, bytes_to_workers=0, bytes_from_workers=0)

    @checked
    @computed
    def select(
        self,
        strategy: str = "auto",
        fraction: float | None = None,
        **arguments: Unpack[SelectionArguments],
    ) -> Subset:
        """Select examples; arguments as in `lipt.select`, errors as in `Client.subset`."""
        passes, num_examples = training_passes(self.config, len(self.data)), len(self.data)
        with self._progress_shown(CallParts.of_choice(num_examples, passes)):
            request = self.resolve(strategy, fraction, **arguments)
            trained = self._train(self._training_for(request))
            self.workspace.parts.leave_out(CallPart.LEARNERS)
            return self._chosen(trained, request)

    def resolve(
        self,
        strategy: str,
        fraction: float | None = None,
        **arguments: Unpack[SelectionArguments],
    ) -> ResolvedRequest:
        """The request of a call of `select`, every choice made; nothing is trained."""
        asked = request_of(
            strategy,
            fraction,
            arguments,
            self._keep,
            probabilities=self._keep_probabilities(arguments.get("pred_probs")),
            targets=self._keep_targets(arguments.get("target_data")),
        )
        resolved = resolve(
            asked,
            self.config,
            num_examples=len(self.data),
            inputs=self.data.inputs,
            kind=self.data.target.kind,
        )
        if resolved.features is not None:
            # Other files are refused before anything is trained.
            self.workspace.user_features(resolved.features)
        return resolved

    @checked
    @computed
    def diagnose(
        self, proxy: str | None = None, *, features: Features | None = None, pred_probs: Any = None
    ) -> Diagnosis:
        """Find wrong labels, duplicates and outliers; arguments as in `lipt.diagnose`."""
        of_texts = self.data.target.kind is TargetKind.TOKENS
        parts = {CallPart.LEARNERS: 1.0}
        with self._progress_shown(
            CallParts(parts) if of_texts else CallParts.of_diagnosis(len(self.data))
        ):
            sources = Sources(
                self.config,
                None,
                None,
                features=None if features is None else self._keep(features_source(features)),
                probabilities=self._keep_probabilities(pred_probs),
            )
            diagnosed = diagnose(self.workspace, sources, Proxy.parse(proxy or "auto"))
        return read_diagnosis(
            diagnosed.pack(), num_examples=self.data.num_ids, fingerprint=self.data.fingerprint
        )

    @computed
    def train(self) -> None:
        """Train and merge the learners, unless they are trained."""
        with self._progress_shown(CallParts({CallPart.LEARNERS: 1.0})):
            self._train(NeededTraining.LEARNERS)

    @property
    def _all(self) -> PretrainingResult:
        self.train()
        return self._trained[NeededTraining.LEARNERS]

    def _training_for(self, request: ResolvedRequest) -> NeededTraining:
        """No learners where what is free to look at shows that none can change the choice."""
        training = request.training
        if training is not NeededTraining.LEARNERS or training in self._trained:
            return training
        if not self._chose_model:
            # Refused whether or not it is needed.
            self.workspace.new_model(self.config)
        given = self.begins_with is not None
        least = NeededTraining.INITIAL_WEIGHTS if given else NeededTraining.NOTHING
        return least if can_choose(self._train(least), request) else training

    def _train(self, training: NeededTraining) -> PretrainingResult:
        if NeededTraining.LEARNERS in self._trained:
            return self._trained[NeededTraining.LEARNERS]
        if training not in self._trained:
            run = (self.workspace, self.config)
            if training is NeededTraining.NOTHING:
                self._trained[training] = without_training(*run)
            else:
                stage = begin if training is NeededTraining.INITIAL_WEIGHTS else pretrain_all
                self._trained[training] = stage(*run, self.begins_with)
        return self._trained[training]

    def _chosen(self, trained: PretrainingResult, request: ResolvedRequest) -> Subset:
        started = monotonic()
        chosen = choose(trained, request)
        examples = chosen.examples
        seconds = monotonic() - started - chosen.spent_warm_up_seconds
        costs = {**trained.seconds, "selection_seconds": seconds}
        if chosen.warm_up_seconds is not None:
            costs["warm_up_seconds"] = chosen.warm_up_seconds
        manifest = {
            "run_config": self.config.model_dump(mode="json"),
            "data": {
                **self.data.facts,
                **({} if self._target is None else {"target": self._target}),
            },
            **chosen.manifest,
            "costs": costs,
        }
        return Subset(
            examples.indices_K,
            examples.weights_K,
            self.data.fingerprint,
            examples.digest,
            request.strategy,
            # JSON values, as a client receives them.
            json.loads(json.dumps(manifest)),
            soft_labels=examples.soft_labels_KC,
        )

    def _keep(self, source: Path | bytes | Weights) -> BlobName:
        if isinstance(source, dict):
            return self.workspace.put_tensors(source)
        return self.workspace.put(source.read_bytes() if isinstance(source, Path) else source)

    def _keep_probabilities(self, pred_probs: Any) -> BlobName | None:
        if pred_probs is None:
            return None
        return self._keep({PROBABILITIES: read_probabilities(pred_probs, self.data)})

    def _keep_targets(self, target_data: Any) -> tuple[BlobName, ...]:
        if target_data is None:
            return ()
        form, modules = DataForm.of(self.data), self.workspace.allowed_modules
        files = packed_targets(form, target_data, self._target, modules)
        return tuple(map(self._keep, files))

    def _weights(self, name: BlobName | None) -> Weights:
        assert name is not None  # noqa: S101 - it was trained
        model = self.workspace.new_model(self.config)
        return self.by_own_names(model, self.workspace.read_weights(name, model))

    def by_own_names(self, model: nn.Module, weights: Mapping[str, Tensor]) -> Weights:
        """Weights of the run's model, by the names of the live one that was given."""
        return by_own_names(model, weights) if self.workspace.own_model else dict(weights)

    def _report(self, activity: str, done: int, total: int) -> None:
        parts = self.workspace.parts
        self.on_progress(CallProgress(activity, done, total, 0, parts.share, parts.jumps))

    @contextmanager
    def _progress_shown(self, parts: CallParts) -> Iterator[None]:
        with progress_display(shown=self._progress) as show:
            before, self.on_progress = self.on_progress, show
            self.workspace.parts = parts
            try:
                yield
                parts.leave_out()
                self._report("done", 0, 0)
            finally:
                self.on_progress = before


class PretrainedStart(Pretrained):
    """A run whose theta* is looked at, by default trained a while, or taken as it comes."""

    def _preset(self, model: object) -> Mapping[str, Any]:
        of_texts = self.data.target.kind is TargetKind.TOKENS
        trained = isinstance(model, nn.Module) or (isinstance(model, str) and comes_trained(model))
        return preset_of("target", of_texts=of_texts, comes_trained=trained)


def kind_of_run(strategy: str, *, is_targeted: bool) -> type[Pretrained]:
    """The run that a strategy chooses on, with or without a target."""
    looks_at_theta_star = find_strategy(strategy).needs_of({}) & INITIAL_NEEDS
    return PretrainedStart if looks_at_theta_star or is_targeted else Pretrained


@checked
def pretrain(
    data: Any,
    model: str | nn.Module | Callable[..., nn.Module] | None = None,
    *,
    target: str | None = None,
    head: str | None = None,
    seed: int = 0,
    run: Mapping[str, Any] | None = None,
    image_size: int | None = None,
    device: str = "auto",
    allow_modules: Sequence[str] = (),
    progress: bool | None = None,
) -> Pretrained:
    """Train learners on tiny shards of the data and merge them, in this process.

    Args:
        data: as in `open_dataset`.
        model: a built-in name, `package.module:factory`, a function of `num_classes`, or an
            `nn.Module`. A module's weights are the initial weights, and it is not modified. None
            for `default_model`.
        target: as in `open_dataset`.
        head: name of the linear layer that gives the logits of your own module, such as
            "classifier"; None for the last one.
        seed: seed of everything random.
        run: settings of the run, nested as in `RunConfig`. Defaults too large for the data are
            lowered.
        image_size: pixels a side to scale images to; None keeps small images.
        device: "cpu", "cuda", "cuda:N", or "auto".
        allow_modules: modules from which `run` may name a model.
        progress: False shows nothing, True also outside a terminal or notebook.

    Raises:
        DataError: the data is empty or has no labels.
        ConfigError: a setting does not exist, or does not fit the data.
        RunFailedError: a loss is no longer finite.
    """
    pretrained = Pretrained(
        data,
        model,
        target=target,
        head=head,
        seed=seed,
        run=run,
        image_size=image_size,
        device=device,
        allow_modules=allow_modules,
        progress=progress,
    )
    pretrained.train()
    return pretrained


def _fitted(data: Dataset, settings: Mapping[str, Any]) -> tuple[RunConfig, str]:
    config = validate(RunConfig, merge(dump(RunConfig()), settings))
    num_train = len(split_validation(data.labels_N, config.validation, seed=config.seed).train_ids)
    asked = settings.get("learners", {}).keys()
    sources = data.rows.sources
    names = () if sources is None else sources.names
    if config.learners.worker_sources:
        raise ConfigError(
            "learners.worker_sources are of workers, and this process has none. Start the run at a "
            "coordinator."
        )
    learners, changes = fit_defaults(config.learners, num_train, sources=names, fixed=asked)
    return config.model_copy(update={"learners": learners}), changes
