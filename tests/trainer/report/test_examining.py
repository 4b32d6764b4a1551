from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from lipt.common.data import open_dataset
from lipt.common.errors import DiagnosisError
from lipt.trainer.report import examining
from lipt.trainer.report.examining import examine, file_paths
from tests.trainer.made_up_diagnosis import made_up_diagnosis


@pytest.fixture
def pets(tmp_path: Path) -> str:
    """Four cats and four dogs as files of 8 x 8 pixels; row 4 * c + i is class c, file i."""
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        for number in range(4):
            pixels = np.full((8, 8, 3), 20 * number, np.uint8)
            Image.fromarray(pixels).save(tmp_path / name / f"{number}.png")
    return f"imagefolder:{tmp_path}"


def test_what_is_shown_has_pictures_and_the_names_of_files(pets: str) -> None:
    dataset = open_dataset(pets)
    shown = examine(made_up_diagnosis(fingerprint=dataset.fingerprint), dataset)
    assert (shown.source, shown.has_pictures, shown.small) == (pets, True, True)
    assert [(view.row, view.given, view.suggested) for view in shown.suspects] == [
        (6, "dog", "cat"),
        (1, "cat", "dog"),
    ]
    assert [view.file for view in shown.suspects] == ["2.png", "1.png"]
    assert [view.row for view in shown.outliers] == [7]
    pictures = [view.picture for view in (*shown.suspects, *shown.outliers)]
    assert all(picture.startswith("data:image/png;base64,") for picture in pictures)
    assert file_paths(dataset) == [
        str(Path(pets.partition(":")[2]) / name / f"{number}.png")
        for name in ("cat", "dog")
        for number in range(4)
    ]


def test_groups_whose_labels_disagree_come_first() -> None:
    shown = examine(made_up_diagnosis())
    # 3, 4 and 5 are a cat and two dogs; 0 and 2 are both cats.
    assert [[view.row for view in group.examples] for group in shown.groups] == [[3, 4, 5], [0, 2]]
    assert [group.conflicting for group in shown.groups] == [True, False]


def test_no_more_of_a_group_is_shown_than_there_is_room_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(examining, "NUM_PER_GROUP", 2)
    monkeypatch.setattr(examining, "NUM_GROUPS", 1)
    (group,) = examine(made_up_diagnosis()).groups
    assert group.count == 3
    assert [view.row for view in group.examples] == [3, 4]


def test_without_data_there_are_no_pictures() -> None:
    shown = examine(made_up_diagnosis())
    assert (shown.source, shown.has_pictures) == ("pets", False)
    assert [view.picture for view in shown.suspects] == ["", ""]


def test_the_matrix_counts_suspects_by_label() -> None:
    assert examine(made_up_diagnosis()).matrix == ((0, 1), (1, 0))


def test_other_data_is_refused() -> None:
    digits = open_dataset("digits-test")
    with pytest.raises(DiagnosisError, match=r"f{64} \(8 examples\), but digits-test has"):
        examine(made_up_diagnosis(), digits)
    with pytest.raises(DiagnosisError, match="leave --data out"):
        examine(made_up_diagnosis(fingerprint=digits.fingerprint), digits)


def test_data_that_is_no_files_has_no_paths() -> None:
    assert file_paths(open_dataset("digits-test")) is None
