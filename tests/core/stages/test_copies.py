from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from lipt.common.blobs.blob import BlobName
from lipt.common.config.run_config import RunConfig
from lipt.common.requests import Proxy
from lipt.coordinator.compute.context import Context
from lipt.coordinator.compute.jobs.selection import DiagnoseData
from lipt.coordinator.compute.messages import Progressed
from lipt.core.diagnosis.diagnosis import DiagnosisFile
from lipt.core.stages.diagnosis import matches_of
from lipt.core.stages.resolve import Sources
from lipt.data.dataset import Dataset
from lipt.data.inputs.specs import Column, ColumnType, ImageFormat
from lipt.data.loading import load
from lipt.data.sources.rows import ColumnRows
from tests.digits import digits_settings
from tests.in_memory import in_memory
from tests.resolved import selection_job

CONFIG = RunConfig(model="resnet8", seed=3, evaluation_threads=1)
NOWHERE = BlobName.of(b"weights that nobody has")
MakeContext = Callable[..., Context]
PARTS = {"looking at all examples", "looking for near-duplicates"}


@pytest.fixture
def reports() -> list[str]:
    return []


@pytest.fixture
def make_context(tmp_path: Path, reports: list[str]) -> MakeContext:
    """A process on one state directory and a hundred digits.

    Row 7 is row 3 with another label, and row 9 a brighter row 4.
    """

    def make(state: str = "state") -> Context:
        (tmp_path / state).mkdir(exist_ok=True)
        settings = digits_settings(tmp_path / state, "digits-test")
        context = Context(
            settings,
            send=lambda news: reports.append(news.activity if isinstance(news, Progressed) else ""),
        )
        plain = context.dataset
        images_NCHW, labels_N = plain.images(torch.arange(100)), plain.labels_N[:100].clone()
        images_NCHW[7] = images_NCHW[3]
        labels_N[7] = (labels_N[3] + 1) % 10
        images_NCHW[9] = (images_NCHW[4].float() * 0.9 + 10).clamp(0, 255).to(torch.uint8)
        vars(context)["dataset"] = in_memory(
            "copies", plain.class_names, labels_N, "print", images_NCHW
        )
        return context

    return make


def diagnose(context: Context) -> object:
    """All that a diagnosis says but for its proxy."""
    sources = Sources(CONFIG, None, None)
    diagnosed = DiagnoseData(sources, Proxy.parse("ridge:patches")).run(context)
    found = DiagnosisFile.load(context.blobs.verified_path(diagnosed.blob))
    columns = {name: values.tolist() for name, values in found.columns.items()}
    return columns, found.findings.model_copy(update={"proxy": {}})


def select(context: Context) -> object:
    """The bytes of a subset by `auto`, of the same signals as the diagnosis's."""
    image = ImageFormat(1, 8, 8, mean=(0.5,), std=(0.25,))
    proxy = Proxy.parse("ridge:patches")
    where: Any = {"config": CONFIG, "inputs": image, "weights": NOWHERE}
    return selection_job("auto", 60, balanced=True, proxy=proxy, **where).run(context).blob


def test_near_duplicates_share_a_group_across_labels(make_context: MakeContext) -> None:
    copies = matches_of(make_context(), cpu_threads=1)
    assert copies.duplicate_group_N[7] == copies.duplicate_group_N[3] == 3
    assert copies.duplicate_group_N[9] == copies.duplicate_group_N[4] == 4
    assert (copies.exact_N[7], copies.exact_N[9]) == (3, 9)
    assert len(copies.duplicate_group_N.unique()) >= 95


@pytest.mark.parametrize(("first", "second"), [(diagnose, select), (select, diagnose)])
def test_a_second_request_reads_cached_matches(
    make_context: MakeContext,
    reports: list[str],
    monkeypatch: pytest.MonkeyPatch,
    first: Callable[[Context], object],
    second: Callable[[Context], object],
) -> None:
    alone = second(make_context("another state"))
    first(make_context())
    assert set(reports) >= PARTS
    reports.clear()
    context = make_context()
    reads: list[int] = []
    read = Dataset.images

    def counted(dataset: Dataset, ids: torch.Tensor) -> torch.Tensor:
        reads.append(len(ids))
        return read(dataset, ids)

    monkeypatch.setattr(Dataset, "images", counted)
    assert second(context) == alone
    assert reads == []
    assert PARTS.isdisjoint(reports)


def test_columns_are_duplicates_only_if_equal(make_context: MakeContext) -> None:
    context = make_context()
    values = torch.tensor([[1.0, 2.0], [1.0, 2.5], [1.0, 2.0], [3.0, 2.0]])
    column = Column("x", ColumnType.FLOAT32, (2,))
    rows = ColumnRows("mine", ("a", "b"), torch.tensor([0, 1, 1, 0]), (column,), {"x": values})
    vars(context)["dataset"] = load(rows)
    copies = matches_of(context, cpu_threads=1)
    assert copies.duplicate_group_N.tolist() == copies.exact_N.tolist() == [0, 1, 0, 3]
