import json
from pathlib import Path
from typing import Any

import pytest
import torch

from lipt.common.data import Dataset
from lipt.common.errors import ConfigError
from lipt.trainer.distillation import SyntheticSet, distill
from lipt.trainer.distillation.distillation import make_stage
from lipt.trainer.distillation.synthetic import RealExamples
from tests.trainer.distillation.conftest import small


def made(
    digits: Dataset, networks: Any, synthetic: SyntheticSet | None = None, told: Any = None
) -> SyntheticSet:
    real = RealExamples.of(digits, None, at_least=1)
    synthetic = synthetic or SyntheticSet.empty((1, 8, 8), digits.class_names)
    return make_stage(synthetic, real, networks, told or (lambda *_: None))


def test_matching_brings_the_gradients_nearer(digits: Dataset, networks_of: Any) -> None:
    # One network and no training: all matches are at one state, with all of the real images.
    settings = small(networks=1, matches=30, steps_between=0, real_batch=999, augmentation="none")
    lines: list[str] = []
    made(digits, networks_of(settings), told=lines.append)
    distances = [float(line.split()[-1]) for line in lines]
    assert len(distances) == 30
    assert distances[-1] < distances[0] / 2


def test_the_stages_before_stay_as_they_are(digits: Dataset, networks_of: Any) -> None:
    networks = networks_of(small())
    first = made(digits, networks)
    kept = first.images_NCHW.clone()
    second = made(digits, networks, first)
    assert torch.equal(first.images_NCHW, kept)
    assert torch.equal(second.images_NCHW[:10], kept)
    assert not torch.equal(second.images_NCHW[10:], kept)
    assert second.stages_N.tolist() == [0] * 10 + [1] * 10


class KilledError(Exception):
    """The process is gone."""


@pytest.mark.parametrize("model", ["linear", "tests.trainer.distillation.conftest:dropping_model"])
def test_what_was_killed_goes_on_after_its_last_whole_stage(
    digits: Dataset, tmp_path: Path, model: str
) -> None:
    settings = small(per_class=3, stages=3)

    def run(name: str, tell: Any = lambda _: None) -> SyntheticSet:
        return distill(
            digits, model, settings, tmp_path / name, allowed_modules=("tests",), tell=tell
        )

    whole = run("whole")

    def kill(line: str) -> None:
        if line.startswith("stage 2 of 3: match 3"):
            raise KilledError

    with pytest.raises(KilledError):
        run("cut", kill)
    assert SyntheticSet.load(tmp_path / "cut").num_stages == 1
    lines: list[str] = []
    resumed = run("cut", lines.append)
    assert lines[0].startswith("stage 2 of 3: match 1 of 4, distance ")
    assert resumed.digest == whole.digest
    # What is finished is not done again.
    lines.clear()
    assert run("cut", lines.append).digest == whole.digest
    assert lines == []


def test_the_manifest_says_of_what_each_stage_was_made(
    digits: Dataset, tmp_path: Path, subset_of: Any
) -> None:
    later = subset_of(digits, range(0, len(digits), 4))
    for subset, numbers in ((None, [1442, len(later)]), (later, [len(later)] * 2)):
        out = tmp_path / str(numbers[0])
        synthetic = distill(digits, "linear", small(), out, subset=subset, later=later)
        manifest = json.loads((out / "manifest.json").read_text())
        assert [stage["real_images"] for stage in manifest["stages"]] == numbers
        assert (manifest["digest"], manifest["source"]) == (synthetic.digest, "digits-train")
        assert manifest["identity"]["settings"]["per_class"] == 2
        assert manifest["identity"]["data"] == digits.fingerprint


@pytest.mark.parametrize(
    ("changes", "model", "complaint"),
    [
        ({"seed": 1}, "linear", "its settings.seed is 0, now it is 1. Name another folder"),
        ({}, "mlp", "its model is 'linear', now it is 'mlp'"),
    ],
)
def test_another_distillations_folder_is_refused(
    digits: Dataset, tmp_path: Path, changes: dict[str, Any], model: str, complaint: str
) -> None:
    distill(digits, "linear", small(), tmp_path)
    with pytest.raises(ConfigError, match=complaint):
        distill(digits, model, small(**changes), tmp_path)
