"""What proxies know: leave-one-out accuracy, true-class accuracy and label noise found.

Learners are trained as a worker trains them (n = 10, K = 10, B = 256, from random weights), and
signals made as the coordinator makes them. "True" is how often a proxy's own prediction is the
true class, AUC how well its quality of the given label tells right labels from wrong ones; "own"
and "other" are the AUC of examples that some learner was trained on, and of all others.

    python benchmarks/proxies.py SOURCE [--examples 10000] [--noise 0.4] [--threads 1]
        [--features patches soup learners patches+learners]

SOURCE is a data set, such as parquet:DIR/train.parquet.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from lipt.common.config.run_config import LearnersConfig, PruningMethod, RunConfig
from lipt.common.config.settings import load_settings
from lipt.common.config.tasks import LearnerTask
from lipt.common.data import open_dataset
from lipt.common.data.dataset import Dataset, in_memory
from lipt.common.determinism import pinned_kernels
from lipt.common.images.formats import ImageFormat
from lipt.common.inputs.specs import ImageSpec
from lipt.common.weights.encodings import encode_sparse
from lipt.common.weights.files import pack
from lipt.coordinator.compute.context import Context
from lipt.coordinator.settings import CoordinatorSettings
from lipt.core.diagnosis.label_errors import find_label_errors
from lipt.core.learner.learner import compute_mode, train_on_shard
from lipt.core.proxies.proxy import Proxy
from lipt.core.results import CommittedLearner, Trajectories
from lipt.core.sharding import draw_shards
from lipt.core.signals.signals import Signals
from lipt.core.stages.proxy import ProxyQuestion, proxied_signals

CPU = torch.device("cpu")
FEATURES = ("patches", "soup", "learners", "patches+learners")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source")
    parser.add_argument("--examples", type=int, default=10_000)
    parser.add_argument("--noise", type=float, default=0.4)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--features", nargs="+", default=FEATURES)
    given = parser.parse_args()
    config = RunConfig(model="resnet8", seed=0, evaluation_threads=given.threads)
    truth = cut(open_dataset(given.source), given.examples)
    noisy = with_noise(truth, given.noise)
    table = Table("proxy", "leave-one-out", "true", "AUC", "own", "other", "features", "seconds")
    table.title = f"{len(truth)} examples, {given.noise:.0%} of the labels drawn at random"
    with tempfile.TemporaryDirectory() as folder, pinned_kernels(given.threads):
        flags = {"state_dir": Path(folder), "device": "cpu", "dataset": {"source": given.source}}
        settings = load_settings(CoordinatorSettings, config=None, flags=flags)
        context = Context(settings, send=lambda _: None)
        vars(context)["dataset"] = noisy
        pixels = noisy.inputs
        assert isinstance(pixels, ImageSpec)
        channels = pixels.channels
        image = ImageFormat(*pixels.shape, mean=(0.5,) * channels, std=(0.25,) * channels)
        asked = "+".join(given.features)
        every_N = torch.arange(len(noisy))
        shards = draw_shards(every_N, config.learners, seed=0) if "learners" in asked else ()
        trajectories = train(context, config, image, shards)
        own_N = torch.zeros(len(noisy), dtype=torch.bool)
        for shard in shards:
            own_N[shard] = True
        for features in given.features:
            question = ProxyQuestion(
                config,
                image,
                Proxy.parse(f"ridge:{features}"),
                trajectories.initial_weights,
                trajectories=trajectories,
            )
            started = time.perf_counter()
            signals, facts = proxied_signals(context, question)
            seconds = time.perf_counter() - started
            cells = judged(signals, truth.labels_N, own_N)
            width = str(facts["num_features"])
            accuracy = f"{facts['accuracy']:.1%}"
            table.add_row(features, accuracy, *cells, width, f"{seconds:.0f}")
    Console().print(table)


def cut(dataset: Dataset, num_examples: int) -> Dataset:
    """Some of the examples, drawn: files are often sorted by class. As pixels in memory."""
    drawn = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(0))
    ids_N = drawn[:num_examples].sort().values
    return in_memory(
        dataset.source,
        dataset.class_names,
        dataset.labels_N[ids_N],
        dataset.fingerprint,
        dataset.images(ids_N),
    )


def with_noise(dataset: Dataset, share: float) -> Dataset:
    """A share of the labels drawn anew, uniformly: some of them stay right."""
    generator = torch.Generator().manual_seed(1)
    labels_N = dataset.labels_N.clone()
    changed_N = torch.rand(len(labels_N), generator=generator) < share
    drawn_N = torch.randint(len(dataset.class_names), (len(labels_N),), generator=generator)
    labels_N[changed_N] = drawn_N[changed_N]
    images_NCHW = dataset.images(torch.arange(len(labels_N)))
    return in_memory(dataset.source, dataset.class_names, labels_N, "noisy", images_NCHW)


def train(
    context: Context, config: RunConfig, image: ImageFormat, shards: tuple[Tensor, ...]
) -> Trajectories:
    """A learner on each shard."""
    dataset = context.dataset
    initial = context.blobs.put_bytes(pack(context.new_model(config).state_dict()))
    committed = []
    for index, ids in enumerate(shards):
        task = LearnerTask(
            model=config.model,
            num_classes=len(dataset.class_names),
            # The default is ResNet-18's.
            learners=LearnersConfig(learning_rate=0.2),
            augmentation=config.augmentation,
            pruning_method=PruningMethod.NONE,
            density=1.0,
            seed=index,
            image=image,
        )
        model = context.new_model(config).train()
        train_on_shard(
            model,
            task,
            dataset.images(ids),
            dataset.labels_N[ids],
            compute_mode(task, CPU),
            on_step=lambda *_: None,
            should_stop=lambda: False,
        )
        result = context.blobs.put_bytes(encode_sparse(model.state_dict()))
        committed.append(CommittedLearner(index, (), result))
    return Trajectories(initial, tuple(committed))


def judged(signals: Signals, truth_N: Tensor, own_N: Tensor) -> list[str]:
    """True-class accuracy, and AUC of the labels' quality of all, own and other examples."""
    found = find_label_errors(signals)
    wrong_N = signals.labels_N != truth_N
    right = float((found.suggested_N == truth_N).double().mean())
    groups = (torch.ones_like(own_N), own_N, ~own_N)
    return [
        f"{right:.1%}",
        *(f"{auc(found.quality_N[some], wrong_N[some]):.3f}" for some in groups),
    ]


def auc(quality_N: Tensor, wrong_N: Tensor) -> float:
    """How often a right label's quality is above a wrong one's."""
    ranks_N = quality_N.argsort().argsort().double() + 1
    num_wrong, num_right = int(wrong_N.sum()), int((~wrong_N).sum())
    if not num_wrong or not num_right:
        return float("nan")
    above = float(ranks_N[~wrong_N].sum()) - num_right * (num_right + 1) / 2
    return above / (num_wrong * num_right)


if __name__ == "__main__":
    main()
