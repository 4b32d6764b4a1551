from __future__ import annotations

import hashlib
import io
import json
import struct
from pathlib import Path
from typing import Any

import grpc
import pytest
from rich.console import Console
from rich.text import Text

from lipt.trainer.cli.strategy_table import print_strategies
from lipt.trainer.conversion import strategy_view
from lipt.trainer.subset import Subset
from lipt.v1 import config_pb2, run_pb2, subset_pb2

DIGEST = hashlib.sha256(struct.pack("<2q2f", 2, 5, 1.0, 0.5)).hexdigest()


def subset_script() -> list[Any]:
    return [
        subset_pb2.GetSubsetResponse(
            subset=subset_pb2.Subset(
                strategy="grand",
                num_examples=2,
                fingerprint="f" * 64,
                digest=DIGEST,
                manifest_json='{"seed": 0}',
            )
        ),
        subset_pb2.GetSubsetResponse(
            examples=subset_pb2.SubsetExamples(indices=[2, 5], weights=[1.0, 0.5])
        ),
    ]


def run_at(revision: int, state: Any, **fields: Any) -> run_pb2.Run:
    return run_pb2.Run(run_id="r-1", name="mine", revision=revision, state=state, **fields)


def test_starting_sends_flags_and_settings(fake: Any, lipt: Any, tmp_path: Path) -> None:
    config = tmp_path / "run.toml"
    config.write_text("[run]\nseed = 4\n[run.pruning]\nmethod = 'snip'\n")
    result = lipt(
        *("run", "start", "--name", "mine", "--model", "resnet8", "--num-steps", "5"),
        *("--set", "learners.learning_rate=0.05", "--config", str(config)),
    )
    assert result.exit_code == 0, result.stderr
    assert result.stdout == ("run mine (r-1) has started.\nFollow it with: lipt run watch mine\n")
    (request,) = fake.requests_of(run_pb2.CreateRunRequest)
    assert request.config == config_pb2.RunConfig(
        model="resnet8",
        seed=4,
        learners=config_pb2.LearnersConfig(num_steps=5, learning_rate=0.05),
        pruning=config_pb2.PruningConfig(method=config_pb2.PRUNING_METHOD_SNIP),
    )


def test_starting_with_weights_uploads_them_first(fake: Any, lipt: Any, tmp_path: Path) -> None:
    content = struct.pack("<Q", 2) + b"{}"
    weights = tmp_path / "w.safetensors"
    weights.write_bytes(content)
    result = lipt("run", "start", "--initial-weights", str(weights), "--json")
    assert result.exit_code == 0, result.stderr
    digest = hashlib.sha256(content).hexdigest()
    assert fake.blobs[digest] == content
    assert json.loads(result.stdout)["config"]["initialization"]["weights_sha256"] == digest


def test_a_pickle_as_weights_is_refused_before_anything_is_sent(
    fake: Any, lipt: Any, tmp_path: Path
) -> None:
    weights = tmp_path / "w.pt"
    weights.write_bytes(b"\x80\x04}\x94.")
    result = lipt("run", "start", "--initial-weights", str(weights))
    assert result.exit_code == 1
    assert result.stderr.startswith(f"lipt: {weights} is a pickle")
    assert "safetensors.torch.save_file" in result.stderr
    assert result.stderr.count("\n") == 1
    assert fake.requests == []


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("run", "start", "--set", "learners.num_steps"), "is not NAME=VALUE"),
        (("run", "start", "--num-steps", "5", "--set", "learners.num_steps=6"), "given twice"),
        (("run", "start", "--num-steps", "five"), "--num-steps"),
        (("run", "start", "--config", "/nowhere/run.toml"), "cannot be read"),
        (("subset", "get", "--out", "x.npy"), "give one of --fraction and --budget"),
        (("subset", "get", "--out", "x.txt", "--fraction", "0.1"), ".npy, .csv, .json, .parquet"),
        (("subset", "get", "--out", "/nowhere/x.npy", "--budget", "3"), "not a directory"),
        (("subset", "get", "--fraction", "0.1"), "--out"),
        (("subset", "get", "-o", "x.npy", "-k", "3", "--option", "a"), "is not NAME=VALUE"),
        (("weights", "get", "--out", "/nowhere/w.safetensors"), "not a directory"),
        (("weights", "get", "--out", "w.safetensors", "--kind", "final"), "pretrained"),
        (("run", "cancel"), "RUN"),
    ],
)
def test_mistyped_commands_are_usage_errors(
    fake: Any, lipt: Any, arguments: tuple[str, ...], complaint: str
) -> None:
    result = lipt(*arguments)
    assert result.exit_code == 2
    assert complaint in result.stderr
    assert fake.requests == []


def test_an_unknown_setting_is_one_sentence_with_those_there_are(lipt: Any) -> None:
    result = lipt("run", "start", "--set", "learners.num_stepz=5")
    assert result.exit_code == 1
    assert result.stderr.startswith("lipt: learners.num_stepz: there is no such setting")
    assert "num_steps" in result.stderr


def test_a_refusal_is_one_sentence_without_a_traceback(fake: Any, lipt: Any, refusal: Any) -> None:
    sentence = "there is no run 'x'. There are: mine."
    fake.refusal = refusal(grpc.StatusCode.NOT_FOUND, "UNKNOWN_RUN", sentence)
    result = lipt("run", "show", "x")
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", f"lipt: {sentence}\n")


def test_nobody_at_the_address_is_one_sentence(lipt: Any, dead_address: str) -> None:
    result = lipt("strategies", "--coordinator", dead_address)
    assert result.exit_code == 1
    assert f"lipt: no coordinator answers at {dead_address}" in result.stderr


def test_tls_options_are_checked(lipt: Any, tmp_path: Path) -> None:
    result = lipt("run", "list", "--tls-ca", str(tmp_path / "none.pem"))
    assert result.exit_code == 1
    assert "is not a file" in result.stderr
    result = lipt("run", "list", env={"LIPT_TLS_CERT": str(tmp_path)})
    assert "--tls-cert was given without --tls-key" in result.stderr


def test_runs_are_listed(fake: Any, lipt: Any) -> None:
    assert "lipt run start" in lipt("run", "list").stdout
    fake.runs = [run_at(1, run_pb2.RUN_STATE_FAILED, message="no learner arrived.")]
    header, row = lipt("run", "list").stdout.splitlines()
    assert header.split() == ["name", "id", "state", "model", "created", "soup", "message"]
    assert row.split()[:4] == ["mine", "r-1", "failed", "resnet18"]
    assert [run["run_id"] for run in json.loads(lipt("run", "list", "--json").stdout)] == ["r-1"]


def test_a_run_is_shown_with_its_learners(fake: Any, lipt: Any) -> None:
    learner = run_pb2.Learner(
        index=0, state=run_pb2.LEARNER_STATE_DONE, worker_name="w-1", step=10, density=0.9
    )
    fake.runs = [
        run_at(
            1,
            run_pb2.RUN_STATE_READY,
            learners=[learner],
            soup=run_pb2.SoupReport(soup_accuracy=0.5, num_kept=1, num_validation_examples=200),
            costs=run_pb2.Costs(training_seconds=2.0, bytes_to_workers=1_234_567),
        )
    ]
    result = lipt("run", "show")
    assert "soup 50.0% on 200 validation images" in result.stdout
    assert "training 2.0 s" in result.stdout
    assert "1.2 MB to and 0 B from workers" in result.stdout
    assert "w-1" in result.stdout
    shown = json.loads(lipt("run", "show", "--json").stdout)
    assert shown["learners"][0]["worker"] == "w-1"
    assert shown["state"] == "ready"


def test_watching_prints_lines_until_the_run_is_ready(fake: Any, lipt: Any) -> None:
    fake.runs = [run_at(1, run_pb2.RUN_STATE_PENDING)]
    states = (run_pb2.RUN_STATE_PENDING, run_pb2.RUN_STATE_MERGING, run_pb2.RUN_STATE_READY)
    fake.watch_scripts = [[run_at(number, state) for number, state in enumerate(states, 1)]]
    result = lipt("run", "watch", "mine")
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        "run mine: pending",
        "run mine: merging",
        "run mine: ready",
    ]


def test_watching_a_run_that_fails_ends_with_status_1(fake: Any, lipt: Any) -> None:
    fake.watch_scripts = [[run_at(2, run_pb2.RUN_STATE_FAILED, message="no learner arrived.")]]
    result = lipt("run", "start", "--watch")
    assert result.exit_code == 1
    assert result.stdout == "run mine: failed: no learner arrived.\n"


def test_watching_in_json_prints_an_object_per_change(fake: Any, lipt: Any) -> None:
    fake.runs = [run_at(1, run_pb2.RUN_STATE_PENDING)]
    fake.watch_scripts = [
        [run_at(1, run_pb2.RUN_STATE_PENDING), run_at(2, run_pb2.RUN_STATE_READY)]
    ]
    lines = lipt("run", "watch", "--json").stdout.splitlines()
    assert [json.loads(line)["state"] for line in lines] == ["pending", "ready"]


def test_a_run_is_cancelled(fake: Any, lipt: Any) -> None:
    fake.runs = [run_at(1, run_pb2.RUN_STATE_TRAINING)]
    assert lipt("run", "cancel", "mine").stdout == "run mine is cancelled.\n"
    assert json.loads(lipt("run", "cancel", "mine", "--json").stdout)["state"] == "cancelled"


@pytest.mark.parametrize("suffix", [".npy", ".csv", ".json", ".parquet"])
def test_a_subset_is_written(fake: Any, lipt: Any, tmp_path: Path, suffix: str) -> None:
    fake.subset_scripts = [subset_script()]
    out = tmp_path / f"subset{suffix}"
    result = lipt(
        *("subset", "get", "--run", "mine", "--strategy", "grand", "--budget", "2"),
        *("--no-balanced", "--option", "norm=full", "--out", str(out)),
    )
    assert result.exit_code == 0, result.stderr
    assert result.stdout == f"{out}: 2 examples by grand, digest {DIGEST}\n"
    subset = Subset.load(out)
    assert subset.indices.tolist() == [2, 5]
    assert subset.manifest == {"seed": 0}
    (request,) = fake.requests
    assert request.HasField("balanced")
    assert not request.balanced
    assert dict(request.options) == {"norm": "full"}


def test_a_subset_in_json_has_stable_keys(fake: Any, lipt: Any, tmp_path: Path) -> None:
    fake.subset_scripts = [subset_script()]
    out = tmp_path / "subset.npy"
    result = lipt("subset", "get", "--fraction", "0.1", "--out", str(out), "--json")
    assert json.loads(result.stdout) == {
        "path": str(out),
        "num_examples": 2,
        "strategy": "grand",
        "digest": DIGEST,
        "fingerprint": "f" * 64,
        "manifest": {"seed": 0},
    }


def crest_strategy() -> subset_pb2.Strategy:
    option = subset_pb2.StrategyOption(
        name="norm", default_value="last_layer", allowed_values=["last_layer", "full"]
    )
    share = subset_pb2.StrategyOption(
        name="share", default_value="0.01", allowed_values=["number > 0"]
    )
    return subset_pb2.Strategy(
        name="crest",
        summary="coresets of [random] sets",
        paper="Yang et al. 2023",
        balanced_by_default=True,
        returns_weights=True,
        options=[option, share],
        needs=["signals", "validation split"],
        cost="N + k C",
    )


def test_strategies_are_listed_with_what_they_need_and_their_options(fake: Any, lipt: Any) -> None:
    fake.strategies = [
        crest_strategy(),
        subset_pb2.Strategy(name="uniform", summary="random examples", needs=["labels"], cost="N"),
    ]
    assert lipt("strategies").stdout.splitlines() == [
        "crest: coresets of [random] sets",
        "    needs signals and validation split, with weights, balanced per class, cost N + k C",
        "    Yang et al. 2023",
        "    --option norm=last_layer (one of last_layer, full)",
        "    --option share=0.01 (number > 0)",
        "uniform: random examples",
        "    needs labels, without weights, not balanced per class, cost N",
    ]
    first = json.loads(lipt("strategies", "--json").stdout)[0]
    assert first["options"][0]["name"] == "norm"
    assert first["needs"] == ["signals", "validation split"]
    assert first["cost"] == "N + k C"


def test_strategies_of_an_older_coordinator_are_listed_without_needs(fake: Any, lipt: Any) -> None:
    fake.strategies = [subset_pb2.Strategy(name="uniform", summary="random examples")]
    assert lipt("strategies").stdout.splitlines() == [
        "uniform: random examples",
        "    without weights, not balanced per class",
    ]


@pytest.mark.parametrize("width", [80, 100, 160])
def test_strategies_fit_a_terminal(width: int) -> None:
    console = Console(file=io.StringIO(), width=width, force_terminal=True, no_color=True)
    print_strategies([strategy_view(crest_strategy())] * 26, console)
    assert isinstance(console.file, io.StringIO)
    text = Text.from_ansi(console.file.getvalue()).plain
    lines = text.splitlines()
    assert max(len(line) for line in lines) <= width
    assert lines[0].split() == [
        *("strategy", "what", "it", "keeps", "needs", "weights", "per", "class", "cost")
    ]
    assert text.count("crest") == 26
    for words in (
        "[random]",
        "validation",
        "Yang et al. 2023",
        "N + k C",
        "yes",
        "norm=last_layer",
    ):
        assert words in text
    assert "N examples" in text


def test_an_early_stop_is_a_line_of_its_own(fake: Any, lipt: Any, tmp_path: Path) -> None:
    script = subset_script()
    script[0].subset.manifest_json = '{"stopped_early": "nothing is left to gain."}'
    fake.subset_scripts = [script]
    out = tmp_path / "subset.npy"
    result = lipt("subset", "get", "--budget", "3", "--out", str(out))
    assert result.stdout.splitlines() == [
        f"{out}: 2 examples by grand, digest {DIGEST}",
        "grand stopped early: nothing is left to gain.",
    ]


def test_own_features_are_uploaded(fake: Any, lipt: Any, tmp_path: Path) -> None:
    content = struct.pack("<Q", 2) + b"{}"
    path = tmp_path / "features.safetensors"
    path.write_bytes(content)
    fake.subset_scripts = [subset_script()]
    out = str(tmp_path / "s.npy")
    result = lipt("subset", "get", "--budget", "2", "--features", str(path), "--out", out)
    assert result.exit_code == 0, result.stderr
    (request,) = fake.requests_of(subset_pb2.GetSubsetRequest)
    assert fake.blobs[request.features.sha256] == content
    path.write_bytes(b"\x80\x04}\x94.")
    result = lipt("subset", "get", "--budget", "2", "--features", str(path), "--out", out)
    assert result.exit_code == 1
    assert "'features': N x d" in result.stderr


def test_weights_are_written(fake: Any, lipt: Any, tmp_path: Path) -> None:
    fake.weights = {run_pb2.WEIGHTS_KIND_INITIAL: b"theta*"}
    out = tmp_path / "w.safetensors"
    digest = hashlib.sha256(b"theta*").hexdigest()
    result = lipt("weights", "get", "--kind", "initial", "--out", str(out))
    assert result.stdout == f"{out}: 6 B, sha256 {digest}\n"
    assert out.read_bytes() == b"theta*"
    result = lipt("weights", "get", "--kind", "initial", "--out", str(out), "--json")
    assert json.loads(result.stdout) == {
        "path": str(out),
        "kind": "initial",
        "sha256": digest,
        "size_bytes": 6,
    }


def test_a_file_that_cannot_be_written_is_one_sentence(fake: Any, lipt: Any) -> None:
    result = lipt("run", "start", "--initial-weights", "/nowhere/w.safetensors")
    assert (result.exit_code, result.stderr) == (
        1,
        "lipt: /nowhere/w.safetensors: No such file or directory\n",
    )
