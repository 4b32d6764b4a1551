from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import lipt
from lipt.common.errors import ConfigError, DataError
from lipt.common.inputs.specs import ColumnsSpec, ImageSpec
from tests.lipt.digits import few_digits


def test_arrays_lists_and_names_are_the_same_data() -> None:
    images, labels = few_digits(50)
    pairs = list(zip(torch.from_numpy(images)[:, None], labels.tolist(), strict=True))
    opened = [lipt.open_dataset(form) for form in ((images, labels), pairs)]
    assert [one.inputs for one in opened] == [ImageSpec(1, 8, 8)] * 2
    assert opened[0].fingerprint == opened[1].fingerprint
    assert opened[0].full_fingerprint == opened[1].full_fingerprint
    assert len(lipt.open_dataset("digits-test")) == 355


def test_what_is_open_stays_as_it_is() -> None:
    data = lipt.open_dataset("digits-test")
    assert lipt.open_dataset(data) is data


def test_features_are_columns() -> None:
    data = lipt.open_dataset((np.zeros((6, 3), np.float32), [0, 1] * 3))
    assert isinstance(data.inputs, ColumnsSpec)
    assert str(data.inputs) == "float32[3]"


def test_a_name_may_import_its_own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "named_here.py").write_text(
        "import lipt\ndef data():\n    return lipt.open_dataset('digits-test')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    # What a function returns may be open already.
    assert lipt.open_dataset("named_here:data").source == "digits-test"
    with pytest.raises(ConfigError, match="open already, of 1x8x8 images"):
        lipt.open_dataset("named_here:data", image_size=16)


@pytest.mark.parametrize(
    ("data", "error", "words"),
    [
        ([], DataError, "holds no"),
        (5, ConfigError, "'data' returned a int, which is not a map-style data set"),
        (([[0.0]], [1, 2]), DataError, "1 examples"),
    ],
)
def test_what_is_no_data_is_refused(data: object, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        lipt.open_dataset(data)
