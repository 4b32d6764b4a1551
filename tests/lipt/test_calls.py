import dataclasses
import io
import json
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_wine
from torch import nn
from typer.testing import CliRunner

import lipt
from lipt import Subset
from lipt.arrow import Scorer, select_from
from lipt.cli.commands.select import app as select_app
from lipt.common.config.run_config import RunConfig
from lipt.common.errors import BudgetError, ConfigError, DataError, SignalsError, UnknownNameError
from lipt.data.dataset import Dataset
from lipt.data.inputs.specs import ImageSpec
from lipt.data.loading import open_dataset
from lipt.data.targets.kinds import TargetKind
from lipt.pretraining import own_model
from lipt.trainer import progress as module
from lipt.trainer.progress import as_html, progress_display
from lipt.trainer.views import ProgressView
from tests.lipt.digits import QUICK, few_digits
from tests.session import Session
from tests.trainer.made_up import made_up_subset


def test_a_tenth_of_the_data_is_chosen_and_the_same_again() -> None:
    data = few_digits()
    first, second = (lipt.select(data, strategy="el2n", run=QUICK, seed=1) for _ in range(2))
    assert isinstance(first, Subset)
    assert len(first) == 24
    assert first.digest == second.digest
    assert len(first.apply(data)) == 24
    assert first.manifest["data"]["num_examples"] == 240
    with pytest.raises(BudgetError, match=r"budget 500 is outside 1\.\.240"):
        lipt.select(few_digits(), budget=500, strategy="el2n", run=QUICK)
    with pytest.raises(UnknownNameError, match=r"no model 'resnet9'\. Did you mean resnet8"):
        lipt.select(few_digits(), "resnet9")
    with pytest.raises(ConfigError, match=r"learners\.num_step: there is no such setting"):
        lipt.select(few_digits(), run={"learners": {"num_step": 1}})


@pytest.mark.parametrize(
    "ambient",
    [
        lambda: torch.autocast("cpu", torch.bfloat16),
        torch.inference_mode,
        lambda: torch.device("meta"),
    ],
)
def test_the_callers_context_changes_no_subset(ambient: Any) -> None:
    images, labels = few_digits()
    asked: dict[str, Any] = {"strategy": "craig", "run": QUICK, "progress": False}
    expected = lipt.select((images, labels), **asked)
    pixels = torch.from_numpy(images)
    with ambient():
        # Tensors that are made in inference mode are no others.
        data = pixels * 1, torch.from_numpy(labels)
        found = lipt.select(data, **asked)
        assert found.digest == expected.digest
        assert len(found.dataset(data)) == 24
        assert lipt.pretrain(data, run=QUICK, progress=False).theta_p.keys()


def test_a_model_that_cannot_be_used_is_refused_before_training() -> None:
    frozen = nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).requires_grad_(requires_grad=False)
    with pytest.raises(ConfigError, match="requires_grad is False for all its 2 parameters"):
        lipt.select(few_digits(), frozen, strategy="craig", run=QUICK, progress=False)


def test_a_compiled_module_gives_the_subset_of_the_module_and_its_names() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))
    compiled: Any = torch.compile(net, backend="eager")
    asked: dict[str, Any] = {"run": QUICK, "progress": False}
    assert lipt.pretrain(few_digits(), compiled, **asked).theta_p.keys() == net.state_dict().keys()
    for strategy in ("craig", "grand"):
        digests = {
            lipt.select(few_digits(), model, strategy=strategy, **asked).digest
            for model in (net, compiled, nn.DataParallel(net))
        }
        assert len(digests) == 1


def test_data_is_diagnosed(tmp_path: Path) -> None:
    images, labels = few_digits()
    images[9] = images[8]
    labels[9] = labels[8]
    page = tmp_path / "diagnosis.html"
    diagnosis = lipt.diagnose((images, labels), page=page, progress=False)
    assert len(diagnosis) == 240
    assert f"Data {diagnosis.fingerprint}" in page.read_text()
    assert "data:image/png;base64," in page.read_text()
    assert [8, 9] in [group.tolist() for group in diagnosis.duplicate_groups()]


def test_strategies_are_compared_with_random() -> None:
    images, labels = few_digits(300)
    comparison = lipt.compare(
        (images[:200], labels[:200]),
        (images[200:], labels[200:]),
        strategies=["el2n"],
        baselines=["uniform", "everything"],
        proxy="ridge:patches",
        soft_labels=True,
        seeds=2,
        recipe={"steps": 2, "batch_size": 16, "augmentation": "none"},
        run=QUICK,
        progress=False,
    )
    names = {"uniform", "el2n", "everything"}
    names |= {f"{name}+soft" for name in names}
    assert {row.strategy for row in comparison.outcomes} == names
    assert len(comparison.trials) == 12
    alone, soft = (
        next(one for one in comparison.trials if one.strategy == name)
        for name in ("uniform", "uniform+soft")
    )
    # The same examples, whose soft labels are part of the digest and had to be computed.
    assert alone.num_examples == soft.num_examples
    assert alone.digest != soft.digest
    assert alone.choosing_seconds == 0 < soft.choosing_seconds
    assert comparison.verdict in str(comparison)
    assert "everything +soft" in comparison._repr_html_()
    with pytest.raises(ConfigError, match="stepz: there is no such setting"):
        lipt.compare(few_digits(), few_digits(), recipe={"stepz": 3})


def test_arrays_lists_and_names_are_the_same_data() -> None:
    images, labels = few_digits(50)
    pairs = list(zip(torch.from_numpy(images)[:, None], labels.tolist(), strict=True))
    opened = [lipt.open_dataset(form) for form in ((images, labels), pairs)]
    assert [one.inputs for one in opened] == [ImageSpec(1, 8, 8)] * 2
    assert opened[0].fingerprint == opened[1].fingerprint
    assert len(lipt.open_dataset("digits-test")) == 355


def test_whole_numbers_are_targets_of_regression_if_asked() -> None:
    examples, years = torch.arange(40.0)[:, None], torch.arange(40) % 4
    for targets in (years, years.float(), years[:, None]):
        assert lipt.open_dataset((examples, targets)).class_names == ("0", "1", "2", "3")
        opened = lipt.open_dataset((examples, targets), target="number")
        assert opened.target.kind is TargetKind.NUMBER
        assert opened.targets_N[:, 0].tolist() == years.tolist()
        # A subset of it is recognized in the arrays.
        subset = made_up_subset([3, 5], fingerprint=opened.fingerprint)
        assert len(subset.apply((examples, targets))) == 2
    # Of tensors, too, fractions are numbers, and ten is above two.
    assert lipt.open_dataset((examples, examples / 4)).target.kind is TargetKind.NUMBER
    assert lipt.open_dataset((examples, torch.arange(40) % 11)).class_names[-2:] == ("9", "10")
    for other in ("digits-test", opened, [(examples, 1)]):
        with pytest.raises(ConfigError, match=r"='number' (cannot be set on|was given toge)"):
            lipt.open_dataset(other, target="number")


def test_a_name_may_import_its_own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "named_here.py").write_text(
        "import lipt\ndef data():\n    return lipt.open_dataset('digits-test')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    # What a function returns may be open already.
    assert lipt.open_dataset("named_here:data").source == "digits-test"
    with pytest.raises(ConfigError, match="open already, of 1x8x8 images"):
        lipt.open_dataset("named_here:data", image_size=16)


def test_a_live_model_is_copied_and_named_by_its_class() -> None:
    module = nn.Linear(2, 3)
    own = own_model(module)
    made = own.make(num_classes=3)
    assert isinstance(made, nn.Linear)
    assert torch.equal(made.weight, module.weight)
    assert made.weight is not module.weight
    assert (own.name, own_model(TwoHeads).name) == ("own:Linear", "own:TwoHeads")


class TwoHeads(nn.Module):
    """Its classifier is not its last linear layer, and its outputs are a dictionary."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.classifier, self.auxiliary = nn.Linear(8, width), nn.Linear(8, 1)

    def forward(self, images_BCHW: torch.Tensor) -> dict[str, torch.Tensor]:
        rows_BD = images_BCHW.mean(dim=(1, 2))
        return {"logits": self.classifier(rows_BD), "other": self.auxiliary(rows_BD)}


@pytest.mark.parametrize("model", [TwoHeads, TwoHeads(10)])
def test_a_models_head_can_be_named(model: Any) -> None:
    asked: dict[str, Any] = {"strategy": "el2n", "run": QUICK, "progress": False}
    assert len(lipt.select(few_digits(), model, head="classifier", **asked)) == 24
    with pytest.raises(ConfigError, match=r"layer 'auxiliary'.*name the classifier: head=NAME"):
        lipt.select(few_digits(), model, **asked)
    with pytest.raises(ConfigError, match=r"'classifer'\. Did you mean classifier\? Name one of"):
        lipt.select(few_digits(), model, head="classifer", **asked)
    with pytest.raises(ConfigError, match="names a layer of your own module"):
        lipt.select(few_digits(), "resnet8", head="fc", **asked)


def test_every_public_name_exists() -> None:
    assert [name for name in lipt.__all__ if not hasattr(lipt, name)] == []
    assert set(lipt.__all__) <= set(dir(lipt))
    assert lipt.__version__ == metadata.version("lipt")
    with pytest.raises(AttributeError, match="module 'lipt' has no attribute 'Trainer'"):
        lipt.Trainer  # noqa: B018


def printed(*arguments: str) -> str:
    return subprocess.check_output([sys.executable, *arguments], text=True, timeout=60)


@pytest.mark.parametrize(
    ("statement", "unwanted"),
    [
        ("import lipt", {"torch", "grpc", "numpy", "pydantic", "importlib.metadata"}),
        ("from lipt import Client, Subset", {"torch", "typer"}),
        ("from lipt import RunView", {"torch", "grpc", "numpy", "pydantic"}),
        ("import lipt.common.rpc.health_check, lipt.common.tensor_header", {"torch"}),
    ],
)
def test_importing_lipt_is_fast(statement: str, unwanted: set[str]) -> None:
    assert not unwanted & set(
        printed("-c", f"import sys; {statement}; print(*sys.modules)").split()
    )


@pytest.mark.parametrize("module", ["lipt.cli", "lipt.coordinator", "lipt.worker"])
def test_every_program_says_its_version_at_once_and_h_is_help(module: str) -> None:
    tell = "import atexit, sys; atexit.register(lambda: print('torch' in sys.modules)); "
    run = f"runpy.run_module({module!r}, run_name='__main__')"
    code = f"{tell}import runpy; sys.argv = ['it', '--version']; {run}"
    assert printed("-c", code).splitlines() == [f"lipt {lipt.__version__}", "False"]
    text = printed("-m", module, "-h")
    assert "--version" in text
    assert text == printed("-m", module, "--help")


def test_long_work_reports_progress_every_ten_seconds(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with progress_display(shown=False) as show:
        show(ProgressView("selecting", 1, 2))
    # A start, then two readings per report, and one more for a printed line.
    times = iter([0.0, 9.0, 9.0, 11.0, 11.0, 11.0, 15.0, 15.0])
    monkeypatch.setattr(module, "monotonic", lambda: next(times))
    with progress_display(shown=None) as show:
        for done in (1, 2, 3):
            show(ProgressView("selecting", done, 4))
    assert capsys.readouterr() == ("", "lipt: selecting 2/4, about 10 s left\n")


def test_a_notebook_has_a_bar_that_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    cell = SimpleNamespace(update=shown.append)
    ipython: Any = ModuleType("IPython")
    ipython.get_ipython = lambda: SimpleNamespace(kernel=object())
    display: Any = ModuleType("IPython.display")
    display.HTML, display.display = str, lambda html, display_id: cell
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    with progress_display(shown=None) as show:
        show(ProgressView("<b>", 1, 2))
    assert shown == ["<progress value='1' max='2'></progress> &lt;b&gt; 1/2", ""]
    assert as_html(ProgressView("waiting", 0, 0), "waiting") == "<progress></progress> waiting"


STRATEGIES = ("el2n", "grand", "entropy", "craig", "gradmatch", "moderate", "uniform")


@dataclasses.dataclass(frozen=True)
class Known:
    scorer: Scorer
    data: Dataset
    subsets: dict[str, Subset]


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Known]:
    path = tmp_path_factory.mktemp("weights") / "theta_p.safetensors"
    run = {**QUICK, "evaluation_threads": 1}
    with Session(few_digits(), "resnet8") as session:
        ready = session.pretrain(run, seed=3)
        session.client.save_weights(path)
        subsets = {
            name: session.client.subset(ready.run_id, name, fraction=0.1, proxy="soup")
            for name in STRATEGIES
        }
        scorer = Scorer.of(ready.config, session.data, path)
        yield Known(scorer, session.data, subsets)


def batch_of(known: Known, ids: range) -> Any:
    images = [_png(image[0]) for image in known.data.images(torch.tensor(ids))]
    labels = known.data.labels_N[list(ids)].tolist()
    return pa.RecordBatch.from_pydict({"id": list(ids), "label": labels, "image": images})


def _png(image_HW: torch.Tensor) -> bytes:
    file = io.BytesIO()
    Image.fromarray(image_HW.numpy()).save(file, "png")
    return file.getvalue()


def batches(known: Known, *ends: int) -> list[Any]:
    return [
        batch_of(known, range(start, end))
        for start, end in zip((0, *ends), (*ends, 240), strict=False)
    ]


def chosen(known: Known, table: Any, strategy: str) -> str:
    scorer = known.scorer
    has = select_from(table, strategy, 0.1, scorer.seed, threads=scorer.threads)
    return has.digest


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_scoring_in_parts_gives_the_coordinator_s_subset(known: Known, strategy: str) -> None:
    scored = list(known.scorer.scores(batches(known, 7, 100, 101)))
    assert chosen(known, pa.Table.from_batches(scored), strategy) == known.subsets[strategy].digest


def test_whole_batches_give_the_same_bits(known: Known, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Scorer, "batch_size", 100)
    scorer = known.scorer
    at_once = pa.Table.from_batches(scorer.scores(batches(known)))
    parts = [scorer.scores([batch]) for batch in batches(known, 100, 200)]
    scored = [batch for part in reversed(parts) for batch in part]
    assert [len(batch) for batch in scored] == [40, 100, 100]
    assert pa.Table.from_batches(scored).sort_by("id").equals(at_once)


def test_unusable_batches_are_refused(known: Known, tmp_path: Path) -> None:
    whole = batch_of(known, range(4))
    png = _png(torch.zeros(8, 8, dtype=torch.uint8))
    broken = pa.array([png, png, b"none", png], pa.binary())
    for message, place, column in (
        (r"'image' is int64", 2, whole["id"]),
        (r"a label is no number of the 10 classes", 1, pa.array([10] * 4)),
        (r"image 2 of the record batch \(id 2\) cannot be used", 2, broken),
    ):
        wrong = whole.set_column(place, whole.schema.names[place], column)
        with pytest.raises(DataError, match=message):
            list(known.scorer.scores([wrong]))
    missing = whole.drop_columns(["image"])
    with pytest.raises(DataError, match="no 'image'"):
        list(known.scorer.scores([missing]))
    table = open_dataset("breast_cancer-train")
    with pytest.raises(ConfigError, match="scores images with one class each"):
        Scorer.of(RunConfig(), table, tmp_path / "none")
    table = pa.Table.from_batches(known.scorer.scores(batches(known)))
    with pytest.raises(DataError, match=r"the table's 239 rows are not 0\.\.238"):
        select_from(table.slice(1), "el2n", 0.1)
    with pytest.raises(SignalsError, match="no probabilities of the learners"):
        select_from(table, "forgetting", 0.1)


FLAGS = ("--set", "learners.num_learners=2", "--set", "learners.num_steps=1")


@pytest.fixture
def wine(tmp_path: Path) -> str:
    data: Any = load_wine(as_frame=True)
    data.frame.to_csv(tmp_path / "wine.csv", index=False)
    return f"csv:{tmp_path / 'wine.csv'}?label=target"


def test_the_command_equals_the_library_call(wine: str, tmp_path: Path) -> None:
    out = tmp_path / "s.npy"
    asked = (wine, "--fraction", "0.1", "--strategy", "el2n", "--seed", "3", *FLAGS)
    told = CliRunner().invoke(select_app, [*asked, "--out", str(out)])
    assert told.exit_code == 0, told.stderr
    run = {"learners": {"num_learners": 2, "num_steps": 1}}
    expected = lipt.select(wine, fraction=0.1, strategy="el2n", seed=3, run=run, progress=False)
    first, second = told.stdout.splitlines()
    assert first == f"{out}: 18 examples by el2n, digest {expected.digest}"
    assert second == "; ".join(expected.findings[:3])
    assert Subset.load(out).digest == expected.digest
    assert np.load(out).tolist() == expected.indices.tolist()
    as_json = CliRunner().invoke(select_app, [*asked, "--out", str(out), "--json"])
    assert json.loads(as_json.stdout)["digest"] == expected.digest


def test_chosen_rows_are_a_file_of_json_lines(wine: str, tmp_path: Path) -> None:
    file, out = tmp_path / "wine.csv", tmp_path / "chosen.jsonl"
    asked = (str(file), "--target", "target", "--budget", "5", "--strategy", "uniform")
    told = CliRunner().invoke(select_app, [*asked, "--out", str(out)])
    assert told.exit_code == 0, told.stderr
    assert "a .jsonl has no manifest" in told.stdout
    header, *lines = file.read_text().splitlines()
    expected = lipt.select(wine, budget=5, strategy="uniform", progress=False)
    assert [json.loads(line) for line in out.read_text().splitlines()] == [
        dict(zip(header.split(","), lines[row].split(","), strict=True)) for row in expected.indices
    ]


def test_a_tables_file_is_opened_by_its_target(wine: str, tmp_path: Path) -> None:
    asked = ("--fraction", "0.1", "--strategy", "uniform", "--out", str(tmp_path / "s.npy"))
    for data in (tmp_path / "wine.csv", f"csv:{tmp_path / 'wine.csv'}"):
        told = CliRunner().invoke(select_app, [str(data), "--target", "target", *asked])
        assert told.exit_code == 0, told.stderr
    assert Subset.load(tmp_path / "s.npy").manifest["data"]["source"] == wine
    told = CliRunner().invoke(select_app, [str(tmp_path / "wine.csv"), "--target", "targt", *asked])
    assert "Did you mean target?" in str(told.exception)
