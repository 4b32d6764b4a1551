from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from lipt.common.blobs.blob import BlobName
from lipt.common.config.run_config import RunConfig
from lipt.common.data.shard import pack_shard
from lipt.common.errors import BudgetError, ConfigError
from lipt.common.images.formats import ImageFormat
from lipt.common.inputs.specs import ImageSpec
from lipt.common.models import build_model
from lipt.common.models.footprint import ModelFigures
from lipt.common.planning import PROCESS_BYTES
from lipt.common.weights.encodings import encode_weights
from lipt.common.weights.specs import copy_to_cpu
from lipt.coordinator.planning.admission import DataFigures
from lipt.core.selection.registry import find_strategy
from lipt.core.sharding import draw_shards, split_validation
from lipt.core.stages.question import Question, SubsetQuery
from lipt.plan import Estimate, Stage, count_subset, estimate, lines_of
from lipt.pretraining import Pretrained
from lipt.trainer.writing.formatting import to_jsonable
from tests import processes

pytest.importorskip("sklearn")

QUICK: dict[str, Any] = {
    "learners": {"num_learners": 2, "num_steps": 3, "batch_size": 64},
    "soup": {"num_alphas": 2, "batch_norm_examples": 32},
}


def planned(
    source: str = "digits",
    strategy: str = "el2n",
    *,
    run: dict[str, Any] | None = None,
    model: str | None = None,
    fraction: float = 0.1,
    **given: Any,
) -> Estimate:
    opened = Pretrained(source, model, run=QUICK if run is None else run, progress=False)
    query = SubsetQuery("", strategy, fraction, None, None, {}, None)
    return estimate(opened, query, device="cpu", **{"timed": False, **given})


def stages(found: Estimate) -> dict[str, Stage]:
    return {stage.name: stage for stage in found.stages}


def test_images_are_those_that_a_run_is_admitted_by() -> None:
    images = {name: stage.images for name, stage in stages(planned()).items()}
    # 2 learners of 3 steps on 64; each alone and one of them at 2 ratios, on 200 + 32 images.
    learners, soup = 2 * 3 * 64, (2 + 2) * (200 + 32)
    assert images == {"theta*": 0, "shards": 0, "learners": learners, "soup": soup, "subset": 1797}
    trained = {**QUICK, "initialization": {"steps": 7, "batch_size": 100}}
    assert stages(planned(run=trained))["theta*"].images == 700
    twice = {**QUICK, "learners": {**QUICK["learners"], "redundancy": 2}}
    assert stages(planned(run=twice))["learners"].images == 2 * learners


def test_bytes_of_learners_are_those_that_travel() -> None:
    opened = Pretrained("digits", "resnet8", run=QUICK, progress=False)
    config, dataset = opened.config, opened.data
    train_ids = split_validation(dataset.labels_N, config.validation, seed=0).train_ids
    shards = draw_shards(train_ids, config.learners, seed=0)
    cut = sum(len(pack_shard(dataset, ids)) for ids in shards)
    model = build_model("resnet8", num_classes=10, inputs=dataset.inputs, seed=0)
    sent = len(encode_weights(copy_to_cpu(model.state_dict()), config.learners.encoding))
    found = planned(model="resnet8")
    assert found.bytes_to_workers == pytest.approx(cut + sent, rel=0.05)
    assert found.bytes_from_workers == pytest.approx(2 * sent, rel=0.05)
    # theta* comes to each worker, a shard to each learner.
    two = planned(model="resnet8", num_workers=2)
    assert two.bytes_to_workers - found.bytes_to_workers == pytest.approx(sent, rel=0.05)
    assert planned(model="resnet8", num_workers=9).bytes_to_workers == two.bytes_to_workers
    with_snapshots = {**QUICK, "learners": {**QUICK["learners"], "num_snapshots": 2}}
    more = planned(model="resnet8", run=with_snapshots)
    assert more.bytes_from_workers == 3 * found.bytes_from_workers


def counted(
    name: str,
    data: DataFigures,
    *,
    proxy: str | None = None,
    num_features: int = 64,
    options: dict[str, str] | None = None,
) -> tuple[Stage, int]:
    """Of a model that takes no memory, whose run has ten learners."""
    strategy = find_strategy(name)
    question = Question(
        RunConfig(),
        inputs=ImageFormat(3, 32, 32, mean=(0.5,) * 3, std=(0.5,) * 3),
        weights=BlobName.of(b"theta_p"),
        strategy=name,
        budget=100,
        balanced=strategy.resolve_balance(None),
        options=tuple((options or {}).items()),
        proxy=proxy,
    )
    return count_subset(question, data, ModelFigures(0, 0, 0), num_features, batch_size=1)


def images_of(number: int, size: int = 32, *, classes: int = 10) -> DataFigures:
    return DataFigures((number // classes,) * classes, ImageSpec(3, size, size))


@pytest.mark.parametrize(
    ("name", "options", "images", "signals_bytes"),
    [
        # 10 errors and 64 features in float32, and labels of eight bytes.
        ("el2n", {}, 5000, 5000 * (4 * 74 + 8)),
        ("uniform", {}, 0, 5000 * 8),
        # A gradient's norm; there is no pass of the model alone.
        ("grand", {"parameters": "all"}, 0, 5000 * (8 + 4)),
        # theta* and ten learners; two numbers of each.
        ("disagreement", {}, 11 * 5000, 5000 * (8 + 11 * 8)),
    ],
)
def test_signals_are_of_what_a_strategy_needs(
    name: str, options: dict[str, str], images: int, signals_bytes: int
) -> None:
    stage, told = counted(name, images_of(5000), options=options)
    assert (stage.images, told) == (images, signals_bytes)


def test_auto_may_look_through_all_learners_and_patches() -> None:
    # Ten learners, and patches of photographs and of their mirror images.
    stage, _ = counted("auto", images_of(5000), proxy="auto")
    assert stage.images == 12 * 5000
    # A ridge head on patches alone: 2,048 columns, their sums in float64 and two copies.
    patches, _ = counted("auto", images_of(5000), proxy="ridge:patches")
    assert patches.images == 2 * 5000
    assert 3 * 8 * 2048**2 < patches.memory_bytes - PROCESS_BYTES < stage.memory_bytes


@pytest.mark.parametrize(("number", "pairs"), [(80_000, 4 * 8_000**2), (600_000, 2_750_000_000)])
def test_pairs_of_a_class_are_in_memory_up_to_a_limit(number: int, pairs: int) -> None:
    told = [counted(name, images_of(number, 224))[0].memory_bytes for name in ("craig", "el2n")]
    assert told[0] - told[1] == pairs


@pytest.mark.parametrize("source", ["digits", "table"])
def test_seconds_are_those_of_a_batch_times_the_images(source: str, tmp_path: Path) -> None:
    if source == "table":
        rows = "\n".join(f"{row % 7},{row % 3}.5,{row % 2}" for row in range(400))
        (tmp_path / "table.csv").write_text(f"a,b,c\n{rows}\n")
        source = f"csv:{tmp_path / 'table.csv'}?label=c"
    found = planned(source, timed=True)
    assert found.seconds.keys() == {"learners", "soup", "subset"}
    assert all(seconds > 0 for seconds in found.seconds.values())
    assert "All images take" in "\n".join(lines_of(found))
    # As scripts have it: no NaN, and nothing that JSON has not.
    json.dumps(to_jsonable(found), allow_nan=False)


def test_run_that_a_coordinator_would_refuse_is_told_and_not_timed() -> None:
    run = {**QUICK, "learners": {**QUICK["learners"], "num_steps": 2**31 - 1}}
    found = planned(run=run, timed=True)
    assert found.seconds == {}
    [why] = found.refused
    assert "Lower learners.num_steps to at most" in why
    assert f"refuses it: {why}" in "\n".join(lines_of(found))
    assert planned().refused == ()


def test_what_the_service_refuses_is_refused_in_its_words() -> None:
    with pytest.raises(BudgetError, match=r"fraction 2\.0 is outside"):
        planned(fraction=2.0)
    with pytest.raises(ConfigError, match="5000 learners x 1 minibatch"):
        planned(run={"learners": {"num_learners": 5000}})


def lipt_plan(*words: str) -> subprocess.CompletedProcess[str]:
    return processes.run(["-m", "lipt.trainer.cli", "plan", *words, "--no-measure"])


def test_the_command_prints_a_table_or_json_of_the_settings() -> None:
    done = lipt_plan("--data", "digits", "--strategy", "uniform")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "digits: 1,797 examples of 1x8x8 images, resnet8, 180 by uniform"
    firsts = [line.split()[0] for line in lines[2:8]]
    assert firsts == ["stage", "theta*", "shards", "learners", "soup", "subset"]
    assert lines[-1] == "Nothing was timed."
    done = lipt_plan(
        *("--data", "digits", "--json", "--budget", "7", "--strategy", "gradmatch"),
        *("--num-learners", "3", "--set", "learners.batch_size=80", "--option", "ridge=0.5"),
    )
    told = json.loads(done.stdout)
    images = {stage["name"]: stage["images"] for stage in told["stages"]}
    assert images["learners"] == 3 * 80 * RunConfig().learners.num_steps
    assert "7 by gradmatch" in told["subject"]
    done = lipt_plan("--data", "digits", "--set", "learners")
    assert (done.returncode, "is not NAME=VALUE" in done.stderr) == (2, True)
