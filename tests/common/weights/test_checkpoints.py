import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lipt.common.errors import WeightsError
from lipt.common.weights.checkpoints import read_checkpoint, read_torch_file, state_dict_in
from lipt.common.weights.files import pack
from lipt.common.weights.specs import TensorSpec, Weights, specs_of

BODY: Weights = {
    "conv.weight": torch.arange(8.0).reshape(2, 1, 2, 2),
    "bn.running_mean": torch.tensor([1.0, 2.0]),
    "bn.num_batches_tracked": torch.tensor(5),
}
HEAD: Weights = {"fc.weight": torch.ones(3, 2), "fc.bias": torch.ones(3)}
MODEL = BODY | HEAD
LIKE = specs_of(MODEL)


def read(
    weights: Weights, like: dict[str, TensorSpec] = LIKE, *, new_head: bool = True
) -> tuple[Weights, str]:
    return read_checkpoint(
        pack(weights), like=like, head=HEAD.keys(), new_head=new_head, max_bytes=10**6
    )


def under(prefix: str, weights: Weights) -> Weights:
    return {f"{prefix}{name}": tensor for name, tensor in weights.items()}


def same(first: Weights, second: Weights) -> bool:
    return first.keys() == second.keys() and all(
        torch.equal(tensor, second[name]) for name, tensor in first.items()
    )


def test_a_whole_checkpoint_is_taken_and_a_new_head_is_not_even_where_it_fits() -> None:
    taken, said = read(MODEL, new_head=False)
    assert same(taken, MODEL)
    assert said == "theta* begins with 5 tensors of the weights given."
    taken, said = read(MODEL)
    assert same(taken, BODY)
    assert said == (
        "theta* begins with 3 tensors of the weights given; new: 'fc.weight', 'fc.bias'."
    )


@pytest.mark.parametrize(
    "own_head",
    [
        {},
        {"fc.weight": torch.ones(7, 2), "fc.bias": torch.ones(7)},
        {"classifier.weight": torch.ones(7, 2)},
        {"projector.0.weight": torch.ones(4, 2), "projector.1.running_mean": torch.ones(4)},
    ],
    ids=["none", "other classes", "another name", "another kind"],
)
def test_a_checkpoint_may_have_another_head_or_none(own_head: Weights) -> None:
    taken, said = read(BODY | own_head)
    assert same(taken, BODY)
    left_over = [name for name in own_head if not name.startswith("fc.")]
    assert said.endswith(
        f"; left over: {', '.join(map(repr, left_over))}." if left_over else "'fc.bias'."
    )


@pytest.mark.parametrize("prefix", ["module.", "model.", "backbone.", "state.model.encoder."])
def test_a_prefix_before_all_names_is_taken_off(prefix: str) -> None:
    assert same(read(under(prefix, MODEL), new_head=False)[0], MODEL)
    # What is beside the backbone is left over.
    taken, said = read(under(prefix, BODY) | {"head.weight": torch.ones(2, 2)})
    assert same(taken, BODY)
    assert "left over: 'head.weight'" in said


def test_narrower_numbers_are_widened_and_wider_ones_refused() -> None:
    half = {**BODY, "conv.weight": BODY["conv.weight"].to(torch.bfloat16)}
    assert same(read(half)[0], BODY)
    double = {**BODY, "conv.weight": BODY["conv.weight"].double()}
    with pytest.raises(WeightsError, match=r"'conv.weight' is float64\[2, 1, 2, 2\], the model"):
        read(double)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"conv.weight": torch.ones(2, 3, 2, 2)}, r"'conv.weight' is float32\[2, 3, 2, 2\], the"),
        ({"layer9.weight": torch.ones(2, 2, 1, 1)}, "'layer9.weight' is .*, the model has no such"),
        ({"conv.bias": torch.ones(2)}, "'conv.bias' is .*, the model has no such tensor"),
    ],
    ids=["another shape", "a layer more", "in a part of the body"],
)
def test_another_body_is_refused_with_a_new_head_too(change: Weights, words: str) -> None:
    with pytest.raises(WeightsError, match=words) as refused:
        read(BODY | change)
    words = "But for the head ('fc.bias', 'fc.weight') all has to be the model's"
    assert words in str(refused.value)


def test_what_differs_in_the_head_alone_suggests_a_new_one() -> None:
    for other in ({"fc.weight": torch.ones(7, 2)}, {"classifier.weight": torch.ones(7, 2)}):
        with pytest.raises(WeightsError, match=r"That is the head alone.*--new-head"):
            read(BODY | other, new_head=False)
    with pytest.raises(WeightsError, match="or name the model that they belong to") as refused:
        read({"conv.weight": torch.ones(1)} | HEAD, new_head=False)
    assert "--new-head" not in str(refused.value)


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


def test_the_linter_refuses_what_could_run_a_file_s_code() -> None:
    lines = ["import pickle", "torch.load('m', weights_only=True)", "torch.hub.load('a/b', 'c')"]
    lines.append("eval('1')")
    ruff = [sys.executable, "-m", "ruff", "check", "--output-format", "concise", "--stdin-filename"]
    checked = subprocess.run(
        [*ruff, "coordinator/rpc/blobs_too.py", "--select", "S102,S301,S302,S307,TID251", "-"],
        input="\n".join(["import torch", *lines, ""]),
        cwd=_ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    found = {int(line.split(":")[1]) for line in checked.stdout.splitlines() if ".py:" in line}
    assert found == {2, 3, 4, 5}, checked.stderr


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


def test_none_or_several_state_dicts_are_refused_with_the_keys() -> None:
    for content, words in (
        ({"online": W, "target": W}, "'online', 'target': save model.state"),
        ({"epoch": 3}, "'epoch'"),
        ([1, 2], "nothing"),
    ):
        with pytest.raises(ValueError, match=f"no state dict among {words}"):
            state_dict_in(content)
