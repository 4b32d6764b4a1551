import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from safetensors.torch import load, load_file
from torch.utils.data import DataLoader

from lipt import Client, Recipe, ReselectingSampler, fit
from lipt.common.errors import RunNotReadyError
from lipt.common.states import RunState
from lipt.common.tensor_files import specs_of
from lipt.data.inputs.specs import ImageSpec
from lipt.data.loading import open_dataset
from lipt.models.registry import build_model
from tests import processes
from tests.cluster import SMALL_RUN, Cluster
from tests.faults.memory import resident_bytes

UNMET = {"paired features", "losses after a target", "features of a target", "words of a target"}


@pytest.mark.smoke
def test_two_workers_carry_a_run_to_its_subsets(
    ready: Cluster, client: Client, tmp_path: Path
) -> None:
    ready.start_worker("two").wait_for("joined")
    run = client.wait(client.start_run(SMALL_RUN, name="of-two").run_id)
    assert sorted(learner.index for learner in run.learners) == [0, 1, 2, 3]
    assert all(learner.ingredient for learner in run.learners)
    assert run.soup is not None
    assert run.soup.soup_accuracy >= run.soup.best_learner_accuracy
    for strategy in client.strategies():
        # Images alone are no pairs, and no texts; nothing is given as a target.
        if set(strategy.needs) & UNMET or "class" not in strategy.target_kinds:
            continue
        subset = client.subset("of-two", strategy.name, fraction=0.1)
        count = len(set(subset.indices.tolist()))
        assert count == 180 or (count < 180 and subset.stopped_early)
        assert subset.fingerprint == open_dataset("digits").fingerprint
    path = tmp_path / "theta_p.safetensors"
    assert client.save_weights(path, "of-two") == run.pretrained_weights
    model = build_model("resnet8", num_classes=10, inputs=ImageSpec(1, 8, 8), seed=0)
    assert specs_of(load_file(path)) == specs_of(model.state_dict())

    got = ready.lipt(
        *("subset", "get", "--run", "of-two", "--strategy", "grand", "--budget", "100"),
        *("--out", str(tmp_path / "s.npy")),
    )
    assert got.returncode == 0, got.stderr
    labels = open_dataset("digits").labels_N.numpy()
    counts = np.bincount(labels[np.load(tmp_path / "s.npy")], minlength=10)
    assert counts.tolist() == [10] * 10
    shown = ready.lipt("run", "show", "of-two", "--json")
    assert json.loads(shown.stdout)["state"] == "ready"


def test_one_seed_gives_one_soup_and_one_subset_for_any_workers(cluster: Cluster) -> None:
    cluster.start_coordinator()
    cluster.start_worker("alone")
    with cluster.client() as client:
        alone = client.wait(client.start_run(SMALL_RUN, name="alone").run_id)
        # Four more; the one that was alone may or may not get a learner.
        more = [cluster.start_worker(f"more-{number}") for number in range(4)]
        for worker in more:
            worker.wait_for("joined")
        crowd = client.wait(client.start_run(SMALL_RUN, name="crowd").run_id)
        # More workers than learners do no harm.
        assert [learner.attempts for learner in crowd.learners] == [1, 1, 1, 1]
        assert {learner.worker for learner in alone.learners} == {"alone"}
        assert len({learner.worker for learner in crowd.learners}) > 1
        assert alone.pretrained_weights == crowd.pretrained_weights
        assert alone.initial_weights == crowd.initial_weights
        subsets = [client.subset(name, "grand", fraction=0.1) for name in ("alone", "crowd")]
        assert subsets[0].digest == subsets[1].digest
        other = client.wait(client.start_run({**SMALL_RUN, "seed": 1}).run_id)
        assert other.pretrained_weights != alone.pretrained_weights


def test_a_user_s_own_data_and_model_come_from_one_file(cluster: Cluster, tmp_path: Path) -> None:
    source = (Path(__file__).parents[2] / "examples" / "mine.py").read_text()
    assert len(source.splitlines()) <= 15
    (tmp_path / "mine.py").write_text(source)
    paths = {"PYTHONPATH": str(tmp_path)}
    cluster.start_coordinator("--model", "mine:model", "--data", "mine:data", environment=paths)
    with cluster.client() as client:
        overrides = {key: value for key, value in SMALL_RUN.items() if key != "model"}
        run = client.start_run(overrides)
        next(view for view in client.watch(run.run_id) if view.state is RunState.TRAINING)
        stranger = cluster.start_worker("stranger", environment=paths)
        stranger.wait_for("no learner for this worker: it cannot train run run-1: .* `mine`")
        waits = next(view for view in client.watch(run.run_id) if view.waiting_reason)
        assert waits.waiting_reason.startswith("worker stranger does not allow `mine`")
        doctor = cluster.lipt("doctor").stdout
        assert "note   worker stranger: cpu, idle" in doctor
        assert "it cannot train run run-1: it does not allow `mine`" in doctor
        friend = cluster.start_worker("friend", "--allow-module", "mine", environment=paths)
        run = client.wait(run.run_id)
        assert {learner.worker for learner in run.learners} == {"friend"}
        assert len(client.subset(run.run_id, "grand", budget=20)) == 20
    assert friend.stop() == 0


@pytest.mark.smoke
def test_training_reselects_subsets_during_a_run(client: Client) -> None:
    digits = open_dataset("digits")
    model = build_model("resnet8", num_classes=10, inputs=digits.inputs, seed=0)
    sampler = ReselectingSampler(client, model, "grand", run="first", fraction=0.1, every=1)
    reselection = sampler.reselection
    for persistent in (True, False):  # forks once, and before every epoch
        loader = DataLoader(
            digits,  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
            batch_size=64,
            sampler=sampler,
            num_workers=2,
            persistent_workers=persistent,
            timeout=120,  # a child that a fork has locked up fails, and does not hang
            multiprocessing_context="fork",
        )
        for epoch in (0, 1, 2) if persistent else (3, 4):
            sampler.set_epoch(epoch)
            seen = [int(label) for batch in loader for label in batch["label"]]
            expected = digits.labels_N[torch.from_numpy(reselection.subset.indices.copy())]
            assert sorted(seen) == sorted(expected.tolist())
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(0.05 * torch.randn_like(parameter))
    assert [selected.epoch for selected in reselection.history] == [1, 2, 3, 4]
    assert len({selected.digest for selected in reselection.history}) > 1


HIGH = ("--data", "tests.other_digits:high")


@pytest.fixture(scope="module")
def backbone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    digits = open_dataset("tests.other_digits:low", allowed_modules=["tests"])
    recipe = Recipe(steps=60, batch_size=64, learning_rate=0.1, augmentation="none")
    weights = fit("resnet8", digits, recipe=recipe, device="cpu").weights
    path = tmp_path_factory.mktemp("backbone") / "backbone.pt"
    wrapped = {f"module.{name}": tensor for name, tensor in weights.items()}
    torch.save({"epoch": 3, "state_dict": wrapped}, path)
    return path


def test_a_head_is_trained_on_a_backbone_of_other_classes(cluster: Cluster, backbone: Path) -> None:
    cluster.start_coordinator(*HIGH)
    started = cluster.lipt(
        *("run", "start", "--name", "fine", "--initial-weights", str(backbone), "--new-head"),
        *("--freeze", "all-but-head", "--num-learners", "2", "--num-steps", "10"),
        *("--batch-size", "64", "--set", "learners.num_snapshots=2"),
        *("--set", "learners.learning_rate=0.1", "--set", "learners.redundancy=2"),
        *("--set", "soup.batch_norm_examples=64"),
    )
    assert started.returncode == 0, started.stderr
    note = "theta* begins with 54 tensors of the weights given; new: 'fc.weight', 'fc.bias'."
    assert note in started.stdout.splitlines()
    asked: Mapping[str, Any] = {"fraction": 0.1, "proxy": "ridge:initial"}
    with cluster.client() as client:
        early = None
        # theta* is made without a worker, and judges by itself.
        for view in client.watch("fine"):
            if view.initial_weights is not None:
                early = client.subset("fine", "facility_location", **asked)
                with pytest.raises(RunNotReadyError, match=r"run fine is (sharding|training)"):
                    client.subset("fine", "facility_location", fraction=0.1)
                break
        assert early is not None
        assert early.manifest["proxy"]["accuracy"] > 0.9
        for name in ("one", "two"):
            cluster.start_worker(name)
        fine = client.wait("fine")
        theta, theta_p = (load(client.weights("fine", kind)) for kind in ("initial", "pretrained"))
        # Strategies and proxies that look at the learners see them whole.
        for strategy, proxy in (("forgetting", None), ("el2n", "ridge:learners"), ("auto", None)):
            assert len(client.subset("fine", strategy, fraction=0.1, proxy=proxy)) == 90
        assert client.subset("fine", "facility_location", **asked).digest == early.digest
    trained = {"fc.weight", "fc.bias"}
    assert {name for name in theta if not torch.equal(theta[name], theta_p[name])} == trained
    given = torch.load(backbone, weights_only=True)["state_dict"]
    assert all(torch.equal(theta[name], given[f"module.{name}"]) for name in theta.keys() - trained)
    assert fine.soup is not None
    # Random heads are right on a fifth.
    assert fine.soup.initial_accuracy < 0.5
    assert fine.soup.soup_accuracy > 0.6
    # 325 weights of 77,429: of 310 kB each learner sends 1.
    assert fine.initial_weights is not None
    assert fine.costs is not None
    # Two snapshots and a result, two learners.
    assert fine.costs.bytes_from_workers < 6 * 0.01 * fine.initial_weights.size_bytes
    shown = cluster.lipt("run", "show", "fine").stdout
    assert note in shown
    assert "all-but-head frozen" in shown


MODULE = """
import torch

class Made:
    classes = tuple("abcde")
    def __init__(self, number, side):
        generator = torch.Generator().manual_seed(number)
        self.labels = torch.arange(number) % 5
        shape = (number, 3, side, side)
        self.images = torch.randint(256, shape, generator=generator, dtype=torch.uint8)
    def __len__(self):
        return len(self.labels)
    def __getitem__(self, row):
        return self.images[row], int(self.labels[row])

def small(): return Made(400, 8)
def medium(): return Made(3_000, 16)
def large(): return Made(12_000, 32)
"""


class Size(NamedTuple):
    data: str
    learners: dict[str, Any]
    strategy: str
    fraction: float


SIZES = [
    Size(
        "small",
        {"num_learners": 2, "num_steps": 1, "num_minibatches": 1, "batch_size": 16},
        "grand",
        0.1,
    ),
    Size(
        "medium",
        {"num_learners": 4, "num_steps": 2, "num_minibatches": 1, "batch_size": 128},
        "gradmatch",
        0.05,
    ),
    Size(
        *("large", {"num_learners": 3, "num_steps": 1, "num_minibatches": 2, "batch_size": 512}),
        *("craig", 0.1),
    ),
]


@pytest.mark.parametrize("size", SIZES, ids=lambda size: size.data)
def test_bytes_and_memory_are_within_a_factor_of_two_of_the_plan(
    cluster: Cluster, size: Size
) -> None:
    (cluster.directory / "sized.py").write_text(MODULE)
    environment = {"PYTHONPATH": str(cluster.directory)}
    source = f"sized:{size.data}"
    planned = plan(size, source, environment)
    coordinator = cluster.start_coordinator(
        *("--data", source, "--device", "cpu", "--allow-module", "sized"), environment=environment
    )
    worker = cluster.start_worker("w", environment=environment)
    with cluster.client() as client:
        settings = {"model": "resnet8", "learners": size.learners}
        run = client.wait(client.start_run(settings).run_id)
        costs = run.costs
        assert costs is not None
        blobs = (cluster.state / "blobs").rglob("*")
        stored = sum(path.stat().st_size for path in blobs if path.is_file())
        client.subset(run.run_id, size.strategy, fraction=size.fraction)
        computing = max(resident_bytes(child, peak=True) for child in coordinator.computing())
        training = resident_bytes(worker.process.pid, peak=True)

    assert planned["bytes_to_workers"] == pytest.approx(costs.bytes_to_workers, rel=0.1)
    # Told as if nothing was pruned: at most 15% of the weights are.
    assert costs.bytes_from_workers <= planned["bytes_from_workers"]
    assert planned["bytes_from_workers"] <= 1.25 * costs.bytes_from_workers
    # Besides, each file has a header.
    assert stored <= 1.05 * planned["run_disk_bytes"] <= 1.25 * stored
    [kept] = (cluster.state / "signals").glob("signals-*")
    assert planned["signals_bytes"] == pytest.approx(kept.stat().st_size, rel=0.1)
    for process, happened in (("compute", computing), ("worker", training)):
        stages = (stage for stage in planned["stages"] if stage["process"] == process)
        told = max(stage["memory_bytes"] for stage in stages)
        assert happened / 2 <= told <= happened * 2


def plan(size: Size, source: str, environment: dict[str, str]) -> Any:
    words = ["plan", "--data", source, "--model", "resnet8", "--device", "cpu", "--no-measure"]
    words += ["--strategy", size.strategy, "--fraction", str(size.fraction), "--json"]
    for name, value in size.learners.items():
        words += ["--set", f"learners.{name}={value}"]
    done = processes.run(["-m", "lipt.cli", *words], os.environ | environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
