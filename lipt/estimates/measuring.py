"""Measuring: what one of each task takes here, on the caller's own data and model.

The pipeline's own functions do a little of what they will do: some minibatches of a learner, some
batches of an evaluation, some images of a pass. The first of each is not counted, in which
libraries choose their kernels.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
from torch import Tensor, nn

from lipt.common.config.learner_task import LearnerTask
from lipt.common.config.run_config import RunConfig
from lipt.common.data.input_format import input_format
from lipt.common.data.shard import Shard, pack_shard
from lipt.common.determinism.kernels import pinned_kernels
from lipt.common.determinism.seeding import derive_generator, derive_seed
from lipt.common.images.formats import ImageFormat
from lipt.common.inputs.formats import InputFormat
from lipt.common.inputs.specs import ImageSpec
from lipt.common.weights.encodings import encode_weights
from lipt.common.weights.specs import Weights, copy_to_cpu
from lipt.coordinator.compute.context import Context
from lipt.core.diagnosis.pictures import look_at
from lipt.core.evaluation import Evaluator
from lipt.core.learner.learner import train_learner
from lipt.core.proxies.patches import draw_filters, patch_features
from lipt.core.signals.compute import compute_signals
from lipt.core.signals.gradient_norms import default_chunk_size, full_gradient_norms
from lipt.core.soup import Mixture
from lipt.estimates.clock import SECONDS, Stopwatch, seconds_of, usual_seconds
from lipt.estimates.work import Range, Task

_FEW_EXAMPLES, _MOST_EXAMPLES = 16, 512
_BILLION = 1e9
_STORED_BYTES = 2**18
_WIDTH = 1024


class Measurer:
    """Measures one task at a time, in seconds for one of it."""

    def __init__(self, context: Context, config: RunConfig, model: nn.Module) -> None:
        """Draw the examples that all tasks are measured on.

        Args:
            context: has the data, and the coordinator's device.
            config: of the run.
            model: its model, with random weights.
        """
        self._context, self._config, self._model = context, config, model
        dataset = context.dataset
        self._train_ids = context.split(config).train_ids
        self._opened: InputFormat | None = None
        generator = derive_generator(config.seed, "estimates")
        self._some = torch.randperm(len(dataset), generator=generator)[:_MOST_EXAMPLES]
        self._seconds_of: dict[Task, Callable[[], Range]] = {
            Task.BUILDING: self._building,
            Task.STORING: self._storing,
            Task.FIGURES: self._figures,
            Task.PACKING: self._packing,
            Task.READING: self._reading,
            Task.EVALUATING: self._evaluating,
            Task.MIXING: self._mixing,
            Task.PASSING: self._passing,
            Task.DIFFERENTIATING: self._differentiating,
            Task.PATCHING: self._patching,
            Task.LOOKING: self._looking,
            Task.COMPARING: self._comparing,
            Task.SUMMING: self._summing,
            Task.DECOMPOSING: self._decomposing,
        }

    def seconds(self, task: Task) -> Range:
        """What one of it takes."""
        return self._seconds_of[task]()

    def learner(self) -> tuple[Range, Range]:
        """What an image that a learner trains on takes, and what finishing a learner does."""
        config, size = self._config, self._affordable_batch()
        learners = config.learners.model_copy(
            update={"num_minibatches": 1, "num_steps": 3, "batch_size": size, "num_snapshots": 0}
        )
        drawn = torch.randint(
            len(self._train_ids), (size,), generator=derive_generator(config.seed, "shard")
        )
        ids = self._train_ids[drawn]
        dataset, inputs = self._context.dataset, self._inputs
        task = LearnerTask(
            model=config.model,
            num_classes=dataset.target.num_outputs,
            learners=learners,
            augmentation=config.augmentation,
            pruning_method=config.pruning.method,
            density=config.pruning.density_max,
            seed=derive_seed(config.seed, "estimates"),
            image=inputs if isinstance(inputs, ImageFormat) else None,
            columns=None if isinstance(inputs, ImageFormat) else inputs,
            other_target=None if dataset.rows.targets is None else dataset.rows.targets.target,
        )
        watches: list[Stopwatch] = []
        trained: list[Range] = []

        def on_step(_step: int, _loss: float) -> None:
            trained.extend(watch.seconds(learners.cpu_threads) for watch in watches[:1])
            watches.append(Stopwatch())

        result = train_learner(
            task,
            copy_to_cpu(self._model.state_dict()),
            Shard(dataset.examples(ids), dataset.targets_N[ids]),
            device=self._context.device,
            allowed_modules=self._context.settings.allow_modules,
            on_step=on_step,
            should_stop=lambda: False,
        )
        encode_weights(result.weights, learners.encoding)
        # From the end of the first step to that of the last, and what came then.
        return trained[-1].over(2 * size), watches[-1].seconds(learners.cpu_threads)

    @property
    def _inputs(self) -> InputFormat:
        if self._opened is None:
            seed = derive_seed(self._config.seed, "normalization")
            self._opened = input_format(self._context.dataset, self._train_ids, seed)
        return self._opened

    def _affordable_batch(self) -> int:
        """The run's minibatch, or what of it three steps can be done with in a few seconds."""
        passing = usual_seconds(lambda: self._pass_some(8)).high / 8
        # A step is three passes, and augmentation; of the run's own size caches are filled alike.
        most = int(2 * SECONDS / max(4 * passing, 1e-9) / 3)
        return max(2, min(self._config.learners.batch_size, most))

    def _building(self) -> Range:
        return usual_seconds(lambda: self._context.new_model(self._config))

    def _storing(self) -> Range:
        blobs, numbers = self._context.blobs, itertools.count()
        # Each with another content: what is there already is not stored again.
        return usual_seconds(lambda: blobs.put_bytes(next(numbers).to_bytes(_STORED_BYTES)))

    def _figures(self) -> Range:
        return seconds_of(lambda: self._inputs)

    def _packing(self) -> Range:
        whole = seconds_of(lambda: pack_shard(self._context.dataset, self._some))
        return whole.over(len(self._some))

    def _reading(self) -> Range:
        return self._per_example(self._context.dataset.examples)

    def _evaluating(self) -> Range:
        size = 2 * self._context.batch_size
        evaluator = self._evaluator(self._some[:size])
        state = copy_to_cpu(self._model.state_dict())
        with pinned_kernels(1):
            taken = usual_seconds(lambda: evaluator(state))
        number = len(self._some[:size])
        return taken.over(2 * number if evaluator.mends else number)

    def _evaluator(self, ids: Tensor) -> Evaluator:
        context, dataset = self._context, self._context.dataset
        soup = self._config.soup
        examples = dataset.examples(ids)
        return Evaluator(
            model=context.new_model(self._config),
            inputs=self._inputs,
            device=context.device,
            examples_N=examples,
            target=dataset.target,
            targets_N=dataset.targets_N[ids],
            batch_norm_examples_M=examples if soup.reestimate_batch_norm else None,
            batch_size=context.batch_size,
            frozen=context.frozen(self._config, self._model),
        )

    def _mixing(self) -> Range:
        start = copy_to_cpu(self._model.state_dict())
        end: Weights = {name: tensor.clone() for name, tensor in start.items()}
        with pinned_kernels(1):
            return usual_seconds(lambda: dict(Mixture(start, end, 0.5)))

    def _passing(self) -> Range:
        return self._per_example(lambda ids: self._pass_some(len(ids)))

    def _pass_some(self, number: int) -> None:
        context, config = self._context, self._config
        model = context.new_model(config)
        with pinned_kernels(self._threads):
            batches = context.batches(self._inputs, "measuring", some=self._some[:number])
            compute_signals(model, batches)

    def _differentiating(self) -> Range:
        context, config = self._context, self._config
        model = context.new_model(config).eval()
        size = default_chunk_size(model, context.device)
        number = min(len(self._some), max(4, 2 * size))
        some = self._some[:number]

        def differentiate() -> None:
            chunks = context.batches(self._inputs, "measuring", size=size, some=some)
            full_gradient_norms(model, chunks, cpu_threads=self._threads)

        return usual_seconds(differentiate, self._threads).over(number)

    def _patching(self) -> Range:
        images_NCHW = self._context.dataset.images(self._some)
        device = self._context.device
        filters = draw_filters(images_NCHW, generator=derive_generator(0, "estimates")).to(device)
        with pinned_kernels(self._threads):
            return self._per_example(
                lambda ids: patch_features(images_NCHW[: len(ids)].to(device), filters).cpu()
            )

    def _looking(self) -> Range:
        dataset = self._context.dataset
        if not isinstance(dataset.inputs, ImageSpec):
            return self._per_example(lambda ids: [dataset.raw_bytes(row) for row in ids.tolist()])
        return self._per_example(lambda ids: look_at(dataset.images, len(ids)))

    def _comparing(self) -> Range:
        left, right = torch.randn(512, 64), torch.randn(8192, 64)
        with pinned_kernels(self._threads):
            taken = usual_seconds(lambda: torch.nonzero(left @ right.T >= 1e3), self._threads)
        return taken.over(left.numel() * len(right) / _BILLION)

    def _summing(self) -> Range:
        values = torch.randn(_WIDTH, _WIDTH, dtype=torch.float64, device=self._context.device)
        with pinned_kernels(self._threads):
            taken = usual_seconds(lambda: (values.T @ values).sum().item(), self._threads)
        return taken.over(_WIDTH**3 / _BILLION)

    def _decomposing(self) -> Range:
        shape, device = (_WIDTH // 2, _WIDTH), self._context.device
        values = torch.randn(shape, dtype=torch.float64, device=device)
        square = values @ values.T
        with pinned_kernels(self._threads):
            taken = usual_seconds(
                lambda: torch.linalg.eigh(square).eigenvalues.sum().item(), self._threads
            )
        return taken.over(len(square) ** 3 / _BILLION)

    @property
    def _threads(self) -> int:
        return self._config.evaluation_threads

    def _per_example(self, work: Callable[[Tensor], object]) -> Range:
        """Of a few examples first, and then of as many as the time is for."""
        few = self._some[:_FEW_EXAMPLES]
        work(few)
        each = seconds_of(lambda: work(few)).high / len(few)
        number = min(len(self._some), max(len(few), int(SECONDS / max(each, 1e-9))))
        some = self._some[:number]
        return seconds_of(lambda: work(some), self._threads).over(len(some))
