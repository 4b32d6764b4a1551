import io
import json
import math
import pickle
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from lipt.common.blobs.blob import BlobName
from lipt.common.errors import BlobTooLargeError, WeightsError
from lipt.common.tensor_files import (
    TensorSpec,
    Weights,
    copy_to_cpu,
    non_finite,
    pack,
    packed_name,
    read_container,
    read_weights,
    specs_of,
    unusable,
    write_packed,
)
from lipt.common.tensor_header import require_safetensors
from lipt.models.checkpoints import read_checkpoint, read_torch_file, state_dict_in

WEIGHTS = {
    "conv.weight": torch.arange(24.0).reshape(2, 3, 4),
    "bn.num_batches_tracked": torch.tensor(7),
    "fc.bias": torch.tensor([1.0, -0.0], dtype=torch.bfloat16),
}
LIKE = specs_of(WEIGHTS)


def test_reads_what_the_library_wrote(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    safetensors.torch.save_file(WEIGHTS, path)
    require_safetensors(path)
    require_safetensors(path.read_bytes())
    weights = read_weights(path, like=LIKE, max_bytes=10_000)
    assert all(torch.equal(weights[name], WEIGHTS[name]) for name in WEIGHTS)


def test_tensors_have_the_name_of_their_file_without_it() -> None:
    transposed = {"features": torch.arange(6.0).reshape(2, 3).T}
    for tensors in (WEIGHTS, transposed, {"empty": torch.empty(0, 3)}):
        assert packed_name(tensors) == BlobName.of(pack(tensors))


def test_the_first_three_differences_are_named_with_both_values() -> None:
    found = {
        "conv.weight": torch.zeros(2, 3, 5),
        "fc.bias": torch.zeros(2),
        "head": torch.zeros(1),
        "tail": torch.zeros(1),
    }
    with pytest.raises(WeightsError) as caught:
        read_weights(pack(found), like=LIKE, max_bytes=10_000)
    assert str(caught.value) == (
        "the weights differ from the model's in 5 tensors: "
        "'conv.weight' is float32[2, 3, 5], the model has float32[2, 3, 4]; "
        "'bn.num_batches_tracked' is missing, the model has int64[]; "
        "'fc.bias' is float32[2], the model has bfloat16[2] and 2 more. "
        "Give weights of this model, or name the model that they belong to."
    )


LIMITS = {"max_bytes": 10_000, "max_tensors": 3}


def file_of(header: Any, values: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + values


def entry(dtype: str = "F32", shape: Any = (1,), offsets: Any = (0, 4)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def test_bytes_of_a_tiny_example_are_those_of_the_specification() -> None:
    # The larger item comes first; 107 bytes of JSON are padded to 112.
    header = (
        b'{"b":{"dtype":"F32","shape":[],"data_offsets":[0,4]},'
        b'"a":{"dtype":"U8","shape":[2,1],"data_offsets":[4,6]}}'
    )
    assert pack({"a": torch.tensor([[7], [8]], dtype=torch.uint8), "b": torch.tensor(1.5)}, {}) == (
        struct.pack("<Q", 112) + header.ljust(112) + struct.pack("<f2B", 1.5, 7, 8)
    )
    with pytest.raises(WeightsError, match=r"'w' is torch.complex64.*Convert it to one of"):
        pack({"w": torch.ones(1, dtype=torch.complex64)}, {})


MALFORMED = {
    "empty": (b"", "0 bytes are too few"),
    "header beyond the end": (struct.pack("<Q", 99) + b"{}", "99 bytes does not fit 10"),
    "header of 2**63 bytes": (struct.pack("<Q", 2**63) + b"{}", "does not fit"),
    "not JSON": (file_of(b"{nothing}"), "not JSON"),
    "a name twice": (file_of(b'{"a":{},"a":{}}'), "occurs twice"),
    "deep": (file_of(b'{"a":' + b"[" * 1500), "not JSON"),
    "metadata is a number": (file_of({"__metadata__": {"a": 1}}), "'a': Input should be .* string"),
    "metadata is a list": (file_of({"__metadata__": [1]}), "should be a valid dictionary"),
    "another field": (file_of({"w": entry() | {"more": 1}}, b"1234"), "'w.more': Extra"),
    "unknown dtype": (file_of({"w": entry("C64")}, b"1234"), "the unknown dtype 'C64'"),
    "negative size": (file_of({"w": entry(shape=[-1])}, b"1234"), "shape.0': .* equal to 0"),
    "size is true": (file_of({"w": entry(shape=[True])}, b"1234"), "shape.0': .* integer"),
    "17 dimensions": (file_of({"w": entry(shape=[1] * 17)}, b"1234"), "'w.shape': .* at most 16"),
    "ends before it begins": (file_of({"w": entry(offsets=[4, 0])}, b"1234"), r"lies at \[4, 0\]"),
    "one offset": (file_of({"w": entry(offsets=[0])}, b"1234"), "data_offsets"),
    "2**60 elements": (
        file_of({"w": entry(shape=[2**60])}, b"1234"),
        r"float32\[1152921504606846976\], but lies at \[0, 4\]",
    ),
    "a hole": (file_of({"w": entry(offsets=[4, 8])}, bytes(8)), r"at \[4, 8\], not at \[0, 4\]"),
    "a shape that overflows": (
        file_of({"w": entry(shape=[0, 2**62], offsets=[0, 0])}, b""),
        r"float32\[0, 4611686018427387904\], which no tensor can be",
    ),
    "an overlap": (file_of({"w": entry(), "v": entry()}, b"1234"), r"\[0, 4\], not at \[4, 8\]"),
    "bytes at the end": (file_of({"w": entry()}, b"12345"), "describes 4 bytes, 5 are there"),
    "bytes missing": (file_of({"w": entry()}, b"123"), "describes 4 bytes, 3 are there"),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_refuses_malformed_files(case: str) -> None:
    content, message = MALFORMED[case]
    with pytest.raises(WeightsError, match=message):
        read_container(content, **LIMITS)


def test_headers_above_the_limits_are_refused(tmp_path: Path) -> None:
    content = file_of({"w": entry("U8", [10_000], [0, 10_000])}, bytes(10_000))
    (tmp_path / "file").write_bytes(content)
    for source in (content, tmp_path / "file"):
        with pytest.raises(BlobTooLargeError, match=f"{len(content)} bytes; at most 10000"):
            read_container(source, **LIMITS)
    many = {str(index): entry("F32", [0], [0, 0]) for index in range(4)}
    with pytest.raises(BlobTooLargeError, match="declares 4 tensors; at most 3"):
        read_container(file_of(many), **LIMITS)
    with pytest.raises(BlobTooLargeError, match="header of 4000 bytes; at most 3072"):
        read_container(file_of(b"{" + b" " * 3999), **LIMITS)
    with pytest.raises(WeightsError) as caught:
        read_container(file_of({"\ud800" * 300: 1}), **LIMITS)
    assert len(str(caught.value).encode()) < 1000


def test_a_written_file_equals_the_packed_bytes(tmp_path: Path) -> None:
    tensors = {
        "a": torch.arange(7),
        "b": torch.randn(3, 5).T,
        "empty": torch.empty(0),
        "half": torch.ones(3, dtype=torch.bfloat16),
    }
    write_packed(tmp_path / "file", tensors)
    assert (tmp_path / "file").read_bytes() == pack(tensors)


def test_the_first_non_finite_tensor_is_named_with_its_share() -> None:
    bad = torch.tensor([1.0, float("nan"), float("inf"), -float("inf")])
    weights = {"n": torch.tensor(2**40), "ok": torch.tensor([1e38, -0.0]), "none": torch.empty(0)}
    assert not non_finite(weights)
    weights["w"] = bad
    assert non_finite(weights) == "'w' has NaN or infinite values (3 of 4)"
    two_more = non_finite({**weights, "v": bad[:2], "c": bad.to(torch.complex64)})
    assert two_more.endswith("(3 of 4), as have 2 other tensors")


def test_a_copy_is_contiguous_and_independent() -> None:
    network = torch.nn.Conv2d(2, 3, 3).to(memory_format=torch.channels_last)
    before = network.weight.detach().clone()
    copies = copy_to_cpu(network.state_dict(keep_vars=True))
    torch.nn.init.zeros_(network.weight)
    assert torch.equal(copies["weight"], before)
    assert copies["weight"].is_contiguous()
    assert not copies["weight"].requires_grad


def torch_file() -> bytes:
    file = io.BytesIO()
    torch.save({"w": torch.ones(2)}, file)
    return file.getvalue()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (torch_file(), "does not fit"),
        (pickle.dumps({"w": [1.0]}), "does not fit"),
        (b"", "does not fit 0 bytes|0 bytes are too few"),
        (struct.pack("<Q", 2) + b"[]", "not a JSON object"),
    ],
)
def test_other_files_are_refused_with_a_remedy(content: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "weights.pt"
    path.write_bytes(content)
    with pytest.raises(WeightsError, match=r"weights\.pt is not a safetensors file: .* Write it"):
        require_safetensors(path)
    with pytest.raises(WeightsError, match=words):
        require_safetensors(content)
    with pytest.raises(WeightsError, match=words):
        read_container(content, max_bytes=10_000, max_tensors=1)


def test_reads_unaligned_values() -> None:
    content = file_of(
        {"a": entry("U8", [1], [0, 1]), "w": entry("F32", [1], [1, 5])}, struct.pack("<Bf", 7, 2.5)
    )
    container = read_container(content, **LIMITS)
    assert container.tensor("a").tolist() == [7]
    assert container.tensor("w").tolist() == [2.5]


BODY: Weights = {
    "conv.weight": torch.arange(8.0).reshape(2, 1, 2, 2),
    "bn.running_mean": torch.tensor([1.0, 2.0]),
    "bn.num_batches_tracked": torch.tensor(5),
}
HEAD: Weights = {"fc.weight": torch.ones(3, 2), "fc.bias": torch.ones(3)}
MODEL = BODY | HEAD
MODEL_SPECS = specs_of(MODEL)


def read(
    weights: Weights, like: dict[str, TensorSpec] = MODEL_SPECS, *, new_head: bool = True
) -> tuple[Weights, str]:
    container = read_container(pack(weights), max_bytes=10**6, max_tensors=1000)
    return read_checkpoint(container, like=like, head=HEAD.keys(), new_head=new_head)


def under(prefix: str, weights: Weights) -> Weights:
    return {f"{prefix}{name}": tensor for name, tensor in weights.items()}


def same(first: Weights, second: Weights) -> bool:
    return first.keys() == second.keys() and all(
        torch.equal(tensor, second[name]) for name, tensor in first.items()
    )


def test_a_whole_checkpoint_is_used_except_for_a_new_head() -> None:
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
def test_a_common_name_prefix_is_removed(prefix: str) -> None:
    assert same(read(under(prefix, MODEL), new_head=False)[0], MODEL)
    # What is beside the backbone is left over.
    taken, said = read(under(prefix, BODY) | {"head.weight": torch.ones(2, 2)})
    assert same(taken, BODY)
    assert "left over: 'head.weight'" in said


def test_narrower_dtypes_are_converted_and_wider_ones_refused() -> None:
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
def test_another_body_is_refused_even_with_a_new_head(change: Weights, words: str) -> None:
    with pytest.raises(WeightsError, match=words) as refused:
        read(BODY | change)
    words = "But for the head ('fc.bias', 'fc.weight') all has to be the model's"
    assert words in str(refused.value)


def test_a_different_head_is_refused_with_the_hint_new_head() -> None:
    for other in ({"fc.weight": torch.ones(7, 2)}, {"classifier.weight": torch.ones(7, 2)}):
        with pytest.raises(WeightsError, match=r"That is the head alone.*--new-head"):
            read(BODY | other, new_head=False)
    with pytest.raises(WeightsError, match="or name the model that they belong to") as refused:
        read({"conv.weight": torch.ones(1)} | HEAD, new_head=False)
    assert "--new-head" not in str(refused.value)


_ROOT = Path(__file__).parents[2]


class Touch:
    """Unpickling it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (self.path,))


def test_a_pickled_object_is_refused_and_not_created(tmp_path: Path) -> None:
    torch.save({"w": Touch(tmp_path / "touched")}, tmp_path / "evil.pt")
    with pytest.raises(ValueError, match="Weights only load failed"):
        read_torch_file(tmp_path / "evil.pt")
    assert not (tmp_path / "touched").exists()


@pytest.mark.lint
def test_the_linter_refuses_unsafe_loading() -> None:
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


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("bn.running_var", torch.tensor([1.0, -1e-9]), "'bn.running_var' has a variance below 0"),
        ("running_var", torch.tensor([math.nan]), "'running_var' has NaN or infinite values"),
        ("bn.num_batches_tracked", torch.tensor(2**63 - 1), "counts 9223372036854775807 batches"),
        ("bn.num_batches_tracked", torch.tensor(-1), "'bn.num_batches_tracked' counts -1 batches"),
        ("bn.num_batches_tracked", torch.tensor(2**53), ""),
        ("bn.running_var", torch.zeros(2), ""),
        ("bn.running_mean", torch.tensor([-1.0]), ""),
        ("var", torch.tensor([-1.0]), ""),
    ],
)
def test_statistics_that_no_training_gives_are_unusable(
    name: str, value: torch.Tensor, words: str
) -> None:
    weights = {"w": torch.tensor([-1.0]), name: value}
    assert words in unusable(weights)
    assert bool(unusable(weights)) == bool(words)
