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
from lipt.common.tensor_files import Weights, pack
from lipt.core import workspace
from lipt.core.signals.signals import UserFeatures, features_of_tensors, read_user_features
from lipt.data.inputs.specs import Column, ColumnsSpec, ColumnType, ImageSpec
from lipt.data.loading import open_dataset
from lipt.data.targets.kinds import TargetKind
from lipt.models.registry import default_model
from lipt.trainer.subsets.subset import Subset
from tests.golden import datasets
from tests.lipt.digits import QUICK, few_digits
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
