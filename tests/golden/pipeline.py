"""Pipeline: the product's results as stages.

A part is a data set that goes through the whole pipeline, the files of weights and shards, or the
demo. Everything is computed in this process, on one thread. Of the golden results only this module
and `datasets` call the product, so that a change of its interface changes nothing else.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import safetensors.torch
import torch
from torch import Tensor, nn

import lipt
from lipt.cli.commands import demo
from lipt.common.blobs.blob import BlobName
from lipt.common.blobs.store import BlobStore
from lipt.common.config.run_config import PRESETS, WeightEncoding, merge
from lipt.common.errors import LiptError
from lipt.common.tensor_files import pack, specs_of
from lipt.core.catalogue import StrategyView
from lipt.core.pretraining.sharding import draw_shards, split_validation
from lipt.data.dataset import Dataset
from lipt.data.loading import open_dataset
from lipt.data.shard import pack_shard
from lipt.models.encodings import encode_weights, open_weights
from lipt.trainer.client.client import Client
from lipt.trainer.comparison.trial import FIXED, read_trials
from lipt.trainer.diagnosis.diagnosis import Diagnosis
from lipt.trainer.subsets.subset import Subset
from lipt.trainer.views import RunView
from tests.embedded import worker_thread
from tests.golden import datasets
from tests.golden.machine import pattern
from tests.golden.record import Stage, digest
from tests.session import Session

Model = str | Callable[..., nn.Module]

_MAX_BYTES = 2**30
# Of texts, which have a part of their own.
_OF_THETA_STAR = ("loss_drop", "rds_plus", "bm25", "perplexity", "ifd")
# What a strategy needs that a proxy can compute.
_OF_A_PROXY = {"signals", "features", "validation split"}


@dataclass(frozen=True)
class Case:
    """A data set with its model and its requests.

    ridge: the second proxy, besides `soup`, of every strategy that uses one.
    diagnosis: the proxy of the diagnosis on the run; None for the default proxy without a run.
    exact_data: whether every machine reads the same examples.
    extras: whether to request presets, choices without labels and a warm-up, too.
    """

    open: Callable[[Path], Any]
    model: Model
    budget: int
    ridge: str
    diagnosis: str | None = None
    learners: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    exact_data: bool = True
    extras: bool = False


CASES: Mapping[str, Case] = {
    "digits": Case(
        lambda _: datasets.digits(),
        "resnet8",
        budget=30,
        ridge="ridge:patches+learners",
        learners={"num_learners": 4, "learning_rate": 0.1},
        extras=True,
    ),
    "texts": Case(datasets.texts, "text:tiny", budget=24, ridge="ridge:learners"),
    "table": Case(datasets.table, "mlp", budget=30, ridge="ridge:columns"),
    "numbers": Case(datasets.numbers, "mlp", budget=30, ridge="ridge:columns+initial"),
    "pairs": Case(
        datasets.pairs,
        "linear",
        budget=20,
        ridge="ridge:soup",
        learners={"batch_size": 8, "learning_rate": 0.5},
        exact_data=False,
    ),
}
CIFAR10 = "cifar10-jpeg"
NAMES = (*CASES, CIFAR10, "mixture", "target", "files", "demo")


def parts(cifar10: Path | None) -> dict[str, Callable[[Path], list[Stage]]]:
    found = {name: partial(run_case, case) for name, case in CASES.items()}
    if cifar10 is not None:
        case = Case(
            partial(datasets.cifar10_slice, cifar10),
            datasets.SmallConvNet,
            budget=100,
            ridge="ridge:soup+learners",
            learners={"batch_size": 64},
            # With the default proxy, patches, the diagnosis takes half a minute.
            diagnosis="ridge:soup+learners",
            # The default is 20 for every example.
            options={"zcore": {"num_draws": 2000}},
            exact_data=False,
        )
        found[CIFAR10] = partial(run_case, case)
    others = {"mixture": run_mixture, "target": run_target, "files": run_files, "demo": run_demo}
    return found | others


def run_case(case: Case, folder: Path) -> list[Stage]:
    with _own_environment(folder):
        data, state = case.open(folder), folder / "state"
        with Session(data, case.model, device="cpu", state_dir=state) as session:
            client, dataset = session.client, session.data
            stages = [Stage("data", _data(dataset), exact=case.exact_data)]
            if case.diagnosis is None:
                stages += _diagnosis(client.diagnose())
            run = session.pretrain(_settings(case))
            blobs = BlobStore(state, max_blob_bytes=_MAX_BYTES)
            stages += _pretraining(client, run, dataset, blobs)
            if case.diagnosis is not None:
                stages += _diagnosis(client.diagnose(run.run_id, case.diagnosis))
            stages += _subsets(client, run, case)
            stages += _reselections(client, run, case)
    return stages


def _settings(case: Case) -> dict[str, Any]:
    shard = {"num_minibatches": 1, "batch_size": 32}
    learners = {"num_learners": 3, "num_steps": 3, "num_snapshots": 2, "learning_rate": 0.2}
    return {
        "evaluation_threads": 1,
        "validation": {"min_per_class": 8},
        "learners": {**shard, **learners, **case.learners},
        "soup": {"method": "interpolation", "num_alphas": 4, "batch_norm_examples": 64},
    }


def _data(dataset: Dataset) -> str:
    examples = dataset.examples(torch.arange(len(dataset)))
    return digest([examples, dataset.targets_N, dataset.labels_N, list(dataset.class_names)])


def _diagnosis(found: Diagnosis) -> Iterator[Stage]:
    suspected = [found.suspect, found.suggested_label, found.duplicate_of, found.outliers()]
    yield Stage("suspects", digest(suspected))
    yield Stage("label quality", digest([found.label_quality, found.outlier_score]))


def _pretraining(
    client: Client, run: RunView, dataset: Dataset, blobs: BlobStore
) -> Iterator[Stage]:
    config = run.config
    initial = safetensors.torch.load(client.weights(run.run_id, "initial"))
    yield Stage("theta*", digest(initial))
    split = split_validation(dataset.labels_N, config.validation, seed=config.seed)
    shards = draw_shards(split.train_ids, config.learners, seed=config.seed)
    for ids in shards:
        # The learners were sent these examples.
        assert blobs.is_whole(BlobName.of(pack_shard(dataset, ids)))
    yield Stage("validation ids", digest(split.validation_ids), exact=True)
    yield Stage("shards", digest(shards), exact=True)
    densities = [learner.density for learner in run.learners]
    yield Stage("densities", digest(densities), exact=True)
    for learner in run.learners:
        assert learner.result is not None
        path = blobs.path(BlobName(learner.result.sha256, learner.result.size_bytes))
        weights = dict(open_weights(path, like=specs_of(initial)))
        yield Stage("learner", digest(weights), str(learner.index))
    yield Stage("soup", digest(_soup(run)))
    merged = safetensors.torch.load(client.weights(run.run_id, "pretrained"))
    yield Stage("theta_p", digest(merged))


def _soup(run: RunView) -> dict[str, object]:
    """Order, alphas and accuracies."""
    assert run.soup is not None
    offered: dict[str, object] = {}
    for learner in run.learners:
        part = learner.ingredient
        assert part is not None
        facts = [part.position, part.kept, part.alpha, part.accuracy, part.soup_accuracy]
        offered[f"{learner.index}"] = facts
    return offered | {"accuracies": [run.soup.initial_accuracy, run.soup.soup_accuracy]}


def _subsets(client: Client, run: RunView, case: Case) -> Iterator[Stage]:
    choose = partial(_choose, client, run, case)
    for strategy in client.strategies():
        if strategy.name in _OF_THETA_STAR:
            continue
        name, exact = strategy.name, not _uses_more_than_labels(strategy)
        for balanced in (False, True):
            item = f"{name}, {'balanced' if balanced else 'not balanced'}"
            yield choose(name, item, exact=exact, proxy="soup", balanced=balanced)
        if _OF_A_PROXY & set(strategy.needs):
            yield choose(name, f"{name} by {case.ridge}", proxy=case.ridge)
        if not case.extras:
            continue
        if strategy.default_proxy != "soup":
            yield choose(name, f"{name} by {strategy.default_proxy}")
        if strategy.works_without_labels:
            yield choose(name, f"{name} without labels", exact=exact, labels="none")
        for preset in strategy.presets:
            yield choose(name, f"{name} {preset.name}", exact=exact, preset=preset.name)
    if case.extras:
        warm_up = {"pretraining": "epochs:0.5"}
        yield choose("grand", "grand after a warm-up", options=warm_up)


def _uses_more_than_labels(strategy: StrategyView) -> bool:
    return not set(strategy.needs) <= {"nothing", "labels"}


def _choose(
    client: Client,
    run: RunView,
    case: Case,
    strategy: str,
    item: str,
    *,
    kind: str = "subset",
    exact: bool = False,
    **asked: Any,
) -> Stage:
    """A subset, or the class of the refusal, which is the same on every machine."""
    asked.setdefault("options", case.options.get(strategy))
    try:
        subset = client.subset(run.run_id, strategy, budget=case.budget, **asked)
    except LiptError as error:
        return Stage(kind, type(error).__name__, item, exact=True)
    return Stage(kind, _of_subset(subset), item, exact)


def _of_subset(subset: Subset) -> str:
    return digest([subset.indices, subset.weights])


def _reselections(client: Client, run: RunView, case: Case) -> Iterator[Stage]:
    """Subsets on uploaded weights: made-up ones, so that they do not depend on the run."""
    initial = safetensors.torch.load(client.weights(run.run_id, "initial"))
    content = pack({name: _made_up(name, value) for name, value in initial.items()})
    for strategy in ("el2n", "grand", "craig", "crest"):
        asked: dict[str, Any] = {"proxy": "soup", "weights": content}
        yield _choose(client, run, case, strategy, strategy, kind="reselection", **asked)


def _made_up(name: str, value: Tensor) -> Tensor:
    """Values for a tensor of a model: small ones, and positive ones for variances."""
    if not value.is_floating_point():
        return torch.ones_like(value)
    made = pattern(*value.shape, seed=len(name)).to(value.dtype) / 4
    return 1 + made.abs() if name.endswith("running_var") else made


def run_mixture(_folder: Path) -> list[Stage]:
    """Two sources of digits, of which the target has the second one's kind."""
    images_NHW, labels_N = datasets.digits()
    inverted_NHW = 255 - images_NHW
    sources = {
        "upright": (images_NHW[:150, None], labels_N[:150]),
        "inverted": (inverted_NHW[150:250, None], labels_N[150:250]),
    }
    run = {"initialization": {"steps": 20}, "learners": {"num_minibatches": 8}}
    target = inverted_NHW[250:, None], labels_N[250:]
    mixture = lipt.mix(sources, target, run=run, device="cpu", progress=False)
    shares = {name: dict(one.weights) for name, one in mixture.outcomes.items()}
    return [
        Stage("merged learners", digest(mixture.theta)),
        Stage("shares", digest({"fitted": shares, "intervals": dict(mixture.intervals)})),
        Stage("held-out losses", digest(mixture.loss)),
        Stage("sample of the shares", digest(mixture.sample(80).indices)),
    ]


def run_target(folder: Path) -> list[Stage]:
    """Sentences of four subjects to continue, of which the target has two."""
    names = ("pool", "target")
    for name, rows in zip(names, (slice(1, 121), slice(121, None)), strict=True):
        lines = Path(datasets.texts(folder).removeprefix("csv:").partition("?")[0]).read_text()
        head, *of_all = lines.splitlines()
        (folder / f"{name}.csv").write_text("\n".join([head, *of_all[rows]]) + "\n")
    texts, target = (f"csv:{folder}/{name}.csv?prompt=label&completion=text" for name in names)
    run = merge(PRESETS["target-text"], {"initialization": {"steps": 5, "batch_size": 8}})
    run = merge(run, {"learners": {"batch_size": 8}})
    pretrained = lipt.Pretrained(texts, run=run, device="cpu", progress=False)
    stages = [Stage("theta*", digest(dict(pretrained.theta_star)))]
    for name in _OF_THETA_STAR:
        asked: dict[str, Any] = {} if name in {"perplexity", "ifd"} else {"target_data": target}
        options = {"steps": 3} if name == "loss_drop" else None
        subset = pretrained.select(name, budget=20, options=options, **asked)
        stages.append(Stage("subset", _of_subset(subset), name))
    return stages


def run_files(folder: Path) -> list[Stage]:
    weights = _awkward_weights()
    like = specs_of(weights)
    stages = [Stage("container", digest(pack(weights, {"b": "2", "a": "1"})), exact=True)]
    for encoding in WeightEncoding:
        content = encode_weights(weights, encoding)
        decoded = dict(open_weights(content, like=like))
        # The bytes of DEFLATE streams depend on zlib's version.
        exact = encoding is WeightEncoding.BITMASK
        stages += [
            Stage("encoding", digest(content), encoding.value, exact=exact),
            Stage("decoding", digest(decoded), encoding.value, exact=True),
        ]
    ids = torch.tensor([5, 0, 3])
    for name, source in (
        ("columns", datasets.table(folder)),
        ("tokens", datasets.texts(folder)),
        ("numbers", datasets.numbers(folder)),
        ("pixels", _images(folder)),
        ("image files", _images(folder)),
    ):
        budget = 0 if name == "image files" else _MAX_BYTES
        dataset = open_dataset(source, memory_budget_bytes=budget)
        content = pack_shard(dataset, ids)
        stages.append(Stage("shard", digest(content), f"of {name}", exact=True))
    return stages


def _awkward_weights() -> dict[str, Tensor]:
    """Weights with zeros, infinities, denormals, and tensors of other types."""
    pruned = pattern(7, 5, 3) * (pattern(7, 5, 3, seed=1) > 0)
    special = torch.tensor([0.0, -0.0, 1e-42, -1e30, float("inf"), 3.1415927])
    return {
        "conv.weight": pruned,
        "conv.bias": special,
        "head.weight": (pattern(10, 16) * (pattern(10, 16, seed=2) < 0.8)).to(torch.bfloat16),
        "half": (pattern(33) * (pattern(33, seed=3) > -0.5)).half(),
        "double": pattern(9).double() / 3,
        "scalar": torch.tensor(0.25),
        "empty": torch.zeros(0, 4),
        "bn.num_batches_tracked": torch.tensor(7),
        "channels_last": pruned[None].contiguous(memory_format=torch.channels_last),
    }


def _images(folder: Path) -> str:
    """Twelve images of 5 x 4 pixels in two classes, as files without compression."""
    for row in range(12):
        path = folder / "images" / f"class{row % 2}" / f"{row:02}.ppm"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = bytes((row * 60 + value) * 37 % 256 for value in range(60))
        path.write_bytes(b"P6\n5 4\n255\n" + pixels)
    return f"imagefolder:{folder / 'images'}"


def run_demo(folder: Path) -> list[Stage]:
    whole, some = demo.make_plan(), torch.arange(200)
    plan = replace(
        whole,
        seeds=whole.seeds[:1],
        recipe=whole.recipe.model_copy(update={"steps": 4}),
        run_overrides={
            "evaluation_threads": 1,
            "learners": {"num_minibatches": 1, "num_steps": 2, "batch_size": 32},
            "soup": {"method": "interpolation", "num_alphas": 3, "batch_norm_examples": 64},
        },
    )
    data, right = open_dataset("digits-mislabelled"), open_dataset("digits-train")
    is_wrong_N = (data.labels_N != right.labels_N)[some].numpy()
    examples = data.examples(some), data.labels_N[some]
    with (
        _own_environment(folder),
        mock.patch.object(demo, "print_line"),
        Session(examples, plan.model, device="cpu") as session,
        worker_thread(session.client.address, folder / "worker", device="cpu", allowed_modules=()),
    ):
        client, test = session.client, open_dataset("digits-test")
        demo.run_experiment(
            plan,
            session.data,
            test,
            is_wrong_N,
            client,
            finish=lambda run: client.wait(run.run_id),
            directory=folder,
        )
        run, suspects = client.run("demo-0"), [it.id for it in client.diagnose().label_issues()]
    stages = [
        Stage("found labels", digest([len(suspects), int(is_wrong_N[suspects].sum())])),
        Stage("soup", digest(_soup(run))),
    ]
    for strategy in (*FIXED, *plan.strategies):
        subset = Subset.load(folder / f"subset-{strategy}.npy")
        stages.append(Stage("subset", subset.digest[:16], strategy))
    for trial in read_trials(folder / "comparison.jsonl")[1]:
        accuracies = [trial.num_examples, trial.test_accuracy, trial.subset_accuracy]
        stages.append(Stage("trial", digest(accuracies), trial.strategy))
    return stages


@contextmanager
def _own_environment(folder: Path) -> Iterator[None]:
    """The environment without the user's settings, with caches in the folder and one CPU thread.

    Not a computation: the service's threads would wait for its end.
    """
    own = {name: value for name, value in os.environ.items() if not name.startswith("LIPT_")}
    own["XDG_CACHE_HOME"] = str(folder / "cache")
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with mock.patch.dict(os.environ, own, clear=True):
            yield
    finally:
        torch.set_num_threads(num_threads)
