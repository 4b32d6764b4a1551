"""What a node does of a pass; Ray itself is in tests/end_to_end/test_ray_data.py."""

from __future__ import annotations

import signal
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from lipt.common.blobs.name import BlobName
from lipt.common.config.scoring_task import ScoringTask
from lipt.common.data import open_dataset
from lipt.common.errors import ConfigError, OtherDataError, SignalsError
from lipt.common.images.formats import ImageFormat
from lipt.common.models import build_model, lay_out
from lipt.common.process.devices import device_name, kind_of, versions_on
from lipt.common.signals.ranges import read_range, score_range
from lipt.common.weights.container import pack
from lipt.coordinator.compute import ray_scoring
from lipt.coordinator.compute.ray_scoring import (
    OnNodes,
    RangeScorer,
    require_room,
    scored_on_ray,
)
from lipt.coordinator.compute.scan import Scan

pa = pytest.importorskip("pyarrow")
pytest.importorskip("sklearn")

CPU = torch.device("cpu")
DIGITS = open_dataset("digits")
MODEL = lay_out(
    build_model("resnet8", num_classes=10, inputs=DIGITS.inputs, seed=3), "resnet8", CPU
).eval()
HERE = kind_of(device_name(CPU), versions_on(CPU))
SCAN = Scan(
    ScoringTask(
        model="resnet8",
        num_classes=10,
        image=ImageFormat(1, 8, 8, mean=(0.5,), std=(0.25,)),
        fingerprint=DIGITS.fingerprint,
        start=0,
        stop=len(DIGITS),
        batch_size=64,
        threads=1,
    ),
    BlobName.of(b"theta_p"),
    num_features=64,
    range_examples=128,
    kind=HERE,
    lipt="",
)
GIVEN = OnNodes("auto", "digits", (), pack(MODEL.state_dict()), 2**24, num_gpus=0)


def test_a_node_gives_the_files_of_the_ranges_that_it_is_asked_for() -> None:
    found = RangeScorer(SCAN, GIVEN)(pa.table({"index": [14, 2]}))
    assert found["index"].to_pylist() == [14, 2]
    for index, content in zip((14, 2), found["content"].to_pylist(), strict=True):
        task = SCAN.task(index)
        errors, features = read_range(content, task, SCAN.num_features)
        here = score_range(MODEL, DIGITS, task, device=CPU)
        assert torch.equal(errors, here["errors"])
        assert torch.equal(features, here["features"])


def test_a_node_with_other_data_scores_nothing() -> None:
    other = replace(SCAN, whole=replace(SCAN.whole, fingerprint="f" * 64))
    with pytest.raises(OtherDataError, match=r"digits has the fingerprint .* on this node"):
        RangeScorer(other, GIVEN)


def test_a_node_of_another_kind_scores_only_where_any_may() -> None:
    with pytest.raises(OtherDataError, match="the coordinator another: the last digits"):
        RangeScorer(replace(SCAN, kind="another"), GIVEN)
    RangeScorer(replace(SCAN, kind=""), GIVEN)


def test_data_that_changes_while_it_is_scored_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    scorer = RangeScorer(SCAN, GIVEN)
    monkeypatch.setattr("lipt.common.data.Dataset.has_changed", lambda _: True)
    with pytest.raises(OtherDataError, match="have changed meanwhile"):
        scorer(pa.table({"index": [0]}))


def node(*, alive: bool = True, **resources: float) -> dict[str, object]:
    return {"Alive": alive, "Resources": resources}


@pytest.mark.parametrize(
    ("nodes", "num_cpus", "num_gpus", "fits"),
    [
        ([node(CPU=2.0)], 2, 0, True),
        ([node(CPU=1.0), node(CPU=4.0)], 2, 0, True),
        ([node(CPU=1.0), node(CPU=1.0)], 2, 0, False),
        ([node(CPU=8.0, alive=False), node(CPU=1.0)], 2, 0, False),
        ([node(CPU=8.0), node(CPU=1.0, GPU=1.0)], 2, 1, False),
        ([node(CPU=8.0, GPU=1.0)], 2, 1, True),
        ([], 1, 0, False),
    ],
)
def test_a_range_has_to_fit_one_node(
    nodes: list[dict[str, object]], num_cpus: int, num_gpus: int, fits: bool
) -> None:
    if fits:
        require_room(nodes, num_cpus, num_gpus)
    else:
        with pytest.raises(ConfigError, match="of the cluster's"):
            require_room(nodes, num_cpus, num_gpus)


class Rows:
    """What stands for Ray and its data sets, whose nodes give these rows."""

    def __init__(self, *rows: tuple[int, bytes]) -> None:
        self.rows = rows
        self.is_up = False

    def init(self, **_: object) -> None:
        self.is_up = True
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def shutdown(self) -> None:
        self.is_up = False

    def nodes(self) -> list[dict[str, object]]:
        return [node(CPU=1.0)]

    def from_items(self, _: object) -> Rows:
        return self

    repartition = from_items

    def map_batches(self, _: object, **__: object) -> Rows:
        return self

    def iter_rows(self) -> list[dict[str, object]]:
        return [{"index": index, "content": content} for index, content in self.rows]

    class DataContext:
        @staticmethod
        def get_current() -> SimpleNamespace:
            return SimpleNamespace()


def on(monkeypatch: pytest.MonkeyPatch, rows: Rows) -> None:
    monkeypatch.setattr(ray_scoring, "import_extra", lambda *_, **__: rows)


def test_ray_leaves_what_the_process_does_at_sigterm(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = Rows((2, b"a"), (0, b"b"))
    on(monkeypatch, rows)
    before = signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        assert list(scored_on_ray(SCAN, (0, 2), GIVEN)) == [(2, b"a"), (0, b"b")]
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)
    assert not rows.is_up


@pytest.mark.parametrize(
    "rows", [[(1, b"")], [(0, b""), (0, b"")], [(0, bytes(SCAN.max_file_bytes + 1))], [(-1, b"")]]
)
def test_what_nobody_asked_for_is_not_taken(
    rows: list[tuple[int, bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = Rows(*rows)
    on(monkeypatch, given)
    with pytest.raises(SignalsError, match="nobody asked for"):
        list(scored_on_ray(SCAN, (0, 2), GIVEN))
    assert not given.is_up
