import dataclasses
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from lipt.arrow import Scorer, select_from
from lipt.common.config.run_config import RunConfig
from lipt.common.data import Dataset, open_dataset
from lipt.common.errors import ConfigError, DataError, SignalsError
from lipt.trainer import Subset
from tests.lipt.digits import QUICK, few_digits
from tests.session import Session

pa = pytest.importorskip("pyarrow")

STRATEGIES = ("el2n", "grand", "entropy", "craig", "gradmatch", "moderate", "uniform")


@dataclasses.dataclass(frozen=True)
class Known:
    """A scorer, its data, and what a coordinator has chosen of it."""

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
def test_the_subset_is_the_coordinator_s_own(known: Known, strategy: str) -> None:
    scored = list(known.scorer.scores(batches(known, 7, 100, 101)))
    assert chosen(known, pa.Table.from_batches(scored), strategy) == known.subsets[strategy].digest


def test_parts_that_begin_with_a_batch_of_the_pass_give_the_same_bits(
    known: Known, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Scorer, "batch_size", 100)
    scorer = known.scorer
    at_once = pa.Table.from_batches(scorer.scores(batches(known)))
    parts = [scorer.scores([batch]) for batch in batches(known, 100, 200)]
    scored = [batch for part in reversed(parts) for batch in part]
    assert [len(batch) for batch in scored] == [40, 100, 100]
    assert pa.Table.from_batches(scored).sort_by("id").equals(at_once)


def test_what_cannot_be_scored_is_refused(known: Known, tmp_path: Path) -> None:
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


def test_a_table_that_is_not_of_all_examples_is_refused(known: Known) -> None:
    table = pa.Table.from_batches(known.scorer.scores(batches(known)))
    with pytest.raises(DataError, match=r"the table's 239 rows are not 0\.\.238"):
        select_from(table.slice(1), "el2n", 0.1)
    with pytest.raises(SignalsError, match="needs the learners' view"):
        select_from(table, "forgetting", 0.1)
