"""`lipt.mix` on small tables and images; its learners take few steps of a linear model."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import lipt
from lipt.common.errors import ConfigError, DataError, InvalidRequestError, SubsetError
from lipt.core.mixture.learning import TargetedPool
from lipt.mixture_data import open_mixture
from tests.session import Session

QUICK = {
    "initialization": {"steps": 20, "batch_size": 16},
    "learners": {"num_minibatches": 8, "batch_size": 16},
}


def rows(number: int, sign: float, seed: int) -> tuple[Tensor, Tensor]:
    """Two classes by the sign of the first number; turned around where `sign` is negative."""
    draws = torch.Generator().manual_seed(seed)
    values_ND = torch.randn(number, 5, generator=draws)
    labels_N = (sign * values_ND[:, 0] > 0).long()
    return values_ND, labels_N


def mixed(sources: dict[str, Any], target_data: Any, **keywords: Any) -> lipt.Mixture:
    settings: dict[str, Any] = {"run": QUICK, "device": "cpu", "progress": False} | keywords
    return lipt.mix(sources, target_data, "linear", **settings)


@pytest.fixture(scope="module")
def mixture() -> lipt.Mixture:
    sources = {"right": rows(300, 1.0, 1), "turned": rows(200, -1.0, 2)}
    return mixed(sources, rows(60, 1.0, 3))


def test_the_source_of_the_targets_rule_gets_the_share(mixture: lipt.Mixture) -> None:
    assert mixture.weights["right"] > 0.9
    assert sum(mixture.weights.values()) == pytest.approx(1.0)
    low, high = mixture.intervals["right"]
    assert 0.5 < low <= mixture.weights["right"] <= high
    assert mixture.loss["merged"] < mixture.loss["uniform"]
    assert mixture.accuracy["merged"] > mixture.accuracy["uniform"]
    assert mixture.probabilities == [mixture.weights["right"], mixture.weights["turned"]]


def test_every_baseline_stands_beside_it(mixture: lipt.Mixture) -> None:
    assert list(mixture.outcomes) == [
        *("merged", "uniform", "size", "size^0.7", "lone ranking", "greedy soup"),
        *("closed form", "nearest source"),
    ]
    assert mixture.outcomes["size"].weights == {"right": 0.6, "turned": 0.4}
    for outcome in mixture.outcomes.values():
        assert sum(outcome.weights.values()) == pytest.approx(1.0)


def test_the_source_of_wrong_labels_is_named(mixture: lipt.Mixture) -> None:
    assert any("turned make the target worse" in finding for finding in mixture.findings)
    assert str(mixture).endswith("Nothing was trained to check this: check=True does, or --check.")


def test_text_and_page_have_shares_and_the_verdict(mixture: lipt.Mixture) -> None:
    text, page = str(mixture), mixture._repr_html_()
    assert "right" in text
    assert mixture.verdict in text
    assert f'<rect width="{100 * mixture.weights["right"]:.2f}"' in page
    low, high = mixture.intervals["right"]
    assert f"<td>{low:.0%} to {high:.0%}</td>" in page


def test_names_are_escaped_on_the_page() -> None:
    sources = {"<b>": rows(100, 1.0, 1)}
    assert "&lt;b&gt;" in mixed(sources, rows(40, 1.0, 2))._repr_html_()


def test_a_sample_is_a_subset_of_the_sources_in_proportion(mixture: lipt.Mixture) -> None:
    subset = mixture.sample(200)
    right = int((subset.indices < 300).sum())
    assert right == round(200 * mixture.weights["right"])
    assert len(subset.dataset(mixture.data)) == len(subset) == 200
    assert subset == mixture.sample(200)
    assert subset != mixture.sample(200, seed=1)


def test_a_small_source_is_taken_whole_with_larger_loss_weights(mixture: lipt.Mixture) -> None:
    subset = mixture.sample(450)
    wanted = mixture.weights["right"] * 450
    in_right = subset.indices < 300
    assert in_right.sum() == 300
    assert subset.weights[in_right].sum() == pytest.approx(wanted, abs=1)
    (said,) = subset.findings
    assert re.fullmatch(r"source right has 300 of its \d{3} examples here", said)
    with pytest.raises(SubsetError, match="more than the 500 examples of all sources"):
        mixture.sample(501)


def test_what_is_saved_is_read_back(mixture: lipt.Mixture, tmp_path: Path) -> None:
    read = lipt.Mixture.load(mixture.save(tmp_path / "mixture.json"))
    assert read == mixture
    assert read.theta is None
    assert read.sample(100) == mixture.sample(100)


def test_llama_factory_reads_the_shares_from_yaml(mixture: lipt.Mixture, tmp_path: Path) -> None:
    shares = {"wéb": 0.33331, "never": 0.00002, "tasks": 0.66667}
    found = replace(mixture, weights=shares, intervals=dict.fromkeys(shares, (0.0, 1.0)))
    path = found.save(tmp_path / "mixture.yaml")
    # Four digits whose sum is 1, and no source that is never drawn.
    assert path.read_text(encoding="utf-8") == (
        'dataset: "wéb,tasks"\nmix_strategy: interleave_under\ninterleave_probs: "0.3333,0.6667"\n'
    )
    odd = replace(mixture, weights={"a,b": 1.0}, intervals={"a,b": (0.0, 1.0)})
    with pytest.raises(SubsetError, match="has a comma, which"):
        odd.save(tmp_path / "odd.yaml")
    assert not (tmp_path / "odd.yaml").exists()


@pytest.mark.parametrize(
    "changes",
    [
        None,
        {"weights": {"right": None, "turned": 0.5}},
        {"weights": {"right": -1.0, "turned": 2.0}},
        {"weights": {"right": 1.0}},
        {"intervals": {"right": [0.0, 1.0]}},
        {"rows": {"right": [[50, 10]], "turned": []}},
        {"rows": {"right": [[0, 50], [0, 50]], "turned": []}},
    ],
)
def test_a_damaged_file_is_refused(
    mixture: lipt.Mixture, tmp_path: Path, changes: dict[str, Any] | None
) -> None:
    content = {} if changes is None else json.loads(mixture.to_json()) | changes
    (tmp_path / "mixture.json").write_text(json.dumps(content))
    with pytest.raises(SubsetError, match=r"Write one with Mixture\.save"):
        lipt.Mixture.load(tmp_path / "mixture.json")


def test_the_same_seed_gives_the_same_bits(mixture: lipt.Mixture) -> None:
    sources = {"right": rows(300, 1.0, 1), "turned": rows(200, -1.0, 2)}
    again = mixed(sources, rows(60, 1.0, 3))
    assert again.weights == mixture.weights
    assert again.outcomes == mixture.outcomes
    assert all(torch.equal(again.theta[name], tensor) for name, tensor in mixture.theta.items())
    other = mixed(sources, rows(60, 1.0, 3), seed=1)
    assert not torch.equal(other.theta["fc.weight"], mixture.theta["fc.weight"])


def test_one_source_has_nothing_to_mix() -> None:
    found = mixed({"web": rows(100, 1.0, 1)}, rows(40, 1.0, 2))
    assert found.weights == {"web": 1.0}
    assert found.verdict == "There is one source, web, so there is nothing to mix."
    assert len(found.sample(10)) == 10


def test_equal_sources_are_no_better_than_equal_shares() -> None:
    found = mixed({"first": rows(300, 1.0, 1), "second": rows(300, 1.0, 1)}, rows(60, 1.0, 3))
    assert found.verdict.startswith("No mixture is measurably better")


def test_duplicates_of_the_target_are_named_and_dropped() -> None:
    target = rows(40, 1.0, 3)
    own = rows(100, 1.0, 1)
    leaky = torch.cat([own[0], target[0][:7]]), torch.cat([own[1], target[1][:7]])
    sources = {"leaky": leaky, "turned": rows(100, -1.0, 2)}
    kept = mixed(sources, target)
    assert any("7 of leaky, are kept" in finding for finding in kept.findings)
    dropped = mixed(sources, target, drop_duplicates=True)
    assert any("7 of leaky, are left out" in finding for finding in dropped.findings)
    assert dropped.manifest["sources"] == {"leaky": 100, "turned": 100}
    assert dropped.rows["leaky"] == ((0, 100),)


def test_a_source_that_only_duplicates_the_target_is_refused_when_dropped() -> None:
    target = rows(40, 1.0, 3)
    with pytest.raises(DataError, match="all examples of same duplicate the target"):
        mixed({"same": target, "other": rows(50, 1.0, 1)}, target, drop_duplicates=True)


def table(number: int, sign: float, seed: int) -> dict[str, list[Any]]:
    values_ND, labels_N = rows(number, sign, seed)
    columns = {f"x{place}": values_ND[:, place].tolist() for place in range(5)}
    return {**columns, "label": ["yes" if label else "no" for label in labels_N.tolist()]}


def test_classes_that_a_source_or_the_target_lacks_have_a_sentence() -> None:
    def only(columns: dict[str, list[Any]], label: str) -> dict[str, list[Any]]:
        kept = [row for row, own in enumerate(columns["label"]) if own == label]
        return {name: [cells[row] for row in kept] for name, cells in columns.items()}

    sources = {"both": table(200, 1.0, 1), "noes": only(table(200, 1.0, 2), "no")}
    found = mixed(sources, table(60, 1.0, 3))
    assert "noes has no example of 1 of its classes: yes." in found.findings
    one_class = mixed(sources, only(table(120, 1.0, 3), "no"))
    assert "All of the target's examples are of the class no." in one_class.findings
    assert sum(one_class.weights.values()) == pytest.approx(1.0)


def test_a_column_names_the_sources_and_rows_are_the_tables() -> None:
    first, second = table(90, 1.0, 1), table(60, -1.0, 2)
    whole = {name: [*first[name], *second[name]] for name in first}
    # Interleaved.
    order = torch.randperm(150, generator=torch.Generator().manual_seed(0)).tolist()
    sites = ["b"] * 90 + ["a"] * 60
    whole = {
        name: [cells[row] for row in order] for name, cells in {**whole, "site": sites}.items()
    }
    found = mixed(whole, table(50, 1.0, 3), source="site")
    assert found.weights["b"] > 0.9
    subset = found.sample(40)
    assert sum(whole["site"][row] == "b" for row in subset.indices.tolist()) > 35
    assert len(subset.dataset(whole)) == len(subset)
    with pytest.raises(DataError, match="Did you mean site"):
        mixed(whole, table(50, 1.0, 3), source="sit")


def test_a_strategy_chooses_within_the_shares_here_and_at_a_coordinator(tmp_path: Path) -> None:
    sites = ["north"] * 60 + ["south"] * 60
    lines = [f"{row % 7},{site},{'xy'[row % 2]}" for row, site in enumerate(sites)]
    (tmp_path / "pool.csv").write_text("\n".join(["a,site,label", *lines]))
    data = f"csv:{tmp_path}/pool.csv?label=label"
    opened = lipt.open_dataset(data)
    shares = {"north": 0.25, "south": 0.75}
    ranges = {"north": [[0, 60]], "south": [[60, 120]]}
    file = tmp_path / "m.json"
    content = {"fingerprint": opened.fingerprint, "weights": shares, "rows": ranges}
    file.write_text(json.dumps(content))
    asked: dict[str, Any] = {"budget": 20, "mixture": file}
    subset = lipt.select(data, "linear", strategy="uniform_per_class", progress=False, **asked)
    assert (subset.indices < 60).sum() == 5
    assert subset.recorded("findings", "by_source") == {"north": 5, "south": 15}
    assert subset.findings[0] == "by the mixture's shares: 5 of north, 15 of south"
    with Session(data, "linear") as session:
        run = session.pretrain()
        same = session.client.subset(run.run_id, "uniform_per_class", **asked)
        assert same.digest == subset.digest
        plain = session.client.subset(run.run_id, "uniform_per_class", budget=20)
        assert plain.digest != same.digest
        file.write_text(json.dumps(content | {"fingerprint": "other"}))
        with pytest.raises(InvalidRequestError, match="Mix the sources of this data"):
            session.client.subset(run.run_id, "uniform", **asked)
    for wrong in (tmp_path / "none.json", 5):
        with pytest.raises(InvalidRequestError, match=r"lipt mix|lipt\.mix"):
            lipt.select(data, "linear", strategy="uniform", mixture=wrong, progress=False)


def test_files_frames_and_columns_of_one_table_are_one(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    frame, target = pandas.DataFrame(table(30, 1.0, 1)), table(20, 1.0, 2)
    frame.to_csv(tmp_path / "first.csv", index=False)
    frame.to_json(tmp_path / "second.jsonl", orient="records", lines=True)
    sources = {
        "csv": f"csv:{tmp_path}/first.csv?label=label",
        "jsonl": str(tmp_path / "second.jsonl"),
        "frame": frame,
        "records": frame.to_dict("records"),
    }
    opened = open_mixture(sources, target, target="label")
    assert [len(ids) for ids in opened.pool.source_ids.values()] == [30] * 4
    assert len(opened.target) == 20
    assert opened.pool.class_names == ("no", "yes")
    values = opened.pool.examples(torch.arange(120))
    (column,) = values.values() if isinstance(values, dict) else (values,)
    for part in column.split_with_sizes([30] * 4)[1:]:
        assert torch.allclose(part, column[:30], atol=1e-5)


def test_numbers_to_predict_are_mixed_too() -> None:
    def numbers(number: int, slope: float, seed: int) -> tuple[Tensor, Tensor]:
        values_ND, _ = rows(number, 1.0, seed)
        return values_ND, slope * values_ND[:, 0]

    sources = {"right": numbers(300, 1.0, 1), "turned": numbers(300, -1.0, 2)}
    found = mixed(sources, numbers(60, 1.0, 3), target="number")
    assert found.weights["right"] > 0.9
    assert found.accuracy["merged"] > found.accuracy["uniform"]


def test_a_check_trains_on_the_mixture_equal_shares_and_sizes() -> None:
    sources = {"right": rows(200, 1.0, 1), "turned": rows(200, -1.0, 2)}
    found = mixed(sources, rows(60, 1.0, 3), check=True)
    trained = {
        name: one.real_accuracies for name, one in found.outcomes.items() if one.real_accuracies
    }
    assert list(trained) == ["merged", "uniform", "size"]
    assert [len(accuracies) for accuracies in trained.values()] == [3, 3, 3]
    # Equal sizes are equal shares.
    assert trained["uniform"] == trained["size"]
    assert min(trained["merged"]) > max(trained["uniform"])
    assert "accuracy after training" in str(found)


def test_a_modules_weights_are_the_shared_ones() -> None:
    model = nn.Sequential(nn.Linear(5, 2))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    sources = {"right": rows(200, 1.0, 1), "turned": rows(200, -1.0, 2)}
    run = {"learners": QUICK["learners"]}
    settings: dict[str, Any] = {"run": run, "device": "cpu", "progress": False}
    found = lipt.mix(sources, rows(60, 1.0, 3), model, **settings)
    assert [test["steps"] for test in found.manifest["readiness"]] == [0]
    assert all(torch.equal(before[name], now) for name, now in model.state_dict().items())


def test_shared_steps_double_until_they_are_enough() -> None:
    draws = torch.Generator().manual_seed(0)
    noise = torch.randn(80, 5, generator=draws), torch.randint(2, (80,), generator=draws)
    sources = {"first": noise, "second": rows(80, 1.0, 1)}
    target = torch.randn(40, 5, generator=draws), torch.randint(2, (40,), generator=draws)
    run = {"learners": {"num_minibatches": 2, "batch_size": 8}, "initialization": {"batch_size": 4}}
    found = mixed(sources, target, run=run)
    steps = [test["steps"] for test in found.manifest["readiness"]]
    assert steps == [100, 200, 400, 800, 1600][: len(steps)]
    assert len(steps) > 1
    assert any("The shares may be wrong" in finding for finding in found.findings)


def image_folder(folder: Path, shades: dict[str, int], number: int) -> None:
    for name, shade in shades.items():
        (folder / name).mkdir(parents=True)
        for place in range(number):
            pixels = np.full((8, 8, 3), shade + place, np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{place}.png")


def test_the_first_level_of_an_image_folder_names_sources(tmp_path: Path) -> None:
    image_folder(tmp_path / "pool" / "day", {"cat": 10, "dog": 200}, 5)
    image_folder(tmp_path / "pool" / "night", {"bird": 90, "dog": 100}, 4)
    image_folder(tmp_path / "target", {"cat": 50, "dog": 150}, 3)
    folders = f"imagefolder:{tmp_path}/pool", f"imagefolder:{tmp_path}/target"
    opened = open_mixture(*folders, source="folder")
    pool = TargetedPool.of(opened.pool, opened.target, len(opened.target))
    assert list(pool.source_ids) == ["day", "night"]
    assert pool.dataset.class_names == ("bird", "cat", "dog")
    labels = [1] * 5 + [2] * 5 + [0] * 4 + [2] * 4 + [1] * 3 + [2] * 3
    assert pool.dataset.labels_N.tolist() == labels
    assert pool.dataset.images(torch.tensor([10]))[0, 0, 0, 0] == 90
    assert pool.dataset.images(torch.tensor([18]))[0, 0, 0, 0] == 50


def test_parts_of_different_kinds_are_refused() -> None:
    images = torch.zeros(4, 3, 8, 8, dtype=torch.uint8), torch.arange(4) % 2
    with pytest.raises(DataError, match="of one kind"):
        open_mixture(
            {"images": lipt.open_dataset(images), "table": lipt.open_dataset(rows(40, 1.0, 1))},
            rows(40, 1.0, 2),
        )


@pytest.mark.parametrize(
    ("sources", "target_data", "words"),
    [
        ({"a": table(40, 1.0, 1)}, {"value": [0.5]}, "the target has no column 'x0'"),
        (
            {"a": table(40, 1.0, 1), "b": table(3, 1.0, 2) | {"label": ["yes", None, None]}},
            table(30, 1.0, 3),
            "b: 2 of 3 rows have no label in the column label: rows 1, 2. Label or remove them",
        ),
        ({"a": rows(40, 1.0, 1), "b": rows(0, 1.0, 2)}, rows(30, 1.0, 3), "b has no example"),
        ({"a": rows(40, 1.0, 1)}, rows(0, 1.0, 3), "the target is empty"),
        (
            {"a": rows(40, 1.0, 1)},
            (torch.zeros(3, 4), torch.arange(3)),
            r"the target holds float32\[4\], but the training set \(sources\) holds float32\[5\]",
        ),
        ({1: rows(40, 1.0, 1), "1": rows(40, 1.0, 2)}, rows(30, 1.0, 3), "two sources have one"),
        ({}, rows(30, 1.0, 3), "the sources are empty"),
        ([1, 2], rows(30, 1.0, 3), "Give a mapping from each source's name"),
        (
            {f"source {number}": rows(20, 1.0, number) for number in range(65)},
            *(rows(40, 1.0, 100), "names 65 sources. Give from 1 to 64"),
        ),
        ({"a": rows(40, 1.0, 1)}, rows(1, 1.0, 3), "the target has 1 example, and shares are"),
        ({"": rows(40, 1.0, 1)}, rows(30, 1.0, 3), "the source '' has a name of 0 characters"),
        ({"x" * 201: rows(40, 1.0, 1)}, rows(30, 1.0, 3), "of 201 characters. Name it in 1 to 200"),
        (
            {"a": table(40, 1.0, 1)},
            {name: cells for name, cells in table(30, 1.0, 3).items() if name != "x2"},
            "the target has no column 'x2'.*Give it the columns of sources: x0, x1",
        ),
    ],
)
def test_parts_that_cannot_be_mixed_are_named(sources: Any, target_data: Any, words: str) -> None:
    target = "label" if isinstance(target_data, dict) else None
    with pytest.raises((ConfigError, DataError), match=words):
        mixed(sources, target_data, target=target)


def test_a_name_that_is_not_utf8_is_escaped() -> None:
    opened = open_mixture({"a\udcff": rows(40, 1.0, 1)}, rows(30, 1.0, 3))
    assert tuple(opened.pool.source_ids) == ("a\\udcff",)


def test_the_column_to_predict_names_no_sources() -> None:
    with pytest.raises(ConfigError, match="the column 'label' is named as its source and as its"):
        mixed(table(40, 1.0, 1), table(30, 1.0, 3), target="label", source="label")


def test_random_shards_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"learners\.shards is random, but the learners of a mix"):
        mixed({"a": rows(40, 1.0, 1)}, rows(30, 1.0, 2), run={"learners": {"shards": "random"}})


@pytest.mark.slow
def test_a_large_target_is_sampled_and_a_small_one_is_said_to_be() -> None:
    sources = {"right": rows(100, 1.0, 1), "turned": rows(100, -1.0, 2)}
    large = mixed(sources, rows(10_050, 1.0, 3))
    assert "10,000 of the target's 10,050 examples are used." in large.findings
    assert large.manifest["target_examples"] == 10_000
    small = mixed(sources, rows(12, 1.0, 3))
    assert "The target has only 12 examples, so its intervals are wide." in small.findings


def test_a_folder_of_one_class_is_a_source_too(tmp_path: Path) -> None:
    image_folder(tmp_path / "both", {"cat": 10, "dog": 200}, 4)
    image_folder(tmp_path / "cats", {"cat": 60}, 4)
    image_folder(tmp_path / "target", {"dog": 150}, 3)
    parts = {name: f"imagefolder:{tmp_path}/{name}" for name in ("both", "cats")}
    opened = open_mixture(parts, f"imagefolder:{tmp_path}/target")
    assert opened.pool.labels_N.tolist() == [0] * 4 + [1] * 4 + [0] * 4
    assert opened.target.class_names == ("dog",)
    with pytest.raises(DataError, match="needs at least 2"):
        open_mixture({"cats": parts["cats"]}, f"imagefolder:{tmp_path}/target")
