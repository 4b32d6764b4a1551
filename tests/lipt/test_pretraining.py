import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from numpy.typing import NDArray
from torch import nn

import lipt
from lipt.common.config.run_config import LearnersConfig, RunConfig
from lipt.common.errors import BudgetError, ConfigError
from lipt.common.requests import SOUP, Proxy
from lipt.common.tensor_files import Weights, copy_to_cpu, pack
from lipt.coordinator.compute.context import DataDescription
from lipt.core import workspace
from lipt.core.planning import PROCESS_BYTES, total
from lipt.core.pretraining.sharding import draw_shards, split_validation
from lipt.core.selection.select import find_strategy
from lipt.core.signals.signals import UserFeatures, features_of_tensors, read_user_features
from lipt.data.inputs.specs import Column, ColumnsSpec, ColumnType, ImageSpec
from lipt.data.loading import open_dataset
from lipt.data.shard import pack_shard
from lipt.data.targets.kinds import TargetKind
from lipt.models.encodings import encode_weights
from lipt.models.footprint import ModelFigures
from lipt.models.registry import build_model, default_model
from lipt.plan import Estimate, StageEstimate, estimate, lines_of, plan_choice
from lipt.pretraining import Pretrained, kind_of_run
from lipt.trainer.formatting import to_jsonable
from lipt.trainer.subsets.subset import Subset
from tests import processes
from tests.coordinator.fakes import described
from tests.golden import datasets
from tests.lipt.digits import QUICK, few_digits
from tests.resolved import resolved
from tests.session import Session

STRATEGIES = ("auto", "el2n", "craig", "aum", "milo")
KINDS: dict[str, Callable[[Path], Any]] = {
    "images": lambda _: few_digits(),
    "table": datasets.table,
    "texts": datasets.texts,
}


class Tiny(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU())
        self.head = nn.Linear(8, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.body(images))
        return logits


@pytest.mark.parametrize("kind", KINDS)
def test_select_equals_the_service(kind: str, tmp_path: Path) -> None:
    data = open_dataset(given) if isinstance(given := KINDS[kind](tmp_path), str) else given
    run = {**QUICK, "learners": {**QUICK["learners"], "num_steps": 2, "num_snapshots": 2}}
    pretrained = lipt.pretrain(data, seed=3, run=run, progress=False)
    with Session(data) as session:
        ready = session.pretrain(run, seed=3)
        theta_p = safetensors.torch.load(session.client.weights(ready.run_id))
        assert theta_p.keys() == pretrained.theta_p.keys()
        assert all(torch.equal(value, pretrained.theta_p[name]) for name, value in theta_p.items())
        for strategy in STRATEGIES:
            expected = session.client.subset(ready.run_id, strategy, fraction=0.1)
            subset = pretrained.select(strategy, 0.1)
            assert (strategy, subset.digest) == (strategy, expected.digest)
            assert subset.fingerprint == expected.fingerprint
            _require_alike(subset, expected)
        # A tenth by `auto`, where nothing is said.
        default = session.client.subset(ready.run_id)
        assert pretrained.select().digest == default.digest == pretrained.select("auto", 0.1).digest
        expected = session.client.subset(ready.run_id, "milo", fraction=0.1, soft_labels=True)
        subset = pretrained.select("milo", 0.1, soft_labels=True)
        assert subset.soft_labels is not None
        assert subset.soft_labels.shape == (len(subset), len(pretrained.data.class_names))
        assert subset.digest == expected.digest
        _require_alike(subset, expected)
        expected_findings = session.client.diagnose().findings
    findings = lipt.diagnose(data, progress=False).findings
    assert findings.label_errors == expected_findings.label_errors


def _require_alike(subset: Subset, expected: Subset) -> None:
    """The manifest says the same, but for the run and what took how long."""
    ours, theirs = dict(subset.manifest), dict(expected.manifest)
    for name in ("run_id", "run_name", "weights_sha256", "features_sha256"):
        theirs.pop(name)
    for one in (ours, theirs):
        one.pop("costs")
        one["proxy"] = {**one["proxy"], "seconds": 0}
        one["run_config"] = {**one["run_config"], "model": ""}
        one["data"] = {**one["data"], "source": ""}
    assert ours == theirs


def test_learners_and_soup_are_available() -> None:
    pretrained = lipt.pretrain(few_digits(), "resnet8", run=QUICK, progress=False)
    assert len(pretrained.learners) == 2
    assert pretrained.soup.keys() == {0, 1}
    (best,) = (index for index, part in pretrained.soup.items() if part.position == 0)
    pruned = pretrained.learners[best]["conv1.weight"]
    assert 0 < int((pruned == 0).sum()) < pruned.numel()
    assert pretrained.theta_star.keys() == pretrained.theta_p.keys()


@pytest.mark.parametrize(
    ("strategy", "asked"),
    [
        ("uniform", {}),
        ("kcenter", {"labels": "none"}),
        ("kcenter", {"proxy": "ridge:patches"}),
        ("kcenter", {"features": np.zeros((240, 4)), "options": {"space": "features"}}),
        ("uniform", {"proxy": "ridge:patches", "soft_labels": True}),
    ],
)
def test_strategies_without_learners_train_none(strategy: str, asked: dict[str, Any]) -> None:
    pretrained = lipt.Pretrained(few_digits(), "resnet8", run=QUICK, progress=False)
    assert len(pretrained.select(strategy, 0.1, **asked)) == 24
    assert pretrained.seconds == {}


NO_LEARNER, ONE_SEED = "no learner was used", "any seed and model give this subset"
OTHER_SEED = "another seed may give another subset; no model was used"
UNNEEDED = "no learner is needed: their features cannot gain what training costs here"
OTHER_MODEL = "another seed or model may give another subset"
OWN_HEAD = "judged by a model with its own head"


def few_rows() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """A table of three classes that do not quite overlap."""
    draw = np.random.default_rng(0)
    labels_N = draw.integers(0, 3, 150)
    return (draw.normal(size=(150, 4)) + 2 * labels_N[:, None]).astype(np.float32), labels_N


@pytest.mark.parametrize("form", ["tensors", "file"])
def test_features_are_checked_once_and_tensors_are_not_packed(
    form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[str] = []

    def of_tensors(tensors: Weights, num_examples: int) -> UserFeatures:
        counted.append("tensors")
        return features_of_tensors(tensors, num_examples)

    def of_file(source: bytes, *, num_examples: int, max_bytes: int) -> UserFeatures:
        counted.append("file")
        return read_user_features(source, num_examples=num_examples, max_bytes=max_bytes)

    monkeypatch.setattr(workspace, "features_of_tensors", of_tensors)
    monkeypatch.setattr(workspace, "read_user_features", of_file)
    pretrained = lipt.Pretrained(few_rows(), run=QUICK, progress=False)
    features = {"features": torch.from_numpy(few_rows()[0])}
    given = features if form == "tensors" else pack(features)
    asked: dict[str, Any] = {"features": given, "proxy": "ridge:user"}
    for strategy in ("auto", "kcenter"):
        pretrained.select(strategy, 0.1, **asked)
    assert counted == [form]


@pytest.mark.parametrize(
    ("make", "strategy", "asked", "expected"),
    [
        (few_rows, "uniform", {}, [OTHER_SEED]),
        (
            *(few_rows, "auto", {"proxy": "ridge:columns", "fraction": 0.05}),
            ["columns", NO_LEARNER, ONE_SEED],
        ),
        (
            *(few_rows, "kcenter", {"labels": "none"}),
            ["judged by features (columns) without any label", NO_LEARNER, ONE_SEED],
        ),
        (
            *(few_rows, "kcenter", {"features": few_rows()[0], "options": {"space": "features"}}),
            ["judged by the request's own features", NO_LEARNER, ONE_SEED],
        ),
        # Its validation split is drawn.
        (few_rows, "glister", {"proxy": "ridge:columns"}, ["columns", NO_LEARNER, OTHER_SEED]),
        (few_digits, "auto", {"proxy": "ridge:patches"}, ["patches", NO_LEARNER, OTHER_SEED]),
        # No proxy can be better than one that is always right.
        (few_digits, "auto", {}, ["patches", UNNEEDED, OTHER_SEED]),
        (
            *(few_digits, "auto", {"proxy": "ridge:learners+patches"}),
            ["patches+learners", "2 learners took part", OTHER_MODEL],
        ),
        (
            *(few_digits, "kcenter", {}),
            [OWN_HEAD, "2 learners took part, merged into theta_p", OTHER_MODEL],
        ),
        (
            *(few_digits, "grand", {"options": {"pretraining": "epochs:1"}}),
            [OWN_HEAD, NO_LEARNER, OTHER_MODEL],
        ),
        (
            *(few_digits, "forgetting", {}),
            ["judged by outputs of the learners in training", "2 learners took part", OTHER_MODEL],
        ),
    ],
)
def test_findings_list_inputs_and_reasons(
    make: Callable[[], Any], strategy: str, asked: dict[str, Any], expected: list[str]
) -> None:
    asked = {"fraction": 0.1, **asked}
    subset = lipt.Pretrained(make(), run=QUICK, progress=False).select(strategy, **asked)
    judged, *others = expected
    if others and "judged" not in judged:
        facts = subset.manifest["proxy"]
        right = f"right on {facts['accuracy']:.1%} of the labels that it has not seen"
        mean = f"as a mean over classes; chance is {facts['chance']:.1%}"
        judged = f"judged by a ridge head on {judged}, {right}, {mean}"
    sentences = [judged, *others]
    # What the strategy has done comes before.
    at = subset.findings.index(judged)
    assert subset.findings[at : at + len(sentences)] == tuple(sentences)
    learned = any("took part" in sentence for sentence in expected)
    assert subset.manifest["uses_pretraining"] is learned
    if expected[-1] == ONE_SEED:
        other = lipt.Pretrained(make(), seed=1, run=QUICK, progress=False)
        assert other.select(strategy, **asked).digest == subset.digest


def test_the_recommended_alpha_has_its_reasons() -> None:
    pretrained = lipt.Pretrained(few_digits(), run=QUICK, progress=False)
    subset = pretrained.select("uniform", 0.1, proxy="ridge:patches", soft_labels=True)
    soft = subset.manifest["soft_labels"]
    of_all, alone = soft["accuracy_on_others"], soft["accuracy_of_chosen_alone"]
    assert subset.findings[0] == (
        f"recommended alpha {subset.recommended_alpha:.2g}: of the labels not chosen, the head of "
        f"all (patches) is right on {of_all:.1%}, a head of the chosen alone on {alone:.1%}"
    )


def test_a_module_s_weights_are_theta_star_and_unchanged() -> None:
    torch.manual_seed(0)
    module = Tiny()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    run = {**QUICK, "initialization": {"steps": 0}}
    pretrained = lipt.pretrain(few_digits(), module, run=run, progress=False)
    for now in (pretrained.theta_star, module.state_dict()):
        assert all(torch.equal(now[name], value) for name, value in before.items())


def test_two_model_functions_do_not_conflict() -> None:
    made: list[int] = []

    def make(num_classes: int) -> nn.Module:
        made.append(num_classes)
        return Tiny()

    first = lipt.Pretrained(few_digits(), make, run=QUICK, progress=False)
    second = lipt.Pretrained(few_digits(), Tiny(), run=QUICK, progress=False)
    assert first.model != second.model
    assert len(first.select("el2n", budget=7)) == len(second.select("el2n", budget=7)) == 7
    assert set(made) == {10}


def test_select_leaves_no_port_or_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(socket.socket, "bind", refuse)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    threads, before = _threads(), _this_process()
    subset = lipt.select(few_digits(), "resnet8", strategy="craig", run=QUICK, progress=False)
    assert len(subset) == 24
    assert _this_process() == before
    assert _threads() <= threads  # An earlier test's may end meanwhile.
    assert list(tmp_path.iterdir()) == []


def _threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if "Dummy" not in thread.name}


def _this_process() -> tuple[object, ...]:
    return (
        torch.get_num_threads(),
        torch.get_rng_state().tolist(),
        list(sys.path),
        signal.getsignal(signal.SIGINT),
        dict(os.environ),
    )


@pytest.mark.slow
def test_ctrl_c_interrupts_training() -> None:
    script = (
        "import lipt; from tests.lipt.digits import few_digits\n"
        "lipt.pretrain(few_digits(), 'resnet8', progress=True,\n"
        "    run={'learners': {'num_learners': 2, 'num_steps': 100000, 'batch_size': 16}})"
    )
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=root) as process:
        assert process.stderr is not None
        assert any("training learner" in line for line in process.stderr)
        process.send_signal(signal.SIGINT)
        assert "KeyboardInterrupt" in process.stderr.read()
    assert process.returncode != 0


WORDS = Column("", ColumnType.INT64, (20,), num_values=1000)
NUMBERS = Column("numbers", ColumnType.FLOAT32, (30,), standardized=True)
CATEGORIES = Column("categories", ColumnType.INT64, (4,), num_values=100)


@pytest.mark.parametrize(
    ("data", "model"),
    [
        ((ImageSpec(1, 8, 8),), "resnet8"),
        ((ImageSpec(3, 64, 64),), "resnet8"),
        ((ImageSpec(3, 65, 64),), "torchvision:resnet18"),
        ((ColumnsSpec((NUMBERS, CATEGORIES)),), "mlp"),
        ((ColumnsSpec((WORDS,)),), "text:tiny"),
        ((ColumnsSpec((WORDS,)), TargetKind.TOKENS), "text:causal"),
        # Whole numbers of which nothing is known are no words.
        ((ColumnsSpec((Column("", ColumnType.INT64, (20,)),)),), "mlp"),
    ],
)
def test_the_model_suits_the_kind_of_data(data: tuple[Any, ...], model: str) -> None:
    assert default_model(*data) == model


pytest.importorskip("sklearn")

SMALL_RUN: dict[str, Any] = {
    "learners": {"num_learners": 2, "num_steps": 3, "num_minibatches": 1, "batch_size": 64},
    "soup": {"batch_norm_examples": 32},
}


def planned(
    source: Any = "digits",
    strategy: str = "el2n",
    *,
    target_data: Any = None,
    run: dict[str, Any] | None = None,
    model: str | None = None,
    fraction: float = 0.1,
    **given: Any,
) -> Estimate:
    kind = kind_of_run(strategy, is_targeted=target_data is not None)
    opened = kind(source, model, run=SMALL_RUN if run is None else run, progress=False)
    request = opened.resolve(strategy, fraction, target_data=target_data)
    return estimate(opened, request, **{"timed": False, **given})


def stages(found: Estimate) -> dict[str, StageEstimate]:
    return {stage.name: stage for stage in found.stages}


def test_the_plan_has_the_images_of_a_run_s_admission() -> None:
    images = {name: stage.images for name, stage in stages(planned()).items()}
    # 2 learners of 3 steps on 64; each alone and their mean, on 200 + 32 images.
    learners, soup = 2 * 3 * 64, (2 + 1) * (200 + 32)
    assert images == {"theta*": 0, "shards": 0, "learners": learners, "soup": soup, "subset": 1797}
    trained = {**SMALL_RUN, "initialization": {"steps": 7, "batch_size": 100}}
    assert stages(planned(run=trained))["theta*"].images == 700
    twice = {**SMALL_RUN, "learners": {**SMALL_RUN["learners"], "redundancy": 2}}
    assert stages(planned(run=twice))["learners"].images == 2 * learners


def test_the_plan_has_the_bytes_that_are_transferred() -> None:
    opened = Pretrained("digits", "resnet8", run=SMALL_RUN, progress=False)
    config, dataset = opened.config, opened.data
    train_ids = split_validation(dataset.labels_N, config.validation, seed=0).train_ids
    shards = draw_shards(train_ids, config.learners, seed=0)
    cut = sum(len(pack_shard(dataset, ids)) for ids in shards)
    model = build_model("resnet8", num_classes=10, inputs=dataset.inputs, seed=0)
    sent = len(encode_weights(copy_to_cpu(model.state_dict()), config.learners.encoding))
    found = planned(model="resnet8")
    assert found.bytes_to_workers == pytest.approx(cut + sent, rel=0.05)
    assert found.bytes_from_workers == pytest.approx(2 * sent, rel=0.05)
    # theta* comes to each worker, a shard to each learner.
    two = planned(model="resnet8", num_workers=2)
    assert two.bytes_to_workers - found.bytes_to_workers == pytest.approx(sent, rel=0.05)
    assert planned(model="resnet8", num_workers=9).bytes_to_workers == two.bytes_to_workers
    with_snapshots = {**SMALL_RUN, "learners": {**SMALL_RUN["learners"], "num_snapshots": 2}}
    more = planned(model="resnet8", run=with_snapshots)
    assert more.bytes_from_workers == 3 * found.bytes_from_workers


def counted(
    name: str,
    data: DataDescription,
    *,
    proxy: str | None = None,
    options: dict[str, str] | None = None,
) -> tuple[int, int, int]:
    """Images, memory and signals' bytes, for a model without memory and a run of ten learners."""
    request = resolved(
        name,
        100,
        balanced=find_strategy(name).resolve_balance(None),
        given=options or {},
        proxy=SOUP if proxy is None else Proxy.parse(proxy),
    )
    config = RunConfig(learners=LearnersConfig(num_learners=10))
    [stage], size = plan_choice(request, config, data, ModelFigures(0, 0, 0), 64, batch_size=1)
    return total(stage.images), total(stage.memory), size


def images_of(number: int, size: int = 32) -> DataDescription:
    return described((number // 10,) * 10, ImageSpec(3, size, size))


@pytest.mark.parametrize(
    ("name", "options", "images", "signals_bytes"),
    [
        # 10 errors and 64 features in float32, and labels of eight bytes.
        ("el2n", {}, 5000, 5000 * (4 * 74 + 8)),
        ("uniform", {}, 0, 5000 * 8),
        # A gradient's norm; there is no pass of the model alone.
        ("grand", {"parameters": "all"}, 0, 5000 * (8 + 4)),
        # theta* and ten learners; two numbers of each.
        ("disagreement", {}, 11 * 5000, 5000 * (8 + 11 * 8)),
    ],
)
def test_the_plan_counts_a_strategy_s_passes(
    name: str, options: dict[str, str], images: int, signals_bytes: int
) -> None:
    found = counted(name, images_of(5000), options=options)
    assert (found[0], found[2]) == (images, signals_bytes)


def test_auto_makes_at_most_two_passes() -> None:
    # Patches of photographs and of their mirror images are one, the soup's features one.
    images, most, _ = counted("auto", images_of(5000), proxy="auto")
    assert images == 2 * 5000
    # A ridge head on patches alone: 2,048 columns, their sums in float64 and two copies.
    images, memory, _ = counted("auto", images_of(5000), proxy="ridge:patches")
    assert images == 5000
    assert 3 * 8 * 2048**2 < memory - PROCESS_BYTES < most


@pytest.mark.parametrize(("number", "pairs"), [(80_000, 4 * 8_000**2), (600_000, 2_750_000_000)])
def test_pairs_of_a_class_are_in_memory_up_to_a_limit(number: int, pairs: int) -> None:
    craig, el2n = (counted(name, images_of(number, 224))[1] for name in ("craig", "el2n"))
    assert craig - el2n == pairs


@pytest.mark.parametrize("source", ["digits", "table"])
def test_the_plan_scales_a_batch_s_seconds(source: str, tmp_path: Path) -> None:
    if source == "table":
        rows = "\n".join(f"{row % 7},{row % 3}.5,{row % 2}" for row in range(400))
        (tmp_path / "table.csv").write_text(f"a,b,c\n{rows}\n")
        source = f"csv:{tmp_path / 'table.csv'}?label=c"
    found = planned(source, timed=True)
    seconds = {stage.name: stage.seconds for stage in found.stages if stage.seconds is not None}
    assert seconds.keys() == {"learners", "soup", "subset"}
    assert all(taken > 0 for taken in seconds.values())
    assert "All images take" in "\n".join(lines_of(found))
    # As scripts have it: no NaN, and nothing that JSON has not.
    json.dumps(to_jsonable(found), allow_nan=False)


def test_the_plan_times_texts_for_a_target(tmp_path: Path) -> None:
    texts = "".join(json.dumps({"text": f"row {row} is short"}) + "\n" for row in range(200))
    (tmp_path / "texts.jsonl").write_text(texts)
    source = f"jsonl:{tmp_path}/texts.jsonl?text=text&max_length=8"
    found = planned(source, "loss_drop", target_data=source, run=None, timed=True)
    timed = {stage.name for stage in found.stages if stage.seconds is not None}
    assert timed == {"theta*", "learners", "soup", "target", "subset"}


@pytest.mark.parametrize(
    ("strategy", "trained", "passes", "numbers"),
    [
        # Losses and features under theta*, and losses after a learner on each of two parts.
        ("loss_drop", 2 * 10 * 64, 1 + 2, 64 + 1 + 2),
        ("rds_plus", 0, 1, 64 + 1),
        ("bm25", 0, 0, 0),
    ],
)
def test_the_plan_counts_learners_and_passes_for_a_target(
    strategy: str, trained: int, passes: int, numbers: int
) -> None:
    target = {"one": few_digits(50), "two": few_digits(60)}
    found = planned(few_digits(), strategy, model="resnet8", run={}, target_data=target)
    images = {stage.name: stage.images for stage in found.stages}
    assert images.get("target", 0) == trained
    assert images["subset"] == passes * 240
    assert found.signals_bytes == 240 * (8 + 4 * numbers)
    # The preset of a target: 400 steps of theta*, and one learner of a minibatch.
    assert (images["theta*"], images["learners"]) == (400 * 64, 64)


def test_a_refused_run_is_reported_and_not_timed() -> None:
    run = {**SMALL_RUN, "learners": {**SMALL_RUN["learners"], "num_steps": 2**31 - 1}}
    found = planned(run=run, timed=True)
    assert {stage.seconds for stage in found.stages} == {None}
    [why] = found.refused
    assert "Lower learners.num_steps to at most" in why
    assert f"refuses it: {why}" in "\n".join(lines_of(found))
    assert planned().refused == ()
    with pytest.raises(BudgetError, match=r"fraction 2\.0 is outside"):
        planned(fraction=2.0)
    with pytest.raises(ConfigError, match="5000 learners x 1 minibatch"):
        planned(run={"learners": {"num_learners": 5000}})


def lipt_plan(*words: str) -> subprocess.CompletedProcess[str]:
    return processes.run(["-m", "lipt.cli", "plan", *words, "--no-measure"])


def test_the_command_prints_a_table_or_json_of_the_settings() -> None:
    done = lipt_plan("--data", "digits", "--strategy", "uniform")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "digits: 1,797 examples of 1x8x8 images, resnet8, 180 by uniform"
    firsts = [line.split()[0] for line in lines[2:8]]
    assert firsts == ["stage", "theta*", "shards", "learners", "soup", "subset"]
    assert lines[-1] == "Nothing was timed."
    done = lipt_plan(
        *("--data", "digits", "--json", "--budget", "7", "--strategy", "gradmatch"),
        *("--num-learners", "3", "--set", "learners.batch_size=80", "--option", "ridge=0.5"),
    )
    told = json.loads(done.stdout)
    images = {stage["name"]: stage["images"] for stage in told["stages"]}
    # 1,597 digits to train on: 1597 // (3 x 80) minibatches in place of 32.
    assert images["learners"] == 3 * 6 * 80 * RunConfig().learners.num_steps
    assert "7 by gradmatch" in told["subject"]
    done = lipt_plan("--data", "digits", "--set", "learners")
    assert (done.returncode, "is not NAME=VALUE" in done.stderr) == (2, True)
