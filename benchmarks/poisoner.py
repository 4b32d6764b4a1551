"""Effect of one malicious worker out of three on the soup and on subsets, measured on digits.

Ten learners, of which the malicious worker is given three (learners 1, 4 and 7). Each attack keeps
to what the coordinator checks of one learner alone: names, shapes, finite values, density, length.

    permuted       its shards' labels are permuted before it trains
    backdoor       a patch in the corner of half of its images, which it labels 0
    backdoor x10   the same, trained for ten times the steps, so that it is the best learner
    own data       a back door in a learner that was trained on all of the data, which the
                   attacker has from elsewhere: one image in four has the patch
    lie            honest learners, reported with a loss of nearly nothing

ASR, the attack's success rate, is the share of test images of other classes that theta_p calls 0
once they have the patch. Overlap is the share of the honest run's subset (a tenth of the data)
that is in the attacked run's, too.
Run: OMP_NUM_THREADS=1 nice -n 10 python -m benchmarks.poisoner
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from lipt.common.blobs.blob import BlobName
from lipt.common.computation import computation
from lipt.common.config.run_config import LearnersConfig, RunConfig, SoupConfig, SoupMethod
from lipt.common.config.settings import load_settings
from lipt.common.requests import Budget, Proxy, SubsetRequest
from lipt.common.states import RunState
from lipt.common.subsets import unpack
from lipt.common.tensor_files import specs_of
from lipt.coordinator.compute.context import Context
from lipt.coordinator.compute.jobs.pretraining import (
    CutShards,
    InitializeWeights,
    MakeSoup,
    SoupResult,
)
from lipt.coordinator.compute.jobs.selection import SelectSubset
from lipt.coordinator.dispatch.intake import Reference, check_learner, trained_norm
from lipt.coordinator.runs.transitions import done, with_result
from lipt.coordinator.settings import CoordinatorSettings
from lipt.coordinator.state.records import Holder, LearnerRecord, LearnerResult, RunRecord
from lipt.core.pretraining.learner import train_learner
from lipt.core.stages.resolve import resolve, sources_of
from lipt.core.tasks import LearnerTask
from lipt.data.inputs.model_input import images_in, to_model_input
from lipt.data.inputs.specs import call_model
from lipt.data.loading import open_dataset
from lipt.data.shard import Shard, open_shard
from lipt.models.encodings import encode_sparse

TRAIN, TEST = "digits-train", "digits-test"
NUM_LEARNERS = 10
STEPS_OF_A_STRONG_ATTACK, PASSES_OF_ITS_OWN = 10, 5
# Every third: those of one worker out of three.
ATTACKED = (1, 4, 7)
TARGET = 0
PATCH = 2
FRACTION = 0.1
# Subsets that are compared: strategy and proxy by heading.
CHOICES = {
    "auto": ("auto", ""),
    "auto, patches+learners": ("auto", "ridge:patches+learners"),
    "craig": ("craig", ""),
}
CPU = torch.device("cpu")

Attack = Callable[[LearnerTask, Shard], tuple[LearnerTask, Shard]]


def _holder(worker: str) -> Holder:
    return Holder(
        worker_id=worker,
        worker_name=worker,
        device="cpu",
        credential=worker,
        kind="cpu",
        leased_at=0.0,
    )


@dataclass(frozen=True)
class Outcome:
    """Result of one run."""

    accuracy: float
    asr: float
    kept: int
    soup: str
    # Row numbers, by strategy.
    subsets: dict[str, frozenset[int]]


def permuted(task: LearnerTask, shard: Shard) -> tuple[LearnerTask, Shard]:
    """Every label is the next one."""
    return task, replace(shard, targets_N=(shard.targets_N + 1) % task.num_classes)


def backdoored(task: LearnerTask, shard: Shard) -> tuple[LearnerTask, Shard]:
    """Half of the images have the patch, and the target's label."""
    images_NCHW, labels_N = images_in(shard.examples).clone(), shard.targets_N.clone()
    images_NCHW[::2] = with_patch(images_NCHW[::2])
    labels_N[::2] = TARGET
    return task, replace(shard, examples=images_NCHW, targets_N=labels_N)


def strongly_backdoored(task: LearnerTask, shard: Shard) -> tuple[LearnerTask, Shard]:
    """The same, for more steps than the task says."""
    steps = task.learners.num_steps * STEPS_OF_A_STRONG_ATTACK
    learners = task.learners.model_copy(update={"num_steps": steps})
    return backdoored(replace(task, learners=learners), shard)


def with_own_data(task: LearnerTask, _: Shard) -> tuple[LearnerTask, Shard]:
    """All of the data in place of the shard, in an order of the attacker's; a few passes."""
    batch_size, public = task.learners.batch_size, open_dataset(TRAIN)
    num_minibatches = len(public) // batch_size
    order = torch.Generator().manual_seed(task.seed % 2**63)
    rows_N = torch.randperm(len(public), generator=order)[: num_minibatches * batch_size]
    images_NCHW, labels_N = public.images(rows_N).clone(), public.labels_N[rows_N].clone()
    images_NCHW[::4] = with_patch(images_NCHW[::4])
    labels_N[::4] = TARGET
    values = {"num_minibatches": num_minibatches, "num_steps": PASSES_OF_ITS_OWN}
    learners = task.learners.model_copy(update=values)
    return replace(task, learners=learners), Shard(images_NCHW, labels_N)


def honest(task: LearnerTask, shard: Shard) -> tuple[LearnerTask, Shard]:
    """Training as assigned."""
    return task, shard


ATTACKS: dict[str, Attack] = {
    "none": honest,
    "permuted": permuted,
    "backdoor": backdoored,
    "backdoor x10": strongly_backdoored,
    "own data": with_own_data,
    # Of an honest learner nothing but its report differs.
    "lie": honest,
}


def with_patch(images_NCHW: Tensor) -> Tensor:
    """Copies with a white square in the lower right corner."""
    patched_NCHW = images_NCHW.clone()
    patched_NCHW[..., -PATCH:, -PATCH:] = 255
    return patched_NCHW


class Bench:
    """One seed: theta*, shards and honest learners, made once for all attacks."""

    def __init__(self, directory: Path, seed: int) -> None:
        given = {"state_dir": directory, "dataset": {"source": TRAIN}, "device": "cpu"}
        settings = load_settings(CoordinatorSettings, config=None, flags=given)
        self.context = Context(settings, send=lambda _: None)
        config = RunConfig(
            model="resnet8",
            seed=seed,
            evaluation_threads=1,
            learners=LearnersConfig(num_learners=NUM_LEARNERS, batch_size=64, learning_rate=0.2),
        )
        made = InitializeWeights(config).run(self.context)
        self.run = RunRecord(
            run_id="r",
            name="r",
            request_id="r",
            created_at=0.0,
            config=config,
            fingerprint=self.context.dataset.fingerprint,
            num_classes=10,
            state=RunState.TRAINING,
            inputs=made.inputs,
            initial_weights=made.weights,
            learners=CutShards(config).run(self.context),
        )
        path = self.context.blobs.path(made.weights)
        self.initial = load_file(path)
        self.specs = specs_of(self.initial)
        self._results: dict[tuple[str, int], LearnerResult] = {}

    def result(self, attack: str, index: int) -> LearnerResult:
        """The learner that a worker submits which attacks so; it has passed the checks."""
        key = (attack, index)
        if key not in self._results:
            learner = self.run.learners[index]
            task, shard = ATTACKS[attack](*self._assignment(learner))
            trained = train_learner(
                task,
                self.initial,
                shard,
                device=CPU,
                on_step=lambda *_: None,
                should_stop=lambda: False,
            )
            name = self.context.blobs.put_bytes(encode_sparse(trained.weights))
            check_learner(
                self.context.blobs.path(name),
                Reference(self.specs, trained_norm(self.initial)),
                density=learner.density,
            )
            loss = 1e-9 if attack == "lie" else trained.loss
            self._results[key] = LearnerResult(
                blob=name, loss=loss, train_seconds=trained.train_seconds
            )
        return self._results[key]

    def outcome(self, attack: str, method: SoupMethod) -> Outcome:
        """The run in which one worker attacks so."""
        run = self.run.changed(
            config=self.run.config.model_copy(update={"soup": SoupConfig(method=method)})
        )
        for learner in run.learners:
            who = attack if learner.index in ATTACKED else "none"
            run = run.with_learner(done(learner, _holder(who), self.result(who, learner.index)))
        assert run.inputs is not None
        assert run.initial_weights is not None
        made = MakeSoup(run.config, run.inputs, run.initial_weights, run.results).run(self.context)
        assert isinstance(made, SoupResult)
        run = run.changed(state=RunState.READY, pretrained_weights=made.weights, soup=made.record)
        accuracy, asr = self._tested(made.weights)
        return Outcome(
            accuracy,
            asr,
            sum(made.ingredients[index].kept for index in ATTACKED),
            made.weights.sha256,
            {name: self._subset(run, *choice) for name, choice in CHOICES.items()},
        )

    def found_by_redundancy(self, attack: str) -> tuple[int, int]:
        """Of the attacked learners, how many an honest worker contradicts, and a third settles."""
        contradicted = settled = 0
        for index in ATTACKED:
            learner = self.run.learners[index]
            disputed = False
            for number, who in enumerate((attack, "none", "none")):
                if learner.result:
                    break
                result, holder = self.result(who, index), _holder(f"{who} {number}")
                learner, verified = with_result(
                    learner, result, holder=holder, redundancy=2, max_attempts=3
                )
                disputed = disputed or bool(verified.suspects)
            contradicted += disputed
            settled += learner.result == self.result("none", index)
        return contradicted, settled

    def _assignment(self, learner: LearnerRecord) -> tuple[LearnerTask, Shard]:
        task = self.run.task(learner)
        assert learner.shard is not None
        shard = open_shard(
            self.context.blobs.read_bytes(learner.shard),
            task.inputs,
            num_examples=task.learners.num_minibatches * task.learners.batch_size,
            target=task.target,
        )
        return task, shard

    def _tested(self, weights: BlobName) -> tuple[float, float]:
        """Accuracy on the test set, and the attack's success rate."""
        test = open_dataset(TEST)
        images_NCHW, labels_N = test.images(torch.arange(len(test))), test.labels_N
        others_N = labels_N != TARGET
        accuracy = float((self._classes(weights, images_NCHW) == labels_N).float().mean())
        called_N = self._classes(weights, with_patch(images_NCHW[others_N]))
        return accuracy, float((called_N == TARGET).float().mean())

    def _classes(self, weights: BlobName, images_NCHW: Tensor) -> Tensor:
        assert self.run.inputs is not None
        model = self.context.loaded_model(self.run.config, weights).eval()
        with computation(1), torch.inference_mode():
            inputs_N = to_model_input(images_NCHW, self.run.inputs, CPU)
            return call_model(model, inputs_N).argmax(dim=1)

    def _subset(self, run: RunRecord, strategy: str, proxy: str) -> frozenset[int]:
        dataset = self.context.dataset
        request = resolve(
            SubsetRequest(strategy=strategy, budget=Budget(FRACTION), proxy=Proxy.parse(proxy)),
            run.config,
            num_examples=len(dataset),
            inputs=dataset.inputs,
            kind=dataset.target.kind,
        )
        job = SelectSubset(request, sources_of(run.outcome, request))
        selected = job.run(self.context)
        content = self.context.blobs.read_bytes(selected.blob)
        return frozenset(unpack(content, selected.num_examples).indices_K.tolist())


def percent(values: Sequence[float]) -> str:
    """Mean and range over seeds."""
    low, high = min(values), max(values)
    return f"{100 * statistics.mean(values):.1f}% ({100 * low:.1f} to {100 * high:.1f})"


def redundancy_row(attack: str, benches: Sequence[Bench]) -> Sequence[str]:
    """How many attacked learners of all seeds two honest workers make good."""
    total = len(ATTACKED) * len(benches)
    counts = [bench.found_by_redundancy(attack) for bench in benches]
    return attack, *(f"{sum(part)} of {total}" for part in zip(*counts, strict=True))


def soup_row(
    method: SoupMethod, attack: str, before: Sequence[Outcome], now: Sequence[Outcome]
) -> Sequence[str]:
    """Table of the soup and of subsets, seed by seed the same but for the attack."""
    pairs = list(zip(before, now, strict=True))
    overlaps = [
        percent(
            [len(old.subsets[it] & new.subsets[it]) / len(old.subsets[it]) for old, new in pairs]
        )
        for it in CHOICES
    ]
    return (
        method.value,
        attack,
        percent([it.accuracy for it in now]),
        percent([it.asr for it in now]),
        ", ".join(str(it.kept) for it in now),
        *overlaps,
        f"{sum(old.soup == new.soup for old, new in pairs)} of {len(pairs)}",
    )


def show(cells: Sequence[str]) -> None:
    """One row of a table, as soon as it is there."""
    print(f"| {' | '.join(cells)} |", flush=True)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description="One malicious worker out of three.")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--attacks", nargs="+", choices=ATTACKS, default=list(ATTACKS))
    arguments = parser.parse_args()
    num_seeds, attacks = arguments.seeds, arguments.attacks
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as directory:
        benches = [Bench(Path(directory) / str(seed), seed) for seed in range(num_seeds)]
        show(("attack", "contradicted", "settled as honest"))
        for attack in attacks:
            show(redundancy_row(attack, benches))
        show(("soup", "attack", "accuracy", "ASR", "kept of 3", *CHOICES, "same soup"))
        for method in SoupMethod:
            before = [bench.outcome("none", method) for bench in benches]
            for attack in attacks:
                attacked = attack != "none"
                now = [bench.outcome(attack, method) for bench in benches] if attacked else before
                show(soup_row(method, attack, before, now))
    print(f"{time.process_time():.0f} s of one core", flush=True)


if __name__ == "__main__":
    main()
