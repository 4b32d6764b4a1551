"""Pairs as rows: embedded once, told apart by what they were made of, and chosen from."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from lipt.common.data import open_dataset, open_pairs
from lipt.common.data.dataset import Dataset
from lipt.common.data.sources import index
from lipt.common.data.sources.feature_file import FeatureRows
from lipt.common.errors import ConfigError, DataError, FactoryNotAllowedError
from lipt.core.selection.registry import find_strategy
from lipt.core.selection.select import select
from lipt.core.signals.signals import Signals
from lipt.core.signals.stored import features_of_pairs
from tests.coloured_shapes import (
    COLOURS,
    IMAGE_TOWER,
    NARROW,
    TOWERS,
    caption_of,
    swapped,
    write_folder,
)
from tests.core.selection.strategies.test_latent_classes import slow_greedy

SWAPS = ((7, 23), (11, 40), (2, 58))
WRONG = sorted(row for swap in SWAPS for row in swap)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "pairs", swapped(60, SWAPS))


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A line in `image` for each time that a tower was made."""
    monkeypatch.setenv("COLOURED_SHAPES_CALLS", str(tmp_path))
    return tmp_path / "image"


def opened(folder: Path, options: str = "&clusters=5") -> Dataset:
    source = f"pairs:{folder}?{TOWERS}&size=24{options}"
    return open_dataset(source, allowed_modules=["tests.coloured_shapes"])


def signals_of(dataset: Dataset) -> Signals:
    own = features_of_pairs(dataset)
    assert own is not None
    return Signals(
        torch.empty(len(dataset), 0),
        own.features_ND,
        dataset.labels_N,
        paired_features_NP=own.paired_features_NP,
    )


@pytest.mark.parametrize("options", ["&clusters=5", "&clusters=5&batch=7"])
def test_the_filter_drops_exactly_the_swapped_captions(folder: Path, options: str) -> None:
    signals = signals_of(opened(folder, options))
    kept = select(
        find_strategy("clip_score"), signals, 54, balanced=False, seed=0, options={}
    ).indices_K.tolist()
    assert sorted(set(range(60)) - set(kept)) == WRONG


@pytest.mark.slow
@pytest.mark.parametrize("budget", [6, 30])
def test_clipcov_on_towers_is_the_greedy_choice_of_its_definition(
    folder: Path, budget: int
) -> None:
    # Shapes of one size and colour are copies: without them no two gains are equal.
    signals = signals_of(opened(folder))
    generator = torch.Generator().manual_seed(0)
    noise = 0.05 * torch.randn(signals.features_ND.shape, generator=generator)
    signals = Signals(
        signals.errors_NC,
        signals.features_ND + noise,
        signals.labels_N,
        paired_features_NP=signals.paired_features_NP,
    )
    strategy = find_strategy("clipcov")
    chosen = select(strategy, signals, budget, balanced=False, seed=0, options={}).indices_K
    assert chosen.tolist() == sorted(slow_greedy(signals, budget))


def test_clusters_are_the_colours_that_the_image_tower_sees(folder: Path) -> None:
    labels = opened(folder).labels_N.tolist()
    assert len({(row % 5, label) for row, label in enumerate(labels)}) == 5


def test_named_classes_are_zero_shot(folder: Path, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("".join(f"a photo of something {colour}\n\n" for colour in COLOURS))
    dataset = opened(folder, f"&classes={prompts}")
    assert dataset.labels_N.tolist() == [row % 5 for row in range(60)]
    assert dataset.class_names[1] == "a photo of something green"


def test_rows_have_length_one_and_are_embedded_once(folder: Path, calls: Path) -> None:
    first = opened(folder)
    again = opened(folder)
    assert calls.read_text().splitlines() == ["made"]
    assert again.fingerprint == first.fingerprint
    assert isinstance(again.rows, FeatureRows)
    assert again.rows.paired_NP is not None
    for rows in (again.rows.tensors[""], again.rows.paired_NP):
        assert rows.norm(dim=1).tolist() == pytest.approx([1.0] * 60)


def test_they_are_embedded_anew_where_what_they_were_made_of_has_changed(
    folder: Path, calls: Path, tmp_path: Path
) -> None:
    weights = tmp_path / "weights"
    weights.write_text("some")
    options = f"&clusters=5&weights={weights}"
    first = opened(folder, options)
    weights.write_text("other ones")
    opened(folder, options)
    assert len(calls.read_text().splitlines()) == 2
    assert not first.has_changed()
    (folder / "part0" / "0007.txt").write_text(caption_of(7))
    assert first.has_changed()
    assert opened(folder, options).fingerprint != first.fingerprint
    opened(folder, "&clusters=6")
    assert len(calls.read_text().splitlines()) == 4


def test_many_pairs_are_embedded_into_a_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch, indexes: Path
) -> None:
    expected = signals_of(opened(folder)).features_ND.clone()
    for path in indexes.iterdir():
        path.unlink()
    monkeypatch.setattr(index, "MEMORY_BYTES", 0)
    assert torch.equal(signals_of(opened(folder)).features_ND, expected)


def test_the_pairs_themselves_are_had_without_towers(folder: Path) -> None:
    pairs = open_pairs(f"pairs:{folder}?image_tower=there.is:none")
    assert pairs[7] == (str(folder / "part0" / "0007.png"), caption_of(23))
    with pytest.raises(ConfigError, match="names no pairs"):
        open_pairs("digits")


@pytest.mark.parametrize(
    ("options", "error", "complaint"),
    [
        ("&clusters=1", ConfigError, "clusters=1 is not a whole number in 2"),
        ("&colour=red", ConfigError, "there is no option 'colour'"),
        ("&clusters=5&classes=x", ConfigError, "classes= and clusters= are two ways"),
        ("&classes=/missing/prompts", DataError, "the classes in /missing/prompts cannot be read"),
    ],
)
def test_options_that_cannot_be_used_are_refused(
    folder: Path, options: str, error: type[ConfigError | DataError], complaint: str
) -> None:
    with pytest.raises(error, match=complaint):
        opened(folder, options)


def test_a_broken_image_is_named_by_its_row_and_file(folder: Path) -> None:
    (folder / "part0" / "0003.png").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"image 3 of pairs:.*0003\.png\) cannot be used"):
        opened(folder)


def test_both_towers_have_to_be_named_and_allowed(folder: Path) -> None:
    with pytest.raises(ConfigError, match="Add text_tower=module:function"):
        open_dataset(f"pairs:{folder}?image_tower={IMAGE_TOWER}", allowed_modules=["tests"])
    with pytest.raises(FactoryNotAllowedError, match=r"tests\.coloured_shapes"):
        open_dataset(f"pairs:{folder}?{TOWERS}")


def test_towers_of_two_widths_and_prompts_that_repeat_are_refused(
    folder: Path, tmp_path: Path
) -> None:
    source = f"pairs:{folder}?image_tower={IMAGE_TOWER}&text_tower={NARROW}&size=24"
    with pytest.raises(DataError, match=r"gives 6 columns, and the text tower .* 1\. Give two"):
        open_dataset(source, allowed_modules=["tests"])
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("red\nred\n")
    with pytest.raises(DataError, match="has 2 prompts, 1 of them different"):
        opened(folder, f"&classes={prompts}")
