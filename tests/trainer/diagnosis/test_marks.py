"""A person's marks on suspected labels decide which examples stay, with which labels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from PIL import Image

import lipt
from lipt.common.errors import ConfigError, MarksError
from lipt.trainer.report.report import render_diagnosis
from tests.trainer.made_up_diagnosis import made_up_diagnosis, made_up_findings

if TYPE_CHECKING:
    from playwright.sync_api import Browser

NAMES = np.array(["cat", "dog"])
GIVEN = np.array([0, 0, 0, 0, 1, 1, 1, 1])


def pets() -> tuple[np.ndarray, np.ndarray]:
    images = np.random.default_rng(0).integers(0, 255, (8, 8, 8), np.uint8)
    return images, NAMES[GIVEN]


def marks_of(path: Path, *marks: dict[str, Any], data: Any = None, **changes: Any) -> Path:
    fingerprint = lipt.open_dataset(pets() if data is None else data).fingerprint
    content = {"version": 1, "fingerprint": fingerprint, "marks": marks, **changes}
    path.write_text(json.dumps(content))
    return path


ANSWERS = (
    {"row": 1, "answer": "right"},
    {"row": 3, "answer": "wrong"},
    {"row": 6, "answer": "other", "label": 0},
)


def test_right_labels_stay_wrong_ones_go_and_others_change(tmp_path: Path) -> None:
    images, labels = pets()
    marks = marks_of(tmp_path / "marks.json", *ANSWERS)
    cleaned = lipt.clean((images, labels), marks=marks)
    assert cleaned.indices.tolist() == [0, 1, 2, 4, 5, 6, 7]
    assert cleaned.labels.tolist() == [0, 0, 0, 1, 1, 0, 1]
    assert cleaned.classes == ("cat", "dog")
    assert [int(label) for _, label in cleaned] == cleaned.labels.tolist()
    assert np.array_equal(cleaned[5][0], images[6])
    # It is data like any other.
    opened = lipt.open_dataset(cleaned)
    assert opened.class_names == ("cat", "dog")
    assert opened.labels_N.tolist() == cleaned.labels.tolist()


def test_without_a_mark_the_diagnosis_decides(tmp_path: Path) -> None:
    data = pets()
    diagnosis = made_up_diagnosis(fingerprint=lipt.open_dataset(data).fingerprint)
    # Surplus: 2, 4 and 5. None is sure: half of 10% of eight labels.
    assert lipt.clean(data, diagnosis).indices.tolist() == diagnosis.clean().tolist()
    assert diagnosis.clean().tolist() == [0, 1, 3, 6, 7]
    marks = marks_of(tmp_path / "marks.json", *ANSWERS, {"row": 5, "answer": "right"})
    cleaned = lipt.clean(data, diagnosis, marks=marks)
    assert cleaned.indices.tolist() == [0, 1, 5, 6, 7]
    assert cleaned.labels.tolist() == [0, 0, 1, 0, 1]


def test_every_form_of_data_keeps_its_rows_and_labels(tmp_path: Path) -> None:
    images, labels = pets()
    pd = pytest.importorskip("pandas")
    pairs = list(zip(torch.from_numpy(images)[:, None], GIVEN.tolist(), strict=True))
    frame = pd.DataFrame({"size": np.arange(8.0), "label": labels})
    for data in (pairs, frame):
        cleaned = lipt.clean(data, marks=marks_of(tmp_path / "m.json", *ANSWERS, data=data))
        assert cleaned.labels.tolist() == [0, 0, 0, 1, 1, 0, 1]
        assert lipt.open_dataset(cleaned).labels_N.tolist() == cleaned.labels.tolist()
    row = lipt.clean(frame, marks=tmp_path / "m.json")[5]
    assert (float(row["input"]), int(row["label"])) == (6.0, 0)
    for number, (pixels, name) in enumerate(zip(images, labels, strict=True)):
        (tmp_path / "pets" / name).mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(tmp_path / "pets" / name / f"{number}.png")
    folder = f"imagefolder:{tmp_path / 'pets'}"
    marks = marks_of(tmp_path / "f.json", *ANSWERS, data=folder)
    cleaned = lipt.clean(folder, marks=marks)
    assert [int(row["label"]) for row in cleaned] == [0, 0, 0, 1, 1, 0, 1]
    # torchvision's data set of the same files has another fingerprint of its own.
    vision = pytest.importorskip("torchvision.datasets")
    files = vision.ImageFolder(folder.partition(":")[2])
    assert lipt.clean(files, marks=marks).labels.tolist() == cleaned.labels.tolist()


@pytest.mark.parametrize(
    ("marks", "changes", "words"),
    [
        ((), {"fingerprint": "0" * 64}, "belongs to data with fingerprint 000000000000, and data"),
        ((), {"version": 2}, r"holds no marks: version cannot be used"),
        (({"row": 1, "answer": "maybe"},), {}, r"holds no marks: marks.0.answer cannot be used"),
        (({"row": 8, "answer": "wrong"},), {}, "row 8: the data has 8 rows"),
        (({"row": 1, "answer": "wrong"},) * 2, {}, "row 1: it is marked more than once"),
        (({"row": 1, "answer": "other"},), {}, "row 1: the answer `other`, and no other, has"),
        (({"row": 1, "answer": "other", "label": 2},), {}, "class 2 is none of 2 classes"),
    ],
)
def test_marks_of_other_data_and_impossible_ones_are_refused(
    tmp_path: Path, marks: Any, changes: dict[str, Any], words: str
) -> None:
    path = marks_of(tmp_path / "marks.json", *marks, **changes)
    with pytest.raises(MarksError, match=words):
        lipt.clean(pets(), marks=path)


def test_what_cannot_be_cleaned_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="neither a diagnosis nor marks were given"):
        lipt.clean(pets())
    with pytest.raises(MarksError, match=r"none\.json cannot be read"):
        lipt.clean(pets(), marks=tmp_path / "none.json")
    with pytest.raises(MarksError, match="the diagnosis belongs to data"):
        lipt.clean(pets(), made_up_diagnosis())
    numbers = np.arange(16.0).reshape(8, 2), np.arange(8) / 7
    with pytest.raises(ConfigError, match="marks are of classes"):
        lipt.clean(numbers, marks=marks_of(tmp_path / "m.json", data=numbers))


def suspected(count: int) -> tuple[Any, Any]:
    """Data with so many suspects, the first the worst, and its diagnosis."""
    generator = np.random.default_rng(0)
    images = generator.integers(0, 255, (count, 8, 8), np.uint8)
    data = images, NAMES[np.arange(count) % 2]
    findings, columns = sized(count)
    fingerprint = lipt.open_dataset(data).fingerprint
    return data, made_up_diagnosis(findings, columns, fingerprint=fingerprint)


def sized(count: int) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    labels = np.arange(count, dtype=np.int32) % 2
    findings = made_up_findings()
    halves = [int((labels == label).sum()) for label in (0, 1)]
    findings |= {"num_examples": count, "class_counts": halves}
    findings["class_names"] = ["<script>alert(1)</script>", "dog"]
    findings["label_errors"]["num_suspects"] = count
    findings["duplicates"]["surplus"] = 0
    findings["outliers"] = {"count": 0, "ranked": []}
    columns = {
        "given_label": labels,
        "suggested_label": 1 - labels,
        "label_quality": np.linspace(0.01, 0.4, count, dtype=np.float32),
        "suspect": np.ones(count, np.uint8),
        "duplicate_of": np.arange(count, dtype=np.int32),
        "outlier_score": np.full(count, 0.5, np.float32),
    }
    return findings, columns


def test_marks_of_the_page_are_saved_as_a_file_that_clean_takes(
    browser: Browser, tmp_path: Path
) -> None:
    data, diagnosis = suspected(120)
    path = tmp_path / "diagnosis.html"
    path.write_text(render_diagnosis(diagnosis, lipt.open_dataset(data)))
    context = browser.new_context(viewport={"width": 390, "height": 844}, offline=True)
    page, said = context.new_page(), list[str]()
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("dialog", lambda dialog: said.append(dialog.message))
    page.goto(path.as_uri())
    shown = page.locator(".suspect:visible")
    assert shown.count() == 50
    assert page.get_by_text("1 to 50 of 120").is_visible()
    save = page.get_by_role("button", name="Save marks.json")
    assert save.is_disabled()

    group = page.get_by_role("group", name="label of row 0", exact=True)
    group.get_by_role("button", name="wrong").click()
    other = page.get_by_role("group", name="label of row 1", exact=True)
    other.get_by_role("button", name="right").click()
    other.get_by_label("other class").select_option(label="<script>alert(1)</script>")
    assert other.get_by_role("button", name="right").get_attribute("aria-pressed") == "false"
    # A second click takes an answer back.
    third = page.get_by_role("group", name="label of row 2", exact=True)
    for _ in range(2):
        third.get_by_role("button", name="wrong").click()
    for _ in range(2):
        page.get_by_role("button", name="Next").click()
    assert page.get_by_role("button", name="Next").is_disabled()
    assert shown.count() == 20
    last = page.get_by_role("group", name="label of row 119", exact=True)
    last.get_by_role("button", name="right").click()
    assert page.get_by_text("3 of 120 marked").is_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390

    with page.expect_download() as download:
        save.click()
    assert download.value.suggested_filename == "marks.json"
    download.value.save_as(tmp_path / "marks.json")
    assert json.loads((tmp_path / "marks.json").read_text())["marks"] == [
        {"row": 0, "answer": "wrong"},
        {"row": 1, "answer": "other", "label": 0},
        {"row": 119, "answer": "right"},
    ]
    context.close()
    assert said == []
    cleaned = lipt.clean(data, marks=tmp_path / "marks.json")
    assert cleaned.indices.tolist() == list(range(1, 120))
    assert cleaned.labels[0] == 0
