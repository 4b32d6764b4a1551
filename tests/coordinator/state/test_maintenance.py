from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from lipt.common.blobs.blob import BlobName
from lipt.common.blobs.files import directory_lock
from lipt.common.blobs.store import Expiry
from lipt.common.errors import StateError
from lipt.coordinator.state.cli import app
from lipt.coordinator.state.database import Database
from lipt.coordinator.state.files import StateLock
from lipt.coordinator.state.maintenance import back_up, check_state, collect_garbage
from tests.blob_files import flip_a_bit
from tests.coordinator.state.conftest import KEPT, SPARE, StateBench, execute, stored_runs


def test_an_intact_state_has_no_problem(state: StateBench) -> None:
    checked = check_state(state.directory)
    assert checked.problems == ()
    assert (checked.num_runs, checked.num_subsets, checked.num_diagnoses) == (3, 1, 2)
    assert checked.num_mixtures == 1
    files = list((state.directory / "blobs").glob("*/*"))
    assert checked.num_blobs == len(files)
    assert checked.num_bytes == sum(path.stat().st_size for path in files)


@pytest.mark.parametrize(
    ("text", "whose"),
    [
        ("ready theta*", r"theta\* of run name-ready"),
        ("ready theta_p", "theta_p of run name-ready"),
        ("ready result 0", "the result of learner 0 of run name-ready"),
        ("ready snapshot 0", "snapshot 0 of learner 0 of run name-ready"),
        ("training shard 1", "the shard of learner 1 of run name-training"),
        ("cancelled theta*", r"theta\* of run name-cancelled"),
        ("x" * 24, "subset grand .* of ready"),
        ("diagnosis of ", "diagnosis auto of the data"),
        ("diagnosis of ready", "diagnosis auto of ready"),
        ("mixture of ready", "mixture mixture of r of ready"),
    ],
)
def test_a_missing_blob_is_named_with_its_users(state: StateBench, text: str, whose: str) -> None:
    state.path(text).unlink()
    (problem,) = check_state(state.directory).problems
    with pytest.raises(ValueError, match=f"is not there, {whose} needs it"):
        raise ValueError(problem)


@pytest.mark.parametrize("text", ["ready shard 0", "cancelled result 0", "uploaded weights"])
def test_an_unneeded_blob_may_be_missing(state: StateBench, text: str) -> None:
    state.path(text).unlink()
    assert check_state(state.directory).problems == ()


def test_one_flipped_bit_is_found(state: StateBench) -> None:
    path = state.path("training result 0")
    flip_a_bit(path, 3)
    damaged, missing = check_state(state.directory).problems
    assert path.name in damaged
    assert "is damaged: its content has the digest" in damaged
    assert "the result of learner 0 of run name-training needs it" in missing


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("UPDATE learners SET body = '{' WHERE run_id = 'ready'", "learner 0 of run ready cannot"),
        ("UPDATE runs SET body = json_remove(body, '$.fingerprint')", "run cancelled cannot be"),
        ("UPDATE records SET body = json_set(body, '$.lie', 1)", "subset k+ of run ready cannot"),
        (
            "UPDATE records SET body = '{' WHERE key = 'diagnosis of '",
            "of diagnosis diagnosis of  cannot",
        ),
        (
            "UPDATE records SET body = json_set(body, '$.run_id', 'x') WHERE key = 'diagnosis of '",
            "diagnosis diagnosis of of run x: there is no such run",
        ),
        ("DELETE FROM runs WHERE run_id = 'ready'", "belongs to no row of runs"),
        ("DELETE FROM learners WHERE run_id = 'ready' AND learner_index = 0", "some are missing"),
        (
            "UPDATE records SET body = json_set(body, '$.num_examples', 1000000)",
            r"1000000 examples do not take \d+ bytes",
        ),
        (
            "UPDATE records SET body = json_set(body, '$.fingerprint', 'e') WHERE kind = 'subset'",
            "subset k+ of run ready: it is of the data e, its run of f{64}",
        ),
        (
            "UPDATE runs SET body = json_remove(body, '$.pretrained_weights')",
            "is ready and has no theta_p",
        ),
        (
            "UPDATE learners SET body = json_remove(body, '$.status.result')",
            "learner 0 of run ready cannot be read: status.done.result: field required",
        ),
    ],
)
def test_an_invalid_record_is_named(state: StateBench, statement: str, words: str) -> None:
    execute(state.directory / "lipt.db", statement)
    problems = "\n".join(check_state(state.directory).problems)
    with pytest.raises(ValueError, match=words):
        raise ValueError(problems)


@pytest.mark.parametrize(
    ("folder", "name", "words"),
    [
        ("ab", "notes.txt", "is no blob"),
        ("ab", "A" * 64, "is no blob"),
        ("zz", BlobName.of(b"stray").sha256, "is in the wrong folder"),
    ],
)
def test_stray_file_is_named(state: StateBench, folder: str, name: str, words: str) -> None:
    (state.directory / "blobs" / folder).mkdir(exist_ok=True)
    (state.directory / "blobs" / folder / name).write_text("stray")
    (problem,) = check_state(state.directory).problems
    assert f"{folder}/{name} {words}" in problem


HOUR = 3600.0
NOW = 10_000_000_000.0  # long after every file was written


def test_only_unneeded_blobs_are_removed(state: StateBench) -> None:
    state.put("a refused learner")
    (state.directory / "uploads" / f"{'a' * 64}.part").write_text("cut")
    (state.directory / "signals").mkdir()
    (state.directory / "signals" / "s.safetensors").write_text("cached")
    (state.directory / "signals" / "s.tmp.part").write_text("half")
    collected = collect_garbage(state.directory, min_age_seconds=24 * HOUR, now=NOW)
    gone = [*SPARE, "a refused learner"]
    assert [text for text in gone if state.has(text)] == []
    assert [text for text in KEPT if not state.has(text)] == []
    assert [path.name for path in (state.directory / "signals").iterdir()] == ["s.safetensors"]
    assert list((state.directory / "uploads").iterdir()) == []
    assert sum(blob.size_bytes for blob in collected.blobs) == len("".join(gone))
    assert [part.name for part in collected.parts] == ["a" * 64]
    assert collected.num_spared == 0
    assert check_state(state.directory).problems == ()
    again = collect_garbage(state.directory, min_age_seconds=0.0, now=NOW)
    assert (again.blobs, again.parts, again.num_spared) == ((), (), 0)


def test_recent_uploads_are_kept(state: StateBench) -> None:
    name = state.put("a learner whose commit is on its way")
    os.utime(state.blobs.path(name), (NOW - 10.0, NOW - 10.0))
    collected = collect_garbage(state.directory, min_age_seconds=60.0, now=NOW)
    assert collected.num_spared == 1
    assert state.blobs.has(name)


def test_maintenance_fails_while_a_coordinator_serves(state: StateBench) -> None:
    words = r"in use by process \d+ serving 127\.0\.0\.1:50051.*it collects by itself"
    with contextlib.ExitStack() as serving:
        lock = StateLock(state.directory)
        serving.callback(lock.release)
        lock.describe("serving 127.0.0.1:50051")
        with pytest.raises(StateError, match=words):
            collect_garbage(state.directory, min_age_seconds=0.0, now=NOW)
        assert state.has("cancelled shard 0")


def test_an_unreadable_record_stops_the_removal(state: StateBench) -> None:
    execute(state.directory / "lipt.db", "UPDATE learners SET body = '{' WHERE run_id = 'training'")
    with pytest.raises(StateError, match=r"nothing was done.*learner 0 of run training"):
        collect_garbage(state.directory, min_age_seconds=0.0, now=NOW)
    assert state.has("cancelled shard 0")
    StateLock(state.directory).release()  # it was given back


def test_a_directory_without_state_is_refused_and_not_created(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="no state"):
        collect_garbage(tmp_path / "typo", min_age_seconds=0.0, now=NOW)
    assert not (tmp_path / "typo").exists()


async def load(directory: Path) -> object:
    database = Database.open(directory / "lipt.db")
    try:
        return await stored_runs(database)
    finally:
        await database.close()


async def test_a_backup_is_complete(state: StateBench, tmp_path: Path) -> None:
    target = tmp_path / "new" / "backup"
    made = back_up(state.directory, target)
    checked = check_state(target)
    assert checked.problems == ()
    assert (made.num_runs, made.num_blobs) == (3, checked.num_blobs)
    assert await load(target) == await load(state.directory)
    assert not list(target.rglob(state.path("cancelled shard 0").name))
    assert [path.name for path in target.parent.iterdir()] == ["backup"]


async def test_a_backup_of_a_served_state_has_acknowledged_data(
    state: StateBench, tmp_path: Path
) -> None:
    database = Database.open(state.directory / "lipt.db")
    (run, *_) = await stored_runs(database)
    changed = run.changed(message="acknowledged, and still in the write-ahead log")
    await database.save_run(changed)
    back_up(state.directory, tmp_path / "backup")
    await database.save_run(run.changed(message="written later"))
    await database.close()
    runs = await load(tmp_path / "backup")
    assert isinstance(runs, tuple)
    assert changed in runs


def test_later_damage_does_not_reach_a_backup(state: StateBench, tmp_path: Path) -> None:
    back_up(state.directory, tmp_path / "copied")
    with state.path("ready theta_p").open("r+b") as file:
        file.write(b"X")
    assert check_state(tmp_path / "copied").problems == ()


def test_only_leftovers_of_killed_backups_are_removed(state: StateBench, tmp_path: Path) -> None:
    left, running, other = (
        tmp_path / f".{name}" for name in ("b.lipt-backup-1", "b.lipt-backup-2", "b.conf.d")
    )
    for folder in (left, running, other):
        folder.mkdir()
    with directory_lock(running, exclusive=True):
        back_up(state.directory, tmp_path / "b")
    assert (left.exists(), running.exists(), other.exists()) == (False, True, True)


def test_collection_follows_no_link_out_of_the_directory(state: StateBench, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (digest := outside / ("ab" + "0" * 62)).write_text("mine")
    (half := outside / "mine.tmp").write_text("mine")
    (state.directory / "blobs" / "ab").symlink_to(outside)
    (state.directory / "signals").symlink_to(outside)
    stray = state.directory / "blobs" / "cd"
    stray.mkdir()
    (stray / "notes").write_text("no digest")
    (stray / ("cd" + "0" * 62)).symlink_to(half)
    collect_garbage(state.directory, min_age_seconds=0.0, now=NOW)
    (state.directory / "signals").unlink()
    (state.directory / "signals").mkdir()
    (state.directory / "signals" / "elsewhere").symlink_to(outside)
    (state.directory / "signals" / "one.tmp").symlink_to(half)
    collect_garbage(state.directory, min_age_seconds=0.0, now=NOW)
    assert sorted(path.name for path in outside.iterdir()) == [digest.name, half.name]
    assert (stray / "notes").exists()
    with pytest.raises(StateError):
        Expiry(state.directory).remove_blob(digest.name, before=NOW)


@pytest.mark.parametrize(
    "planted",
    [
        "CREATE TRIGGER t AFTER INSERT ON records BEGIN DELETE FROM runs; END",
        "CREATE VIEW v AS SELECT 1",
        "DROP INDEX records_by_run",
    ],
)
def test_a_planted_trigger_and_a_lost_index_are_named(state: StateBench, planted: str) -> None:
    with closing(sqlite3.connect(state.directory / "lipt.db")) as database:
        database.execute(planted)
        database.commit()
    (problem,) = check_state(state.directory).problems
    assert planted.split()[2] in problem


def test_backup_into_the_state_itself_is_refused(state: StateBench, tmp_path: Path) -> None:
    (tmp_path / "alias").symlink_to(state.directory)
    (tmp_path / "inside").symlink_to(state.directory / "blobs" / "new")
    before = sorted(state.directory.rglob("*"))
    for destination in (
        state.directory,
        state.directory / "backup",
        state.directory / "a" / "b",
        tmp_path / "alias" / "backup",
        tmp_path / "inside",
        state.directory / ".." / "state" / "backup",
    ):
        with pytest.raises(StateError, match=r"lies in the state directory .*elsewhere"):
            back_up(state.directory, destination)
    assert sorted(state.directory.rglob("*")) == before


def test_damaged_or_missing_blob_leaves_no_backup(state: StateBench, tmp_path: Path) -> None:
    path = state.path("ready theta_p")
    path.write_text("other bytes")
    with pytest.raises(StateError, match=r"is damaged.*lipt state check"):
        back_up(state.directory, tmp_path / "backup")
    path.unlink()
    with pytest.raises(StateError, match="theta_p of run name-ready needs it"):
        back_up(state.directory, tmp_path / "backup")
    assert [item.name for item in tmp_path.iterdir()] == ["state"]


def test_a_full_disk_leaves_no_backup_and_is_reported(
    state: StateBench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("shutil.copyfile", full)
    with pytest.raises(StateError, match="No space left on device"):
        back_up(state.directory, tmp_path / "backup")
    assert [item.name for item in tmp_path.iterdir()] == ["state"]


def invoke(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_check_lists_the_state_and_fails_on_problems(state: StateBench) -> None:
    whole = invoke("check", "--state-dir", state.directory)
    assert whole.exit_code == 0
    assert "3 runs, 1 subsets" in whole.stdout
    assert "no problems" in whole.stdout
    state.path("ready theta*").unlink()
    broken = invoke("check", "--state-dir", state.directory)
    assert broken.exit_code == 1
    assert "theta* of run name-ready needs it" in broken.stdout
    assert "1 problem\n" in broken.stdout


def test_gc_removes_only_with_an_age(state: StateBench) -> None:
    young = invoke("gc", "--state-dir", state.directory)
    assert "removed 0 files" in young.stdout
    at_once = ("gc", "--state-dir", state.directory, "--min-age-hours", "0")
    assert "would remove 8 files" in invoke(*at_once, "--dry-run").stdout
    assert state.has("cancelled shard 0")
    assert "removed 8 files" in invoke(*at_once).stdout
    assert not state.has("cancelled shard 0")


def test_backup_names_the_command_that_checks_it(state: StateBench, tmp_path: Path) -> None:
    done = invoke("backup", tmp_path / "copy", "--state-dir", state.directory)
    assert done.exit_code == 0
    assert f"lipt state check --state-dir {tmp_path / 'copy'}" in done.stdout
    assert invoke("check", "--state-dir", tmp_path / "copy").exit_code == 0
