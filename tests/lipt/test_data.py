from __future__ import annotations

import gc
from pathlib import Path

import pytest
import torch
from torch import nn

import lipt
from lipt.common.errors import ConfigError, DataError
from lipt.common.imports import load_factory
from lipt.common.inputs.specs import ImageSpec
from lipt.common.targets.kinds import TargetKind
from lipt.data import MODULE, Given
from tests.lipt.digits import few_digits
from tests.trainer.made_up import made_up_subset


def test_arrays_lists_and_names_are_the_same_data() -> None:
    images, labels = few_digits(50)
    pairs = list(zip(torch.from_numpy(images)[:, None], labels.tolist(), strict=True))
    opened = [lipt.open_dataset(form) for form in ((images, labels), pairs)]
    assert [one.inputs for one in opened] == [ImageSpec(1, 8, 8)] * 2
    assert opened[0].fingerprint == opened[1].fingerprint
    assert opened[0].full_fingerprint == opened[1].full_fingerprint
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


def test_a_model_is_found_by_its_name_as_long_as_it_is_kept() -> None:
    module = nn.Linear(2, 3)
    given = Given(module)
    made = load_factory(given.name, allowed_modules=[MODULE])(num_classes=3)
    assert torch.equal(made.weight, module.weight)
    assert made.weight is not module.weight
    name = given.name
    del given
    gc.collect()
    with pytest.raises(ConfigError, match="has no function"):
        load_factory(name, allowed_modules=[MODULE])
