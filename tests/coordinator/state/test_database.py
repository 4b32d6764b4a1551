from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from lipt.common.access.roles import Role
from lipt.common.blobs.blob import BlobName
from lipt.common.errors import StateError
from lipt.common.states import LearnerState
from lipt.coordinator.state.contents import read_contents
from lipt.coordinator.state.database import Database
from lipt.coordinator.state.records import (
    DataRecord,
    DiagnosisRecord,
    RunRecord,
    SoupRecord,
    SubsetRecord,
    TokenRecord,
)
from lipt.coordinator.state.schema import SCHEMA, prepare

MakeRun = Callable[..., RunRecord]


def subset_of(run_id: str, key: str) -> SubsetRecord:
    return SubsetRecord(
        key=key,
        run_id=run_id,
        strategy="grand",
        num_examples=2,
        balanced=True,
        fingerprint="f",
        digest="d",
        weights_sha256="w",
        manifest={"budget": 2},
        blob=BlobName.of(b"subset"),
        created_at=1.0,
    )


def diagnosis_of(run_id: str, key: str) -> DiagnosisRecord:
    return DiagnosisRecord(
        key=key,
        run_id=run_id,
        proxy="auto",
        num_examples=2,
        fingerprint="f",
        features_sha256="",
        manifest={"seconds": 1.5},
        blob=BlobName.of(b"file"),
        created_at=1.0,
    )


async def test_runs_come_back_as_they_were_written(tmp_path: Path, make_run: MakeRun) -> None:
    run = make_run().changed(
        soup=SoupRecord(
            initial_accuracy=0.1,
            mean_learner_accuracy=0.2,
            best_learner_accuracy=0.3,
            soup_accuracy=0.4,
            num_kept=2,
            num_validation_examples=100,
        )
    )
    database = Database.open(tmp_path / "lipt.db")
    await database.save_run(run, run.learners)
    await database.close()
    reopened = Database.open(tmp_path / "lipt.db")
    assert await reopened.load_runs() == (run,)
    await reopened.close()


async def test_only_the_learners_given_are_written(tmp_path: Path, make_run: MakeRun) -> None:
    run = make_run(num_learners=2)
    database = Database.open(tmp_path / "lipt.db")
    await database.save_run(run, run.learners)
    changed = run.learners[1].changed(state=LearnerState.DONE, result=BlobName.of(b"x"))
    await database.save_run(run, [changed])
    (loaded,) = await database.load_runs()
    assert loaded.learners == (run.learners[0], changed)
    await database.close()


async def test_state_from_before_snapshots_opens(tmp_path: Path, make_run: MakeRun) -> None:
    run = make_run(num_learners=1)
    database = Database.open(tmp_path / "lipt.db")
    await database.save_run(run, run.learners)
    await database.close()
    with contextlib.closing(sqlite3.connect(tmp_path / "lipt.db")) as connection, connection:
        connection.execute("UPDATE learners SET body = json_remove(body, '$.snapshots')")
        connection.execute(
            "UPDATE runs SET body = json_remove(body, '$.config.learners.num_snapshots')"
        )
    reopened = Database.open(tmp_path / "lipt.db")
    assert await reopened.load_runs() == (run,)
    await reopened.close()


async def test_subset_is_found_under_its_key(tmp_path: Path, make_run: MakeRun) -> None:
    run = make_run()
    subset = subset_of(run.run_id, "k")
    database = Database.open(tmp_path / "lipt.db")
    await database.save_run(run)
    await database.save_subset(subset)
    assert await database.find_subset("k") == subset
    assert await database.find_subset("other") is None
    await database.close()


async def test_subsets_of_a_digest_come_newest_first(tmp_path: Path, make_run: MakeRun) -> None:
    database = Database.open(tmp_path / "lipt.db")
    for run_id in ("r", "s"):
        run = make_run(run_id)
        await database.save_run(run, run.learners)
    asked = [("a", "r", "d", 1.0), ("b", "r", "d", 2.0), ("c", "r", "e", 3.0), ("x", "s", "d", 4.0)]
    for key, run_id, digest, created_at in asked:
        await database.save_subset(
            subset_of(run_id, key).changed(digest=digest, created_at=created_at)
        )
    found = await database.find_subsets("r", "d")
    assert [subset.key for subset in found] == ["b", "a"]
    assert await database.find_subsets("r", "other") == ()
    listed = await database.list_subsets("r", most=2)
    assert [subset.key for subset in listed] == ["c", "b"]
    await database.close()


async def test_diagnosis_is_found_under_its_key_with_and_without_a_run(
    tmp_path: Path, make_run: MakeRun
) -> None:
    database = Database.open(tmp_path / "lipt.db")
    await database.save_run(make_run("r"))
    for run_id in ("r", ""):
        diagnosis = diagnosis_of(run_id, f"k{run_id}")
        await database.save_diagnosis(diagnosis)
        again = diagnosis.changed(created_at=2.0)  # the disk had lost its file, say
        await database.save_diagnosis(again)
        assert await database.find_diagnosis(diagnosis.key) == again
    assert await database.find_diagnosis("other") is None
    await database.close()


async def test_with_a_run_goes_all_that_is_on_record_of_it(
    tmp_path: Path, make_run: MakeRun
) -> None:
    database = Database.open(tmp_path / "lipt.db")
    for run_id in ("r", "s"):
        run = make_run(run_id)
        await database.save_run(run, run.learners)
        await database.save_subset(subset_of(run_id, f"subset of {run_id}"))
    for run_id in ("r", "s", ""):
        await database.save_diagnosis(diagnosis_of(run_id, f"diagnosis of {run_id}"))
    await database.remove_run("r")
    await database.remove_run("r")  # as if its answer had been lost
    assert await database.load_runs() == (make_run("s"),)
    assert await database.find_subset("subset of r") is None
    assert await database.find_subset("subset of s") is not None
    found = [await database.find_diagnosis(f"diagnosis of {name}") for name in ("r", "s", "")]
    assert [one is not None for one in found] == [False, True, True]
    await database.close()


async def test_failed_write_leaves_the_state_and_says_so(tmp_path: Path, make_run: MakeRun) -> None:
    run = make_run()
    database = Database.open(tmp_path / "lipt.db")
    await database.save_run(run, run.learners)
    twin = run.changed(run_id="twin")  # the same name, which is unique
    with pytest.raises(StateError, match=r"could not be used.*free some space"):
        await database.save_run(twin, twin.learners)
    assert await database.load_runs() == (run,)
    # No transaction is left open.
    await database.save_run(run.changed(message="next"))
    assert await database.load_runs() == (run.changed(message="next"),)
    await database.close()


async def test_service_goes_on_after_a_write_that_did_not_fit(
    tmp_path: Path, make_run: MakeRun
) -> None:
    run = make_run()
    database = Database.open(tmp_path / "lipt.db")
    await database.save_run(run, run.learners)
    pages = await database._do(
        lambda: database._connection.execute("PRAGMA page_count").fetchone()[0]
    )
    await database._do(lambda: database._connection.execute(f"PRAGMA max_page_count = {pages}"))
    large = run.changed(message="x" * 100_000)
    for _ in range(2):
        with pytest.raises(StateError, match=r"full.*Nothing was lost that had been acknowledged"):
            await database.save_run(large)
        assert await database.load_runs() == (run,)
    await database._do(lambda: database._connection.execute("PRAGMA max_page_count = 1000000"))
    await database.save_run(large)
    assert await database.load_runs() == (large,)
    await database.close()


async def test_commit_waits_for_the_disk(tmp_path: Path) -> None:
    database = Database.open(tmp_path / "lipt.db")

    async def setting(name: str) -> object:
        query = f"PRAGMA {name}"
        return await database._do(lambda: database._connection.execute(query).fetchone()[0])

    # No test can take the power from SQLite: 2 is FULL, which syncs the log with every commit.
    assert (await setting("journal_mode"), await setting("synchronous")) == ("wal", 2)
    await database.close()


def test_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "lipt.db"
    path.write_bytes(b"this is not a database, and longer than its header would be" * 10)
    with pytest.raises(StateError, match="--state-dir"):
        Database.open(path)


@pytest.mark.parametrize("missing", [True, False])
def test_database_that_is_gone_from_a_used_directory_is_missed(
    tmp_path: Path, missing: bool
) -> None:
    path = tmp_path / "lipt.db"
    if not missing:
        path.touch()
    (tmp_path / "blobs" / "ab").mkdir(parents=True)
    blob = tmp_path / "blobs" / "ab" / "abcd"
    blob.touch()
    with pytest.raises(StateError, match=rf"{path} is missing or empty, .*{blob}"):
        Database.open(path)
    blob.unlink()


async def test_file_that_is_damaged_inside_is_said_to_be(tmp_path: Path, make_run: MakeRun) -> None:
    path = tmp_path / "lipt.db"
    database = Database.open(path)
    await database.save_run(make_run(num_learners=100), make_run(num_learners=100).learners)
    await database.close()
    content = path.read_bytes()
    path.write_bytes(content[:4096] + bytes(len(content) - 4096))
    database = Database.open(path)
    with pytest.raises(StateError, match=r"malformed.*It is damaged: start on a copy"):
        await database.load_runs()
    await database.close()


def test_state_of_another_schema_is_refused() -> None:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.execute(f"PRAGMA user_version = {SCHEMA + 1}")
    with pytest.raises(StateError, match=f"has schema {SCHEMA + 1}, and this version knows"):
        prepare(connection)
    connection.close()


def test_tables_are_made_all_or_none_and_once() -> None:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    # The last of them is in the way.
    connection.execute("CREATE TABLE tokens (x INTEGER)")
    with pytest.raises(sqlite3.Error, match="tokens"):
        prepare(connection)
    assert connection.execute("PRAGMA user_version").fetchone() == (0,)
    assert connection.execute("SELECT name FROM sqlite_master").fetchall() == [("tokens",)]
    connection.execute("DROP TABLE tokens")
    for _ in range(2):
        prepare(connection)
        assert connection.execute("PRAGMA user_version").fetchone() == (SCHEMA,)
    connection.close()


async def test_tokens_come_oldest_first_as_they_were_written_last(tmp_path: Path) -> None:
    database = Database.open(tmp_path / "lipt.db")
    newer = TokenRecord(
        token_id="a", name="n", role=Role.WORKER, sha256="s", created_at=2.0, created_by="b"
    )
    older = newer.changed(token_id="b", created_at=1.0, role=Role.ADMIN, expires_at=3.0)
    for token in (newer, older, newer.changed(revoked_at=4.0)):
        await database.save_token(token)
    assert await database.load_tokens() == (older, newer.changed(revoked_at=4.0))
    await database.close()


async def test_token_that_cannot_be_read_is_no_token_less(tmp_path: Path) -> None:
    # It may be one that was revoked: a coordinator that forgot it would not know.
    database = Database.open(tmp_path / "lipt.db")
    token = TokenRecord(
        token_id="a", name="n", role=Role.WORKER, sha256="s", created_at=2.0, created_by="b"
    )
    await database.save_token(token)
    await database.close()
    with contextlib.closing(sqlite3.connect(tmp_path / "lipt.db")) as connection, connection:
        connection.execute("UPDATE tokens SET body = json_set(body, '$.role', 'root')")
    database = Database.open(tmp_path / "lipt.db")
    with pytest.raises(StateError, match=r"token a cannot be read.*lipt state check"):
        await database.load_tokens()
    await database.close()
    (problem,) = read_contents(tmp_path).problems
    assert "token a" in problem


async def test_data_is_found_under_each_of_its_fingerprints_as_it_was_served_last(
    tmp_path: Path,
) -> None:
    database = Database.open(tmp_path / "lipt.db")
    first = DataRecord(fingerprint="a", source="old name", num_examples=3, served_at=1.0)
    full = first.changed(fingerprint="full-a")
    await database.save_data([first, full])
    again = first.changed(source="new name", served_at=2.0)
    await database.save_data([again])
    assert await database.find_data("a") == again
    assert await database.find_data("full-a") == full
    assert await database.find_data("b") is None
    await database.close()


async def test_subsets_of_a_run_are_found_by_an_index(database: Database) -> None:
    asked = "EXPLAIN QUERY PLAN SELECT body FROM subsets WHERE run_id = 'r'"
    plan = await database._do(lambda: database._connection.execute(asked).fetchall())
    assert "subsets_by_run" in str(plan)
