from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import pytest
from pydantic import ValidationError

from lipt.common.access import Role
from lipt.common.blobs.blob import BlobName
from lipt.common.errors import StateError, UnreadableRunError
from lipt.common.states import LearnerState, RunState
from lipt.coordinator.state.database import SCHEMA, Database, prepare
from lipt.coordinator.state.maintenance import named_digests, needs_of, read_records
from lipt.coordinator.state.records import (
    DiagnosisRecord,
    LearnerResult,
    RunRecord,
    RunSummary,
    SoupRecord,
    SubsetRecord,
    TokenRecord,
    UnconfirmedResult,
)
from tests.coordinator.made_up_runs import IMAGE, holder, made_up_run, status
from tests.coordinator.state.conftest import (
    SPARE,
    StateBench,
    diagnosis_of,
    execute,
    stored_runs,
    subset_of,
)

TOKEN = TokenRecord(
    token_id="a", name="n", role=Role.WORKER, sha256="s", created_at=2.0, created_by="b"
)


def test_an_unknown_field_of_a_record_is_refused() -> None:
    values = made_up_run().model_dump(mode="json")
    assert RunRecord.model_validate(values) == made_up_run()
    with pytest.raises(ValidationError, match="new_field"):
        RunRecord.model_validate(values | {"new_field": 1})


def test_changing_an_unknown_field_is_refused() -> None:
    with pytest.raises(TypeError, match=r"RunRecord has no fields \['stat'\]"):
        made_up_run().changed(stat=1)


async def test_runs_are_read_as_written(tmp_path: Path) -> None:
    soup = SoupRecord(
        initial_accuracy=0.1,
        mean_learner_accuracy=0.2,
        best_learner_accuracy=0.3,
        soup_accuracy=0.4,
        num_kept=2,
        num_validation_examples=100,
    )
    run = made_up_run(num_learners=2).changed(soup=soup)
    database = Database.open(tmp_path / "lipt.db")
    await database.save_run(run, run.learners)
    changed = run.learners[1].changed(
        status=status(LearnerState.DONE, LearnerResult(blob=BlobName.of(b"x")))
    )
    await database.save_run(run, [changed])  # only the learners given are written
    await database.close()
    reopened = Database.open(tmp_path / "lipt.db")
    assert await stored_runs(reopened) == (run.with_learner(changed),)
    await reopened.close()


async def test_a_run_is_read_as_last_acknowledged(database: Database) -> None:
    run = made_up_run("a")
    await database.save_run(made_up_run("b"), made_up_run("b").learners)
    await database.save_run(run, run.learners)
    later = run.changed(message="later")
    await database.save_run(later)
    assert database.read_run("a") == later
    await database.remove_run("a")
    assert database.read_run("a") is None


async def test_an_unreadable_run_is_named(database: Database, tmp_path: Path) -> None:
    await database.save_run(made_up_run("a"), made_up_run("a").learners)
    execute(tmp_path / "lipt.db", "UPDATE learners SET body = '{'")
    with pytest.raises(UnreadableRunError, match=r"learner 0 of run a cannot be read.* a backup"):
        database.read_run("a")
    execute(tmp_path / "lipt.db", "DROP TABLE learners")
    with pytest.raises(StateError, match=r"run a could not be read: no such table.*backup"):
        database.read_run("a")


async def test_summaries_equal_those_of_full_records(database: Database) -> None:
    runs = (
        made_up_run("first").changed(created_at=1.0, inputs=None),
        made_up_run("second", state=RunState.READY).changed(
            created_at=2.0, ended_at=3.5, inputs=IMAGE, source="mine", fingerprint="other"
        ),
        made_up_run("third", state=RunState.FAILED).changed(created_at=4.0, ended_at=5.0),
    )
    for run in reversed(runs):
        await database.save_run(run, run.learners)
    assert await database.load_summaries() == tuple(map(RunSummary.of, runs))


@pytest.mark.parametrize("body", ["{", '{"state": "somewhere"}', '{"state": null}'])
async def test_a_run_with_an_unreadable_state_is_named(
    database: Database, tmp_path: Path, body: str
) -> None:
    await database.save_run(made_up_run("odd", state=RunState.READY))
    execute(tmp_path / "lipt.db", f"UPDATE runs SET body = '{body}'")
    (odd,) = await database.load_summaries()
    assert (odd.run_id, odd.name, odd.state) == ("odd", "name-odd", RunState.UNREADABLE)
    assert "run odd cannot be read: state" in odd.problem


# What a disk, or a person, may leave in a column.
GARBAGE = (
    "''",
    "'{'",
    "'null'",
    "'[]'",
    "'{}'",
    "char(0)",
    "CAST(x'fffe00' AS TEXT)",
    "CAST(x'7b2261223a22ff227d' AS TEXT)",  # JSON, with a byte that is no UTF-8
    "printf('%.*c', 100000, '[')",
    "replace(body, '\"', '')",
    "json_set(body, '$.state', 'held')",
    "json_set(body, '$.state', 'unreadable')",
    "json_set(body, '$.created_at', 1e300)",
    "replace(body, '\"ended_at\":null', '\"ended_at\":1e999')",
    "json_set(body, '$.ended_at', 'late')",
    "json_set(body, '$.inputs', 5)",
    "json_set(body, '$.num_classes', 100000000000)",
    "json_set(body, '$.run_id', 'b')",
    "json_set(body, '$.name', 'name-b')",
    "(SELECT body FROM runs WHERE run_id = 'b')",
)


@pytest.mark.parametrize("garbage", GARBAGE)
async def test_garbage_in_a_run_s_row_makes_only_that_run_unreadable(
    database: Database, tmp_path: Path, garbage: str
) -> None:
    for run_id in ("a", "b"):
        await database.save_run(made_up_run(run_id), made_up_run(run_id).learners)
    execute(tmp_path / "lipt.db", f"UPDATE runs SET body = {garbage} WHERE run_id = 'a'")
    summaries = {summary.run_id: summary for summary in await database.load_summaries()}
    assert summaries["b"] == RunSummary.of(made_up_run("b"))
    assert summaries["a"].name == "name-a"
    assert await stored_runs(database) == (made_up_run("b"),)
    assert database.read_run("b") == made_up_run("b")
    with pytest.raises(UnreadableRunError, match="run a cannot be read: ") as refused:
        database.read_run("a")
    assert len(str(refused.value)) <= 250
    assert list(named_digests(tmp_path))
    assert list(read_records(tmp_path, [])) == [made_up_run("b")]


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE learners SET body = '{' WHERE run_id = 'a' AND learner_index = 1",
        "UPDATE learners SET body = json_set(body, '$.index', 0) WHERE run_id = 'a'",
        "UPDATE learners SET body = json_set(body, '$.epoch', 1e30) WHERE run_id = 'a'",
        "UPDATE learners SET body = json_set(body, '$.state', 'done') WHERE run_id = 'a'",
        "DELETE FROM learners WHERE run_id = 'a' AND learner_index = 0",
        "DELETE FROM learners WHERE run_id = 'a' AND learner_index = 2",
        "DELETE FROM learners WHERE run_id = 'a'",
    ],
)
async def test_a_damaged_or_lost_learner_makes_only_its_run_unreadable(
    database: Database, tmp_path: Path, damage: str
) -> None:
    for run_id in ("a", "b"):
        await database.save_run(made_up_run(run_id), made_up_run(run_id).learners)
    execute(tmp_path / "lipt.db", damage)
    with pytest.raises(UnreadableRunError, match="run a cannot be read: "):
        database.read_run("a")
    assert await stored_runs(database) == (made_up_run("b"),)


@pytest.mark.parametrize("garbage", GARBAGE[:10])
async def test_garbage_in_a_record_s_row_hides_no_other(
    database: Database, tmp_path: Path, garbage: str
) -> None:
    await database.save_run(made_up_run("r"))
    scored = {"scored_by": {"credentials": [7, "text", {"credential": "forger"}]}}
    forged = subset_of("r", "forged").changed(manifest=scored)
    await database.save(
        *(subset_of("r", "a"), subset_of("r", "b"), forged),
        *(diagnosis_of("r", "a"), diagnosis_of("r", "b"), TOKEN, TOKEN.changed(token_id="b")),
    )
    execute(tmp_path / "lipt.db", f"UPDATE records SET body = {garbage} WHERE key = 'a'")
    for kind in (SubsetRecord, DiagnosisRecord, TokenRecord):
        assert await database.find(kind, "a") is None
        assert await database.find(kind, "b") is not None
    found = await database.find_subsets("r")
    assert {subset.key for subset in found} == {"b", "forged"}
    assert len(await database.find_subsets("r", "d")) == 2
    assert await database.remove_subsets_scored_by("forger") == 1
    assert list(named_digests(tmp_path))
    # It is computed again, and takes the damaged one's place.
    await database.save(subset_of("r", "a"))
    assert await database.find(SubsetRecord, "a") == subset_of("r", "a")


async def test_records_are_read_as_last_written(database: Database) -> None:
    other, changed = TOKEN.changed(token_id="b"), TOKEN.changed(revoked_at=4.0)
    await database.save(TOKEN, other)
    await database.save(changed)
    assert await database.load(TokenRecord) == (changed, other)
    found = [await database.find(TokenRecord, key) for key in ("a", "b", "c")]
    assert found == [changed, other, None]


async def test_subsets_of_a_digest_come_newest_first(database: Database) -> None:
    for run_id in ("r", "s"):
        await database.save_run(made_up_run(run_id))
    asked = [("a", "r", "d", 1.0), ("b", "r", "d", 2.0), ("c", "r", "e", 3.0), ("x", "s", "d", 4.0)]
    for key, run_id, digest, created_at in asked:
        subset = subset_of(run_id, key).changed(digest=digest, created_at=created_at)
        await database.save(subset)
        assert await database.find(SubsetRecord, key) == subset
    found = await database.find_subsets("r", "d")
    assert [subset.key for subset in found] == ["b", "a"]
    assert await database.find_subsets("r", "other") == ()
    listed = await database.find_subsets("r", most=2)
    assert [subset.key for subset in listed] == ["c", "b"]


async def test_subsets_of_a_run_are_found_by_an_index(database: Database) -> None:
    asked = "EXPLAIN QUERY PLAN SELECT body FROM records WHERE kind = 'subset' AND run_id = 'r'"
    plan = await database._do(lambda: database._connection.execute(asked).fetchall())
    assert "records_by_run" in str(plan)


async def test_removing_a_run_removes_all_its_records(database: Database) -> None:
    for run_id in ("r", "s"):
        run = made_up_run(run_id)
        await database.save_run(run, run.learners)
        await database.save(subset_of(run_id, f"subset of {run_id}"))
    for run_id in ("r", "s", ""):
        diagnosis = diagnosis_of(run_id, f"diagnosis of {run_id}")
        await database.save(diagnosis)
        again = diagnosis.changed(created_at=2.0)  # the disk had lost its file, say
        await database.save(again)
        assert await database.find(DiagnosisRecord, diagnosis.key) == again
    await database.remove_run("r")
    await database.remove_run("r")  # as if its answer had been lost
    assert await stored_runs(database) == (made_up_run("s"),)
    assert await database.find(SubsetRecord, "subset of r") is None
    assert await database.find(SubsetRecord, "subset of s") is not None
    found = [await database.find(DiagnosisRecord, f"diagnosis of {key}") for key in ("r", "s", "")]
    assert [one is not None for one in found] == [False, True, True]


async def test_a_failed_write_does_not_end_the_service(database: Database) -> None:
    async def execute(statement: str) -> int:
        found = await database._do(lambda: database._connection.execute(statement).fetchone())
        return int(found[0])

    run = made_up_run()
    await database.save_run(run, run.learners)
    await execute(f"PRAGMA max_page_count = {await execute('PRAGMA page_count')}")
    large = run.changed(message="x" * 100_000)
    for _ in range(2):
        with pytest.raises(StateError, match=r"full.*nothing acknowledged was lost"):
            await database.save_run(large)
        assert await stored_runs(database) == (run,)
    await execute("PRAGMA max_page_count = 1000000")
    await database.save_run(large)
    assert await stored_runs(database) == (large,)


async def test_records_are_written_atomically_and_after_a_failure_again(database: Database) -> None:
    other = TOKEN.changed(token_id="b", created_at=3.0)
    with pytest.raises(StateError, match="FOREIGN KEY"):
        await database.save(TOKEN, subset_of("no run", "key"))
    await database.save(other)
    assert await database.load(TokenRecord) == (other,)


async def test_commit_waits_for_the_disk(database: Database) -> None:
    async def setting(name: str) -> object:
        query = f"PRAGMA {name}"
        return await database._do(lambda: database._connection.execute(query).fetchone()[0])

    # No test can take the power from SQLite: 2 is FULL, which syncs the log with every commit.
    assert (await setting("journal_mode"), await setting("synchronous")) == ("wal", 2)


def test_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "lipt.db"
    path.write_bytes(b"this is not a database, and longer than its header would be" * 10)
    with pytest.raises(StateError, match="lipt state backup"):
        Database.open(path)


@pytest.mark.parametrize("missing", [True, False])
def test_a_missing_database_in_a_used_directory_is_an_error(tmp_path: Path, missing: bool) -> None:
    path = tmp_path / "lipt.db"
    if not missing:
        path.touch()
    blob = tmp_path / "blobs" / "ab" / "abcd"
    blob.parent.mkdir(parents=True)
    blob.touch()
    with pytest.raises(StateError, match=rf"{path} is missing or empty, .*{blob}"):
        Database.open(path)


async def test_a_damaged_database_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "lipt.db"
    database = Database.open(path)
    await database.save_run(made_up_run(num_learners=100), made_up_run(num_learners=100).learners)
    await database.close()
    content = path.read_bytes()
    path.write_bytes(content[:4096] + bytes(len(content) - 4096))
    database = Database.open(path)
    with pytest.raises(StateError, match=r"malformed.*damaged, start on a copy"):
        await stored_runs(database)
    await database.close()


def test_state_of_another_schema_is_refused() -> None:
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        connection.execute(f"PRAGMA user_version = {SCHEMA + 1}")
        with pytest.raises(StateError, match=f"has schema {SCHEMA + 1}, and this version knows"):
            prepare(connection)


def test_tables_are_created_atomically_and_once() -> None:
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        # The last of them is in the way.
        connection.execute("CREATE TABLE records (x INTEGER)")
        with pytest.raises(sqlite3.Error, match="records"):
            prepare(connection)
        assert connection.execute("PRAGMA user_version").fetchone() == (0,)
        assert connection.execute("SELECT name FROM sqlite_master").fetchall() == [("records",)]
        connection.execute("DROP TABLE records")
        for _ in range(2):
            prepare(connection)
            assert connection.execute("PRAGMA user_version").fetchone() == (SCHEMA,)


async def test_an_unreadable_token_is_left_out_and_named(
    database: Database, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = TOKEN.changed(token_id="b")
    await database.save(TOKEN, other)
    damage = "SET body = json_set(body, '$.role', 'root') WHERE key = 'a'"
    execute(tmp_path / "lipt.db", f"UPDATE records {damage}")
    assert await database.load(TokenRecord) == (other,)
    assert "token a cannot be read: role = 'root'" in caplog.text
    problems: list[str] = []
    assert list(read_records(tmp_path, problems)) == [other]
    assert ["token a" in problem for problem in problems] == [True]


def needed_by(directory: Path) -> set[str]:
    return {need.blob.sha256 for record in read_records(directory, []) for need in needs_of(record)}


def test_named_digests_include_needed_and_unneeded_blobs(state: StateBench) -> None:
    named = set(named_digests(state.directory))
    others = {BlobName.of(text.encode()).sha256 for text in {*SPARE} - {"uploaded weights"}}
    assert named - needed_by(state.directory) == others
    assert named > needed_by(state.directory) > {state.put("given weights").sha256}
    assert state.put("uploaded weights").sha256 not in named


async def test_named_digests_include_results_that_another_worker_has_to_confirm(
    database: Database, tmp_path: Path
) -> None:
    result = LearnerResult(blob=BlobName.of(b"sent"), snapshots=(BlobName.of(b"snapshot"),))
    held = UnconfirmedResult(epoch=1, holder=holder(), result=result)
    run = made_up_run("r")
    run = run.with_learner(run.learners[0].changed(unconfirmed=(held,)))
    await database.save_run(run, run.learners)
    named = set(named_digests(tmp_path))
    assert named >= {blob.sha256 for blob in result.files}


def test_an_invalid_record_does_not_hide_others(state: StateBench) -> None:
    broken = "SET body = '{' WHERE run_id = 'training'"
    execute(state.directory / "lipt.db", f"UPDATE runs {broken}", f"UPDATE learners {broken}")
    named = set(named_digests(state.directory))
    assert state.put("ready result 0").sha256 in named
    assert state.put("training result 0").sha256 not in named
