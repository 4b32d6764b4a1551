import io
import json
import pickle
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.data import DataLoader

from lipt.common.errors import ConfigError, SubsetError
from lipt.trainer.subsets.data import (
    SoftTargetLoss,
    UnweightedWarning,
    WeightedCollate,
    WeightedSubsetLoss,
    normalized_weights,
)
from lipt.trainer.subsets.subset import Subset
from tests.trainer.made_up import made_up_subset

SUFFIXES = (".npy", ".json")


JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    # Surrogates cannot be encoded as UTF-8, by anybody.
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


@st.composite
def subsets(draw: st.DrawFn) -> Subset:
    indices = sorted(draw(st.sets(st.integers(0, 2**63 - 1), min_size=1, max_size=20)))
    floats = st.floats(width=32, allow_nan=False, allow_infinity=False)
    weights = draw(st.lists(floats, min_size=len(indices), max_size=len(indices)))
    texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
    manifest: Any = draw(st.dictionaries(texts, JSON_VALUES, max_size=3))
    soft = None
    if num_classes := draw(st.integers(0, 3)):
        chances = st.lists(st.floats(0, 1, width=16), min_size=num_classes, max_size=num_classes)
        soft = draw(st.lists(chances, min_size=len(indices), max_size=len(indices)))
    return made_up_subset(indices, weights, soft_labels=soft, **manifest)


@pytest.mark.parametrize("suffix", SUFFIXES)
@given(subset=subsets())
def test_every_format_restores_the_subset(
    subset: Subset, suffix: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("round") / f"subset{suffix}"
    # Equal digests imply equal columns.
    assert Subset.load(subset.save(path)) == subset
    assert [item.name for item in path.parent.iterdir()] == [path.name]


def test_a_npy_is_three_records_of_numpy(tmp_path: Path) -> None:
    subset = made_up_subset([2, 5], [1.0, 0.5], seed=3)
    path = subset.save(tmp_path / "subset.npy")
    metadata = {
        "digest": subset.digest,
        "fingerprint": "f" * 64,
        "format": "lipt-subset",
        "manifest": {"seed": 3},
        "strategy": "made-up",
        "version": 1,
    }
    expected = io.BytesIO()
    np.save(expected, np.array([2, 5], dtype="<i8"))
    np.save(expected, np.array([1.0, 0.5], dtype="<f4"))
    np.save(expected, np.frombuffer(json.dumps(metadata).encode(), dtype=np.uint8))
    assert path.read_bytes() == expected.getvalue()


def test_a_csv_is_a_plain_table_and_other_suffixes_are_refused(tmp_path: Path) -> None:
    subset = made_up_subset([2, 5], [1.0, 0.1], soft_labels=[[0.25, 0.75], [1, 0]])
    path = subset.save(tmp_path / "subset.csv")
    # 0.1 as float32 is 0.100000001490116...
    rows = "2,1.0,0.25,0.75\n5,0.10000000149011612,1.0,0.0\n"
    assert path.read_text() == f"index,weight,soft_0,soft_1\n{rows}"
    for name in ("subset.csv", "subset.txt", "subset"):
        with pytest.raises(SubsetError, match=r"is read as one of \.npy, \.json\."):
            Subset.load(tmp_path / name)
    with pytest.raises(SubsetError, match=r"\.npy, \.json, \.csv"):
        subset.save(tmp_path / "subset.txt")


@pytest.mark.parametrize("suffix", SUFFIXES)
@given(share=st.floats(0.0, 1.0, exclude_max=True))
def test_a_truncated_file_never_gives_another_subset(
    suffix: str, share: float, tmp_path_factory: pytest.TempPathFactory
) -> None:
    subset = made_up_subset([2, 5, 9], [1.0, 0.5, 2.0])
    path = subset.save(tmp_path_factory.mktemp("cut") / f"subset{suffix}")
    data = path.read_bytes()
    path.write_bytes(data[: int(share * len(data))])
    try:
        loaded = Subset.load(path)
    except SubsetError:
        return
    assert loaded == subset  # all that a text file can lose is its last punctuation


def test_other_npy_files_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "indices.npy", np.array([2, 5]))
    with pytest.raises(SubsetError, match="there are no weights"):
        Subset.load(tmp_path / "indices.npy")
    np.save(tmp_path / "objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(SubsetError, match="does not hold a subset"):
        Subset.load(tmp_path / "objects.npy")


@pytest.mark.parametrize(
    ("before", "after", "complaint"),
    [
        ('"version": 1', '"version": 2', "of format 'lipt-subset' version 2"),
        ('"fingerprint": ', '"footprint": ', "lacks its fingerprint"),
        ('"manifest": {', '"manifesto": {', "lacks its fingerprint, digest, strategy or manifest"),
        ('"indices"', '"indexes"', "indices"),
        ("{", "[{", "does not hold a subset"),
    ],
)
def test_other_metadata_is_refused(before: str, after: str, complaint: str, tmp_path: Path) -> None:
    path = made_up_subset([2, 5], [1.0, 0.5]).save(tmp_path / "subset.json")
    path.write_text(path.read_text().replace(before, after, 1))
    with pytest.raises(SubsetError, match=complaint):
        Subset.load(path)


@pytest.mark.parametrize(
    ("indices", "weights", "soft", "complaint"),
    [
        ([5, 2], None, None, "index 2 follows 5"),
        ([2, 2], None, None, "index 2 follows 2"),
        ([-1, 2], None, None, "row numbers"),
        ([2, 5], [1.0], None, "Give one for each index"),
        ([2], [float("nan")], None, "finite"),
        ([2], [float("inf")], None, "finite"),
        *(
            ([1, 4], None, soft, "soft labels")
            for soft in ([[0.5, 1.5], [1, 0]], [[-0.5, 1], [1, 0]], [[1, 0]], [1, 0])
        ),
        ([1, 4], None, [[float("nan")], [1]], "soft labels"),
    ],
)
def test_invalid_columns_are_refused(
    indices: list[int], weights: list[float] | None, soft: Any, complaint: str
) -> None:
    column: Any = [1.0] * len(indices) if weights is None else weights
    rows: Any = indices
    with pytest.raises(SubsetError, match=complaint):
        Subset(rows, column, "f" * 64, "0" * 64, "made-up", soft_labels=soft)


def test_the_manifest_has_excluded_examples_and_the_recommended_alpha() -> None:
    assert made_up_subset([1], data={"quarantined": [3, 5]}).quarantined == (3, 5)
    for ids in ("35", [3, None], 3, None):
        assert made_up_subset([1], data={"quarantined": ids}).quarantined == ()
    assert made_up_subset([1], data="digits").quarantined == ()
    soft = made_up_subset([1, 4], soft_labels=[[0.5, 0.5], [1, 0]])
    cases: Any = (({"recommended_alpha": 0.25}, 0.25), ({"recommended_alpha": 7}, 0), ("", 0))
    for told, alpha in cases:
        subset = replace(soft, manifest={"soft_labels": told})
        assert subset.recommended_alpha == alpha
        assert ("soft labels", f"recommended alpha {alpha:.2g}") in subset.facts


def test_subsets_are_equal_by_value() -> None:
    one, same, other = (made_up_subset([2, index], [1.0, 0.5], seed=3) for index in (5, 5, 6))
    assert one == same
    assert hash(one) == hash(same)
    assert one != other
    assert one != made_up_subset([2, 5], [1.0, 0.5])
    assert one != "subset"
    assert len(one) == 2


def test_a_failed_save_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = made_up_subset([2, 5], [1.0, 0.5]).save(tmp_path / "s.npy")

    def full(*_: object, **__: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(np.lib.format, "write_array", full)
    with pytest.raises(OSError, match="no space"):
        made_up_subset([3]).save(path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["s.npy"]
    assert Subset.load(path).indices.tolist() == [2, 5]


IMAGES = np.arange(5 * 4 * 4, dtype=np.uint8).reshape(5, 4, 4)
LABELS = np.array([0, 1, 0, 1, 0])


def subset_of(*weights: float, rows: tuple[int, ...] = (1, 4), soft: Any = None) -> Subset:
    return made_up_subset(rows, weights, soft_labels=soft)


SOFT = [[0.25, 0.75], [1.0, 0.0]]


def test_mixed_targets_are_between_label_and_soft_label() -> None:
    logits, labels = torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 1])
    weights, soft = torch.tensor([0.5, 1.5]), torch.tensor(SOFT)
    losses = -logits.log_softmax(dim=1)
    # With a quarter of the soft label: (0.75 + 0.0625, 0.1875) and (0.25, 0.75).
    first = 0.8125 * losses[0, 0] + 0.1875 * losses[0, 1]
    second = 0.25 * losses[1, 0] + 0.75 * losses[1, 1]
    found = SoftTargetLoss(0.25)(logits, labels, weights, soft)
    torch.testing.assert_close(found, (0.5 * first + 1.5 * second) / 2)
    assert torch.allclose(
        SoftTargetLoss(0)(logits, labels, weights, soft),
        WeightedSubsetLoss()(logits, labels, weights),
    )
    for alpha in (-0.1, 1.1, float("nan")):
        with pytest.raises(ConfigError, match=r"not a number in \[0, 1\]"):
            SoftTargetLoss(alpha)


def test_examples_come_with_their_weights_and_soft_labels() -> None:
    chosen = subset_of(1, 3, soft=SOFT).dataset((IMAGES, LABELS), check=False)
    _, labels, weights, soft = next(iter(DataLoader(chosen, batch_size=2)))
    assert (labels.tolist(), weights.tolist(), soft.tolist()) == ([1, 0], [0.5, 1.5], SOFT)
    chosen = subset_of(1, 3).dataset((IMAGES, LABELS), check=False)
    assert len(chosen) == 2
    image, label, weight = chosen[1]
    assert np.array_equal(image, IMAGES[4])
    # Of mean 1: 1 and 3 are half and one and a half.
    assert (label, float(weight)) == (0, 1.5)
    table = datasets.Dataset.from_dict({"text": list("abcde"), "label": LABELS.tolist()})
    row = subset_of(1, 3).dataset(table, check=False)[0]
    assert (row["text"], row["label"], float(row["weight"])) == ("b", 1, 0.5)


def pad(examples: list[Any]) -> dict[str, Tensor]:
    assert all(set(example) == {"ids"} for example in examples)
    return {"ids": nn.utils.rnn.pad_sequence([example["ids"] for example in examples]).T}


@pytest.mark.parametrize("soft", [None, SOFT])
def test_a_user_s_collate_function_gets_plain_examples(soft: Any) -> None:
    subset = subset_of(1, 3, soft=soft)
    rows = [{"ids": torch.arange(row)} for row in range(5)]
    collate: WeightedCollate = pickle.loads(pickle.dumps(WeightedCollate(pad)))
    chosen = subset.dataset(rows, check=False)
    batch = next(iter(DataLoader(chosen, batch_size=2, collate_fn=collate)))
    found = {name: column.tolist() for name, column in batch.items()}
    expected: dict[str, Any] = {"ids": [[0, 0, 0, 0], [0, 1, 2, 3]], "weight": [0.5, 1.5]}
    assert found == expected | ({"soft_label": SOFT} if soft else {})
    pairs = subset.dataset((IMAGES, LABELS), check=False)
    images, *others = WeightedCollate()([pairs[0], pairs[1]])
    assert images.shape == (2, 4, 4)
    assert [column.tolist() for column in others] == [[1, 0], [0.5, 1.5], *([SOFT] if soft else [])]


def test_examples_of_a_weighted_subset_without_weights_warn() -> None:
    rows = list(zip(IMAGES, LABELS.tolist(), strict=True))
    with pytest.warns(UnweightedWarning, match=r"from 1 to 3, .* Take subset\.dataset"):
        subset_of(1, 3).apply(rows, check=False)
    table = datasets.Dataset.from_dict({"label": LABELS.tolist()})
    with pytest.warns(UnweightedWarning, match="made-up gives weights"):
        subset_of(1, 3).hf_select(table, check=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        subset_of(2, 2).apply(rows, check=False)
        subset_of(1, 3).dataset(rows, check=False)
    assert not subset_of(rows=()).is_weighted


def test_the_subset_loss_is_weighted_per_example() -> None:
    logits = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
    labels, weights = torch.tensor([0, 0]), torch.tensor([0.5, 1.5])
    each = nn.functional.cross_entropy(logits, labels, reduction="none")
    expected = (0.5 * each[0] + 1.5 * each[1]) / 2
    assert torch.allclose(WeightedSubsetLoss()(logits, labels, weights), expected)
    smoothed = nn.CrossEntropyLoss(reduction="none", label_smoothing=0.1)
    assert WeightedSubsetLoss(smoothed)(logits, labels, weights).ndim == 0
    assert normalized_weights(torch.tensor([1.0, 2.0, 5.0])).tolist() == [0.375, 0.75, 1.875]


def test_a_subset_says_what_it_is_and_shows_its_first_three_findings() -> None:
    words = ["judged by own features", "no learner was used", "any seed", "others"]
    subset = made_up_subset([1, 4], [1, 3], findings={"words": words})
    assert ("weights", "1 to 3") in subset.facts
    assert repr(subset).startswith("<Subset of 2")
    assert "made-up" in subset._repr_html_()
    assert subset.findings == tuple(words)
    assert "findings: judged by own features; no learner was used; any seed; wei" in repr(subset)
    assert made_up_subset([1], findings={"words": 3}).findings == ()
