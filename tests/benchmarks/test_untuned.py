import csv
from pathlib import Path

import pytest

from benchmarks import untuned


def test_only_training_labels_are_noisy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [[str(row), "odd" if row % 2 else "even"] for row in range(1000)]
    made_up = (lambda: (["number", "label"], rows, "label=label")), 1
    monkeypatch.setitem(untuned.DATA, "made up", made_up)
    wrong = {}
    for source in untuned.written(tmp_path, "made up", noisy=True):
        path = Path(source.removeprefix("csv:").removesuffix("?label=label"))
        with path.open(newline="") as file:
            header, *found = csv.reader(file)
        assert header == ["number", "label"]
        wrong[path.stem, len(found)] = sum(rows[int(number)][1] != label for number, label in found)
    # 40% of 900 are drawn anew, and half of these change: 180, with a deviation of 12.
    assert wrong.pop(("test", 100)) == 0
    assert abs(wrong.pop(("train", 900)) - 180) < 60
    assert not wrong
