from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lipt.common.weights.checkpoints import read_torch_file, state_dict_in

_ROOT = Path(__file__).parents[3]


class Touch:
    """Unpickling it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (self.path,))


def test_an_object_is_refused_and_not_made(tmp_path: Path) -> None:
    torch.save({"w": Touch(tmp_path / "touched")}, tmp_path / "evil.pt")
    with pytest.raises(ValueError, match="Weights only load failed"):
        read_torch_file(tmp_path / "evil.pt")
    assert not (tmp_path / "touched").exists()


@pytest.mark.parametrize(
    "line",
    [
        "import pickle",
        "from pickle import loads",
        "import marshal",
        "import shelve",
        "import dill",
        "import cloudpickle",
        "import joblib",
        "import torch\n\nmodel = torch.load('model.pt', weights_only=True)",
        "from torch import load\n\nmodel = load('model.pt')",
        "import torch\n\nmodel = torch.hub.load('a/b', 'c')",
        "result = eval('1')",
        "exec('1')",
    ],
)
def test_the_linter_refuses_what_could_run_a_file_s_code(line: str) -> None:
    ruff = [sys.executable, "-m", "ruff", "check", "--quiet", "--stdin-filename"]
    checked = subprocess.run(
        [*ruff, "coordinator/rpc/blobs_too.py", "--select", "S102,S301,S302,S307,TID251", "-"],
        input=f"{line}\n",
        cwd=_ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 1, checked.stderr


W = {"fc.weight": torch.ones(2, 2)}


@pytest.mark.parametrize(
    "content",
    [
        W,
        W | {"epoch": 3},
        {"state_dict": W, "epoch": 3, "state_dict_ema": {"fc.weight": torch.zeros(2, 2)}},
        {"model": W, "optimizer": {"state": {}}},
        {"weights": W, "step": 7},
    ],
    ids=["plain", "with a number", "state_dict", "model", "the only one"],
)
def test_a_state_dict_is_found_at_the_top_or_one_level_below(content: object) -> None:
    found = state_dict_in(content)
    assert list(found) == ["fc.weight"]
    assert found["fc.weight"].tolist() == [[1.0, 1.0], [1.0, 1.0]]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"online": W, "target": W}, "no state dict among 'online', 'target': save model.state"),
        ({"epoch": 3}, "no state dict among 'epoch'"),
        ([1, 2], "no state dict among nothing"),
    ],
)
def test_none_or_several_state_dicts_are_refused_with_the_keys(content: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        state_dict_in(content)
