"""What a node does of a pass; Ray itself is in tests/end_to_end/test_ray_data.py."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from lipt.common.blobs.name import BlobName
from lipt.common.config.scoring_task import ScoringTask
from lipt.common.data import open_dataset
from lipt.common.errors import OtherDataError
from lipt.common.images.formats import ImageFormat
from lipt.common.models import build_model, lay_out
from lipt.common.process.devices import device_name, kind_of, versions_on
from lipt.common.signals.ranges import read_range, score_range
from lipt.common.weights.container import pack
from lipt.coordinator.compute.ray_scoring import OnNodes, RangeScorer
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
