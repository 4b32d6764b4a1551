from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from lipt.common.blobs.blob import BlobName
from lipt.common.config.run_config import RunConfig
from lipt.common.errors import DataError, OtherDataError, StateError
from lipt.common.requests import Proxy
from lipt.common.tensor_files import pack
from lipt.coordinator.compute import context as contexts
from lipt.coordinator.compute.context import Context, LightContext, with_kept_quarantine
from lipt.coordinator.compute.jobs.pretraining import DescribeData
from lipt.coordinator.compute.jobs.selection import SelectSubset
from lipt.coordinator.compute.messages import MAX_LIGHT_BYTES, HeavyJobError, Order
from lipt.core.kept_values import KeptValue, Key
from lipt.data.loading import open_dataset
from tests.coordinator.compute.jobs.test_selection import job_of
from tests.digits import digits_context, digits_settings


def paint(path: Path, brightness: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((8, 8), brightness, np.uint8)).save(path)


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    """Two classes of two images, of which every one counts in a sampled fingerprint."""
    for number, name in enumerate(("cat/0", "cat/1", "dog/0", "dog/1")):
        paint(tmp_path / "pets" / f"{name}.png", 50 * number)
    return tmp_path / "pets"


@pytest.fixture
def context(tmp_path: Path, pets: Path) -> Context:
    settings = digits_settings(tmp_path, f"imagefolder:{pets}")
    return Context(settings, send=lambda _: None)


@dataclass(frozen=True)
class Do:
    """A job that does something, and gives the brightness of the first image."""

    action: Callable[[], object] = lambda: None

    def run(self, context: Context) -> int:
        self.action()
        return int(context.dataset.rows.raw(0)[0])


def fingerprint_of(pets: Path) -> str:
    return open_dataset(f"imagefolder:{pets}").fingerprint


def test_job_on_other_data_is_refused_before_it_begins(context: Context) -> None:
    begun: list[bool] = []
    with pytest.raises(OtherDataError, match=f"{'f' * 64} is needed. Put the run's own data"):
        Order(Do(lambda: begun.append(True)), "f" * 64).run(context)
    assert begun == []


def test_replaced_data_is_opened_again(
    context: Context, pets: Path, caplog: pytest.LogCaptureFixture
) -> None:
    own = fingerprint_of(pets)
    assert Order(Do(), own).run(context) == 0
    paint(pets / "cat" / "0.png", 200)
    other = fingerprint_of(pets)
    with pytest.raises(OtherDataError, match=f"has the fingerprint {other} now, and {own} is"):
        Order(Do(), own).run(context)
    assert Order(Do(), other).run(context) == 200
    paint(pets / "cat" / "0.png", 0)
    assert Order(Do(), own).run(context) == 0
    assert caplog.text.count("have changed: it is opened again") == 2
    # Also where it is replaced while the job runs.
    with pytest.raises(OtherDataError, match="Put the run's own data back"):
        Order(Do(lambda: paint(pets / "dog" / "1.png", 1)), own).run(context)


@dataclass(frozen=True)
class Text(KeptValue):
    """The smallest value that can be kept."""

    text: str


def keep(context: Context, made: list[str], during: Callable[[], object] = lambda: None) -> None:
    def compute() -> Text:
        during()
        made.append("text")
        return Text("text")

    # As of all dependencies, the data is looked at before anything is computed.
    context.cached(Key(Text, "texts", (len(context.dataset),)), compute)


def test_results_on_data_that_changed_meanwhile_are_not_cached(
    context: Context, pets: Path
) -> None:
    made: list[str] = []
    keep(context, made, lambda: paint(pets / "cat" / "0.png", 9))
    context.require_data(fingerprint_of(pets))
    keep(context, made)
    keep(context, made)
    assert len(made) == 2


pytest.importorskip("sklearn")
AUTO = Proxy(None)
DIGITS = open_dataset("digits")


def quarantined(folder: Path, *ids: int) -> tuple[int, ...]:
    return with_kept_quarantine(replace(DIGITS, quarantined=ids), folder).quarantined


def test_a_repaired_image_stays_excluded_and_a_newly_broken_one_is_refused(tmp_path: Path) -> None:
    for broken in ((3, 8), (8,), ()):
        assert quarantined(tmp_path, *broken) == (3, 8)
    with pytest.raises(DataError, match=r"^2 images of digits cannot be used .* made: 5, 9\."):
        quarantined(tmp_path, 3, 5, 9)


@pytest.mark.parametrize("content", ["", "{}", '["a"]', "[1", "\x00"])
def test_a_damaged_cache_file_is_not_used(tmp_path: Path, content: str) -> None:
    quarantined(tmp_path, 3)
    (file,) = tmp_path.iterdir()
    file.write_text(content)
    with pytest.raises(StateError, match="Restore it from a backup"):
        quarantined(tmp_path, 3)


CONFIG = RunConfig(model="resnet8")


@pytest.fixture(scope="module")
def heavy(tmp_path_factory: pytest.TempPathFactory) -> Context:
    return digits_context(tmp_path_factory.mktemp("state"))


@pytest.fixture(scope="module")
def theta_p(heavy: Context) -> BlobName:
    return heavy.blobs.put_bytes(pack(heavy.new_model(CONFIG).state_dict()))


@pytest.fixture
def select(theta_p: BlobName) -> Callable[..., SelectSubset]:
    def job(strategy: str, **changes: Any) -> SelectSubset:
        own = {"config": CONFIG, "weights": theta_p, "budget": 20}
        return job_of(strategy, **{**own, "balanced": strategy != "uniform", **changes})

    return job


@pytest.fixture
def light(heavy: Context) -> LightContext:
    known = DescribeData().run(heavy)
    return LightContext(heavy.settings, lambda _: None, known)


def test_the_fingerprint_depends_on_the_labels(heavy: Context, light: LightContext) -> None:
    assert torch.equal(light.dataset.labels_N, heavy.dataset.labels_N)
    assert light.dataset.labels_N.dtype is torch.int64
    for name in ("fingerprint", "inputs", "class_names", "source"):
        assert getattr(light.dataset, name) == getattr(heavy.dataset, name)
    with pytest.raises(HeavyJobError):
        light.dataset.images(torch.tensor([0]))
    with pytest.raises(HeavyJobError):
        light.dataset.raw_bytes(0)


@pytest.mark.parametrize("strategy", ["uniform", "uniform_per_class", "grand", "el2n", "ccs"])
def test_the_light_process_selects_the_same_subsets(
    heavy: Context,
    light: LightContext,
    select: Callable[..., SelectSubset],
    strategy: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = select(strategy)
    expected = job.run(heavy)
    assert job.run(light) == expected
    monkeypatch.setattr(contexts, "MAX_LIGHT_BYTES", 1000)
    if "uniform" not in strategy:
        with pytest.raises(HeavyJobError):
            job.run(light)


def test_the_light_process_computes_no_signals_and_loads_no_backbone(
    light: LightContext, select: Callable[..., SelectSubset]
) -> None:
    later = BlobName.of(b"later weights")
    for changes in ({"weights": later}, {"proxy": Proxy.parse("ridge:patches")}, {"proxy": AUTO}):
        with pytest.raises(HeavyJobError):
            select("grand", **changes).run(light)
    assert light.backbone is None
    settings = light.settings.model_copy(update={"backbone": "torchvision:resnet18@missing"})
    with pytest.raises(HeavyJobError):
        select("grand", proxy=AUTO).run(replace(light, settings=settings))


def test_evicted_signals_need_the_heavy_queue(
    heavy: Context,
    light: LightContext,
    select: Callable[..., SelectSubset],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def gone(*_: object, **__: object) -> Path:
        raise FileNotFoundError

    select("grand").run(heavy)
    for find in (gone, lambda *_, **__: heavy.signals_dir / "gone"):
        monkeypatch.setattr(contexts, "find_cached", find)
        with pytest.raises(HeavyJobError):
            select("grand").run(light)


SMALL, LARGE = BlobName("0" * 64, 1000), BlobName("0" * 64, MAX_LIGHT_BYTES + 1)


@pytest.mark.parametrize(
    ("strategy", "features", "light"),
    [
        ("uniform", None, True),
        ("uniform", SMALL, True),
        ("grand", None, True),
        ("moderate", SMALL, True),
        ("moderate", LARGE, False),
        ("facility_location", None, False),
        # Pairs are the data set's own unless the request has others.
        ("clip_score", None, False),
        ("clip_score", SMALL, True),
        ("auto", None, False),
    ],
)
def test_a_job_is_light_by_its_strategy_and_inputs(
    select: Callable[..., SelectSubset], strategy: str, features: BlobName | None, light: bool
) -> None:
    assert select(strategy, features=features).is_light is light
