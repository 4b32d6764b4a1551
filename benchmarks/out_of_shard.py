"""Out of shard: what it is worth not to ask the learner that was trained on an example.

Learners as `lipt demo` has them (n = 8 of 64 digits, 10 steps), on labels of which a fifth is
flipped. AUC is how well a score tells wrong labels from right ones, among the examples that
some learner was trained on: by what all learners say ("all"), and by what theta* and the other
learners say ("others"); besides, by the error norm of the example's own learner alone, and of the
next one alone.

With --ridge also those of a ridge head, leave-one-out, on all learners' features side by side:
with those of an example's own learner as they are ("all"), and with the mean over the examples
that this learner was not trained on in place of them ("others").

    python -m benchmarks.out_of_shard [--seeds 5] [--flipped 0.2] [--steps 10] [--ridge]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Iterator
from dataclasses import replace

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from benchmarks.proxies import auc, cut
from lipt.common.config.run_config import LearnersConfig, RunConfig, SoupConfig
from lipt.common.config.settings import load_settings
from lipt.common.data import open_dataset
from lipt.common.data.dataset import Dataset, in_memory
from lipt.common.data.shard import unpack_shard
from lipt.common.determinism import derive_generator, pinned_kernels
from lipt.common.inputs.specs import InputFormat
from lipt.common.weights.encodings import encode_sparse
from lipt.coordinator.compute.context import Context
from lipt.coordinator.compute.jobs.pretraining import CutShards, InitializeWeights
from lipt.coordinator.settings import CoordinatorSettings
from lipt.coordinator.state.records import LearnerRecord, RunRecord
from lipt.core.learner.learner import compute_mode, train_on_shard
from lipt.core.proxies.features import side_by_side
from lipt.core.proxies.proxy import Kind, Proxy
from lipt.core.proxies.ridge import leave_one_out
from lipt.core.results import CommittedLearner, Trajectories
from lipt.core.signals.dynamics import Dynamics, margins_of, mean_over_learners, mean_over_moments
from lipt.core.stages.proxy import FeatureMaker, ProxyQuestion
from lipt.core.stages.warm_up import dynamics_of

CPU = torch.device("cpu")
LEARNERS = LearnersConfig(num_learners=8, batch_size=64, learning_rate=0.2)

# By what it is of: the values of every seed.
Figures = dict[str, list[float]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", default="digits-train")
    parser.add_argument("--examples", type=int, default=10_000)
    parser.add_argument("--learners", type=int, default=LEARNERS.num_learners)
    parser.add_argument("--batch-size", type=int, default=LEARNERS.batch_size)
    parser.add_argument("--learning-rate", type=float, default=LEARNERS.learning_rate)
    parser.add_argument("--steps", type=int, default=LEARNERS.num_steps)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--flipped", type=float, default=0.2)
    parser.add_argument("--ridge", action="store_true")
    given = parser.parse_args()
    shape = {
        "num_learners": given.learners,
        "batch_size": given.batch_size,
        "learning_rate": given.learning_rate,
        "num_steps": given.steps,
    }
    truth = cut(open_dataset(given.source), given.examples)
    figures: Figures = {}
    for seed in range(given.seeds):
        config = RunConfig(
            model="resnet8",
            seed=seed,
            learners=LEARNERS.model_copy(update=shape),
            soup=SoupConfig(batch_norm_examples=1024),
            evaluation_threads=1,
        )
        with tempfile.TemporaryDirectory() as folder, pinned_kernels(1):
            flags = {"state_dir": folder, "dataset": {"source": given.source}, "device": "cpu"}
            settings = load_settings(CoordinatorSettings, config=None, flags=flags)
            context = Context(settings, send=lambda _: None)
            vars(context)["dataset"] = flip(truth, given.flipped, seed)
            for name, value in measure(context, config, truth.labels_N, with_ridge=given.ridge):
                figures.setdefault(name, []).append(value)
    table = Table("figure", "mean", "deviation", title=f"{given.source}, {given.seeds} seeds")
    for name, values in figures.items():
        spread = statistics.stdev(values) if len(values) > 1 else float("nan")
        table.add_row(name, f"{statistics.mean(values):.3f}", f"{spread:.3f}")
    Console().print(table)


def flip(dataset: Dataset, share: float, seed: int) -> Dataset:
    """So many of the labels are another class."""
    generator = derive_generator(seed, "flips")
    labels_N, num_classes = dataset.labels_N.clone(), len(dataset.class_names)
    flipped = torch.randperm(len(labels_N), generator=generator)[: round(share * len(labels_N))]
    shifts = torch.randint(1, num_classes, (len(flipped),), generator=generator)
    labels_N[flipped] = (labels_N[flipped] + shifts) % num_classes
    images_NCHW = dataset.images(torch.arange(len(labels_N)))
    return in_memory(dataset.source, dataset.class_names, labels_N, "flipped", images_NCHW)


def run_of(context: Context, config: RunConfig, inputs: InputFormat) -> RunRecord:
    """A run on the data that is open, whose learners are trained here."""
    return RunRecord(
        run_id="r",
        name="r",
        request_id="r",
        created_at=0.0,
        config=config,
        fingerprint=context.dataset.fingerprint,
        num_classes=len(context.dataset.class_names),
        inputs=inputs,
    )


def measure(
    context: Context, config: RunConfig, truth_N: Tensor, *, with_ridge: bool
) -> Iterator[tuple[str, float]]:
    """All figures of one run."""
    initial = InitializeWeights(config).run(context)
    records = CutShards(config).run(context)
    run = run_of(context, config, initial.inputs)
    committed = tuple(train(context, run, record, initial.inputs) for record in records)
    trajectories = Trajectories(initial.weights, committed)
    dynamics = dynamics_of(context, config, initial.inputs, trajectories)
    own_N = dynamics.own_learner_N.long()
    wrong_N = context.dataset.labels_N != truth_N
    inside_N = own_N >= 0
    yield "share of examples in a shard", float(inside_N.double().mean())
    everyone = replace(dynamics, own_learner_N=torch.full_like(dynamics.own_learner_N, -1))
    for whom, asked in (("all", everyone), ("others", dynamics)):
        for name, trust_N in trusts(asked):
            yield f"{name}, {whom}: in-shard AUC", auc(trust_N[inside_N], wrong_N[inside_N])
            yield f"{name}, {whom}: AUC", auc(trust_N, wrong_N)
    trust_NL = -dynamics.error_norms_NL[inside_N]
    for name, learners_N in (("own", own_N), ("next", (own_N + 1) % len(records))):
        trust_N = trust_NL.gather(1, learners_N[inside_N][:, None])[:, 0]
        yield f"el2n, the {name} learner: in-shard AUC", auc(trust_N, wrong_N[inside_N])
    if not with_ridge:
        return
    question = ProxyQuestion(
        config, initial.inputs, Proxy.parse("ridge:learners"), initial.weights, None, trajectories
    )
    features_ND = side_by_side(
        [FeatureMaker(context, question).extractor(Kind.LEARNERS)],
        context.dataset,
        torch.arange(len(own_N)),
        on_progress=lambda *_: None,
    )
    for whom, given_ND in (
        ("all", features_ND),
        ("others", others_features(features_ND, own_N, len(records))),
    ):
        yield from judged(f"ridge:learners, {whom}", given_ND, context, truth_N, inside_N)


def train(
    context: Context, run: RunRecord, record: LearnerRecord, inputs: InputFormat
) -> CommittedLearner:
    """A learner as a worker trains it, not pruned."""
    task, model = run.task(record), context.new_model(run.config).train()
    shard = unpack_shard(
        context.blobs.read_bytes(record.shard),
        inputs,
        num_examples=task.learners.batch_size,
        target=task.target,
    )
    train_on_shard(
        model,
        task,
        shard.examples,
        shard.targets_N,
        compute_mode(task, CPU),
        on_step=lambda *_: None,
        should_stop=lambda: False,
    )
    result = context.blobs.put_bytes(encode_sparse(model.state_dict()))
    return CommittedLearner(record.index, (), result)


def trusts(dynamics: Dynamics) -> Iterator[tuple[str, Tensor]]:
    """Scores that are larger where a label is trusted."""
    counted_NL = dynamics.counted_NL
    yield "aum", mean_over_moments(dynamics.margins_NLT, counted_NL)
    yield "el2n", -mean_over_learners(dynamics.error_norms_NL, counted_NL)


def others_features(features_ND: Tensor, own_N: Tensor, num_learners: int) -> Tensor:
    """The own learner's columns hold what it makes of examples that it was not trained on."""
    filled_ND = features_ND.clone()
    for learner, columns_NW in enumerate(filled_ND.chunk(num_learners, dim=1)):
        columns_NW[own_N == learner] = columns_NW[own_N != learner].mean(dim=0)
    return filled_ND


def judged(
    name: str, features_ND: Tensor, context: Context, truth_N: Tensor, inside_N: Tensor
) -> Iterator[tuple[str, float]]:
    """Of a ridge head: how often it is right, and how well it finds wrong labels."""
    labels_N = context.dataset.labels_N
    head = leave_one_out(
        features_ND,
        labels_N,
        len(context.dataset.class_names),
        generator=derive_generator(0, "ridge sample"),
    )
    margins_N, wrong_N = margins_of(head.outputs_NC, labels_N), labels_N != truth_N
    right_N = head.outputs_NC.argmax(dim=1) == truth_N
    for where, some_N in (("in-shard ", inside_N), ("other ", ~inside_N)):
        yield f"{name}: {where}AUC", auc(margins_N[some_N], wrong_N[some_N])
        given = (head.outputs_NC.argmax(dim=1) == labels_N)[some_N].double().mean()
        yield f"{name}: {where}leave-one-out accuracy", float(given)
        yield f"{name}: {where}true-class", float(right_N[some_N].double().mean())


if __name__ == "__main__":
    main()
