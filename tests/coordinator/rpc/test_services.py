import asyncio
import dataclasses
import json
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lipt.common.access.tokens import Token
from lipt.common.blobs.blob import BlobName, blob_to_proto
from lipt.common.config.run_config import RunConfig
from lipt.common.errors import DataError, InvalidRequestError, UnreadableRunError
from lipt.common.rpc.messages import enum_value
from lipt.common.states import LearnerPhase, LearnerState, RunState
from lipt.coordinator.access.caller import Caller
from lipt.coordinator.access.tokens import Tokens
from lipt.coordinator.compute.context import DataDescription
from lipt.coordinator.compute.messages import OnProgress, Progressed
from lipt.coordinator.compute.queue import Computation
from lipt.coordinator.dispatch.leases import LearnerAssignment, LearnerLease
from lipt.coordinator.rpc import trainers as module
from lipt.coordinator.rpc.info import AccessService, InfoService
from lipt.coordinator.rpc.messages import dataset_view, run_view
from lipt.coordinator.rpc.trainers import Answering, DiagnosisService, RunService, SubsetService
from lipt.coordinator.runs.store import LearnerProgress, RunStore
from lipt.coordinator.state.database import Database
from lipt.coordinator.state.records import LearnerResult
from lipt.coordinator.subsets import DiagnosisQuery
from lipt.core.selection.select import STRATEGIES
from lipt.data.inputs.specs import ImageSpec
from lipt.trainer.views import RunView, view_of
from lipt.v1 import access_pb2, diagnosis_pb2, info_pb2, run_pb2, worker_pb2
from lipt.v1 import subset_pb2 as pb
from tests.clock import Clock
from tests.coordinator.dispatch.conftest import Bench
from tests.coordinator.made_up_runs import having, made_up_run
from tests.coordinator.state.conftest import diagnosis_of, execute, subset_of


@pytest.fixture
async def access(database: Database, clock: Clock) -> AccessService:
    tokens = Tokens(database, lambda: Token.draw("admin"), wall_clock=clock)
    return AccessService(tokens, lambda caller: (f"http://127.0.0.1:1/?code={caller.key}", 60.0))


@pytest.mark.parametrize("role", [0, 9])
async def test_an_unknown_role_is_refused_with_the_roles(access: AccessService, role: Any) -> None:
    with pytest.raises(InvalidRequestError, match="worker, trainer, admin"):
        await access.CreateToken(access_pb2.CreateTokenRequest(role=role), NOBODY)


async def test_who_am_i_returns_name_and_roles_and_open_page_a_link(access: AccessService) -> None:
    answer = await access.WhoAmI(access_pb2.WhoAmIRequest(), NOBODY)
    assert answer.name == "anybody"
    assert list(answer.roles) == [
        access_pb2.ROLE_WORKER,
        access_pb2.ROLE_TRAINER,
        access_pb2.ROLE_ADMIN,
    ]
    opened = await access.OpenPage(access_pb2.OpenPageRequest(), NOBODY)
    assert opened.url == "http://127.0.0.1:1/?code=anybody"
    assert opened.expires_at.ToSeconds() == 60


# No identification here, so the caller is ANYBODY.
NOBODY = cast("Any", None)


async def test_listing_runs_yields_to_other_calls_and_skips_removed_runs(
    database: Database,
) -> None:
    for number in range(90):
        run = made_up_run(f"e{number:02}", state=RunState.READY).changed(created_at=number)
        await database.save_run(run, run.learners)
    store = RunStore(database)
    await store.load()
    service = RunService(store, NOBODY, NOBODY, asyncio.Event(), waiting_reason=lambda _: "")
    # Gone from the disk, and about to be gone from the store.
    await database.remove_run("e60")
    turns = 0

    async def note() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    noting = asyncio.create_task(note())
    first = await service.ListRuns(run_pb2.ListRunsRequest(page_size=70), NOBODY)
    noting.cancel()
    # Before each of seventy runs.
    assert turns == 70
    request = run_pb2.ListRunsRequest(page_size=70, page_token=first.next_page_token)
    second = await service.ListRuns(request, NOBODY)
    assert second.next_page_token == ""
    ids = [run.run_id for page in (first, second) for run in page.runs]
    assert ids == [f"e{number:02}" for number in reversed(range(90)) if number != 60]
    assert first.runs[0].costs.bytes_to_workers == 0
    assert not first.runs[0].learners


async def test_an_unreadable_run_is_listed_and_watched_beside_the_others(
    database: Database, tmp_path: Path
) -> None:
    for number, run_id in enumerate(("damaged", "later", "fine")):
        run = made_up_run(run_id, state=RunState.READY).changed(created_at=10.0 + number)
        await database.save_run(run, run.learners)
    execute(tmp_path / "lipt.db", "UPDATE runs SET body = '{' WHERE run_id = 'damaged'")
    watched = Watched(database)
    await watched.store.load()
    # While it is served.
    execute(tmp_path / "lipt.db", "DELETE FROM learners WHERE run_id = 'later'")
    requests = cast("Any", SimpleNamespace(driver=SimpleNamespace(cancel=None)))
    service = RunService(watched.store, requests, NOBODY, watched.stopping, lambda _: "")
    listed = await service.ListRuns(run_pb2.ListRunsRequest(), NOBODY)
    answers = watched.watch()
    first = await anext(answers)
    await answers.aclose()
    states = ["RUN_STATE_READY", "RUN_STATE_UNREADABLE", "RUN_STATE_UNREADABLE"]
    for runs in (listed.runs, first.runs):
        assert [run.run_id for run in runs] == ["fine", "later", "damaged"]
        assert [run_pb2.RunState.Name(run.state) for run in runs] == states
        assert [run.created_at.seconds for run in runs] == [12, 11, 10]
        assert "some are missing" in runs[1].message
        assert "run damaged cannot be read" in runs[2].message
    views = [view_of(RunView, run) for run in listed.runs]
    assert [view.state for view in views] == [RunState.READY, *[RunState.UNREADABLE] * 2]
    assert [view.goes_on for view in views] == [False] * 3
    for call in (
        service.GetRun(run_pb2.GetRunRequest(run_id="later"), NOBODY),
        service.CancelRun(run_pb2.CancelRunRequest(run_id="name-damaged"), NOBODY),
        anext(service.WatchRun(run_pb2.WatchRunRequest(run_id="damaged"), NOBODY)),
    ):
        with pytest.raises(UnreadableRunError, match="cannot be read"):
            await call


HELD = "run name-r was made on other data."


@pytest.mark.parametrize(
    ("state", "held", "message"),
    [
        (
            RunState.TRAINING,
            HELD,
            f"{HELD} The run goes on by itself then, from where it is: training.",
        ),
        (RunState.READY, HELD, f"{HELD} Until then the run gives what is stored, and nothing new."),
        (RunState.FAILED, "", "none came."),
        (RunState.FAILED, HELD, "none came."),
    ],
)
async def test_a_run_s_message_is_the_reason_of_its_hold_or_failure(
    database: Database, state: RunState, held: str, message: str
) -> None:
    run, store = made_up_run(state=state), RunStore(database)
    await store.add(run.changed(message="none came." if state is RunState.FAILED else ""))
    store.hold(run.run_id, held)
    view = run_view(store, store.find(run.run_id))
    seen = "held" if held and state is RunState.TRAINING else state.value
    assert (enum_value(run_pb2.RunState.DESCRIPTOR, view.state), view.message) == (seen, message)


async def test_a_learner_is_shown_with_its_worker_while_leased_and_once_done(
    database: Database,
) -> None:
    states = [state for state in LearnerState if state is not LearnerState.UNKNOWN]
    store = RunStore(database)
    await store.add(having(made_up_run(num_learners=len(states)), *states))
    view = run_view(store, store.find("r"))
    seen = [(it.state, it.worker_name, it.HasField("result")) for it in view.learners]
    assert seen == [
        (run_pb2.LEARNER_STATE_QUEUED, "", False),
        (run_pb2.LEARNER_STATE_LEASED, "box", False),
        (run_pb2.LEARNER_STATE_DONE, "box", True),
        (run_pb2.LEARNER_STATE_FAILED, "", False),
        (run_pb2.LEARNER_STATE_DROPPED, "", False),
    ]


LEARNER = LearnerResult(blob=BlobName.of(b"learner"), loss=0.1, train_seconds=6.0, bytes_received=1)


class Watched(Bench):
    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.jobs: list[Computation] = []
        self.stopping = asyncio.Event()
        compute = cast("Any", SimpleNamespace(computations=lambda: self.jobs))
        self.watching = InfoService(
            NOBODY,
            self.store,
            self.dispatcher,
            compute,
            self.stopping,
            default_run=RunConfig(),
            device="cpu",
            wall_clock=lambda: 1000.0 + self.clock.now,
        )

    def watch(self, interval_seconds: float = 0.01, num_runs: int = 20) -> Any:
        request = info_pb2.WatchServiceRequest(interval_seconds=interval_seconds, num_runs=num_runs)
        return self.watching.WatchService(request, cast("Any", None))

    async def next_two(self, change: Callable[[], Any]) -> list[info_pb2.WatchServiceResponse]:
        answers = self.watch()
        first = await anext(answers)
        changed = change()
        if asyncio.iscoroutine(changed):
            await changed
        second = await anext(answers)
        await answers.aclose()
        return [first, second]


@pytest.fixture
async def bench(database: Database) -> Watched:
    return Watched(database)


async def test_the_first_answer_has_all_runs_and_later_ones_changes(bench: Watched) -> None:
    for name in "abc":
        await bench.store.add(made_up_run(name))
    first, second = await bench.next_two(lambda: bench.store.hold("b", "its data is away."))
    assert [run.run_id for run in first.runs] == ["c", "b", "a"]
    assert [(run.run_id, run.state) for run in second.runs] == [("b", run_pb2.RUN_STATE_HELD)]
    assert first.num_runs == 3


async def test_a_learner_has_its_times_and_phase(bench: Watched) -> None:
    await bench.store.add(made_up_run("r", num_learners=1))
    worker_id = bench.join("i" * 32)
    await bench.dispatcher.next_work(worker_id, wait_seconds=0.0)
    lease = LearnerLease(LearnerAssignment("r", 0), 1, worker_id)
    said = LearnerProgress(LearnerPhase.TRAINING, step=2, loss=0.5)
    answers = bench.watch(num_runs=1)
    await anext(answers)
    bench.dispatcher.heartbeat(lease, said)
    (out,) = (await anext(answers)).runs[0].learners
    assert (out.phase, out.step, out.num_steps) == (worker_pb2.LEARNER_PHASE_TRAINING, 2, 10)
    assert out.leased_at.ToSeconds() == 1000
    assert not out.HasField("committed_at")
    assert (list(out.loss_steps), list(out.losses)) == ([2], [0.5])
    bench.clock.now += 7.0
    await bench.dispatcher.commit(lease, LEARNER)
    (done,) = (await anext(answers)).runs[0].learners
    assert (done.committed_at.ToSeconds(), done.phase) == (1007, 0)
    # The result's own loss is the last one, on disk as well.
    assert (list(done.loss_steps), list(done.losses)) == ([2, 10], [0.5, LEARNER.loss])
    stored = bench.store.find("r").learners[0].result
    assert stored is not None
    assert stored.loss_steps == (2, 10)


async def test_a_worker_has_its_registration_and_certificate_expiry(bench: Watched) -> None:
    caller = Caller("certificate:1", "box", frozenset(), certificate="1", expires_at=5000.0)

    def later() -> None:
        bench.clock.now += 50.0
        bench.join("j" * 32)

    bench.join("i" * 32, caller=caller)
    first, second = await bench.next_two(later)
    (worker,) = first.workers
    assert worker.certificate_expires_at.ToSeconds() == 5000
    assert worker.joined_at.ToSeconds() == 1000
    assert [one.joined_at.ToSeconds() for one in second.workers] == [1000, 1050]
    assert not second.workers[1].HasField("certificate_expires_at")
    assert second.num_workers == 2


async def test_the_queue_is_sent_only_after_changes(bench: Watched) -> None:
    def job(seconds: float, done: int) -> Computation:
        progress = Progressed("merging learners", done, 9)
        return Computation("dear", "MakeSoup", "r", 0, True, seconds, progress)

    bench.jobs = [job(1.0, 3)]
    answers = bench.watch(num_runs=1)
    (shown,) = (await anext(answers)).computations
    assert (shown.job, shown.seconds, shown.progress.done) == ("MakeSoup", 1.0, 3)
    waiting = asyncio.ensure_future(anext(answers))
    bench.jobs = [job(2.0, 3)]
    done, _ = await asyncio.wait({waiting}, timeout=0.5)
    assert not done
    bench.jobs = [job(3.0, 4)]
    assert (await waiting).computations[0].progress.done == 4


async def test_stream_ends_when_the_service_stops(bench: Watched) -> None:
    answers = bench.watch(60.0)
    await anext(answers)
    bench.stopping.set()
    assert [answer async for answer in answers] == []


@pytest.mark.parametrize(
    ("interval_seconds", "num_runs"), [(float("nan"), 1), (61.0, 1), (1.0, -1), (1.0, 201)]
)
async def test_too_many_requested_runs_are_refused(
    bench: Watched, interval_seconds: float, num_runs: int
) -> None:
    answers = bench.watch(interval_seconds, num_runs)
    with pytest.raises(InvalidRequestError, match=r"outside 1\.\.200"):
        await anext(answers)


RECORD = subset_of("r", "k").changed(num_classes=10)
DIAGNOSIS = diagnosis_of("r", "k")
CONTEXT = cast("Any", SimpleNamespace(peer=lambda: "peer"))


class Fake:
    """Reports once, waits to be let go, and answers every query with one value."""

    def __init__(self, answer: object) -> None:
        self.answer = answer
        self.queries: list[Any] = []
        self.let_go = asyncio.Event()
        self.left = asyncio.Event()

    async def subset(self, query: Any, on_progress: OnProgress, _: str) -> Any:
        self.queries.append(query)
        on_progress(Progressed("computing", 1, 2, ahead=3))
        try:
            await self.let_go.wait()
        except asyncio.CancelledError:
            self.left.set()
            raise
        return self.answer

    diagnosis = subset


@pytest.fixture
def subsets() -> Fake:
    return Fake((RECORD, True))


@pytest.fixture
def service(subsets: Fake) -> SubsetService:
    return SubsetService(cast("Any", subsets))


async def test_every_strategy_lists_needs_and_cost(service: SubsetService) -> None:
    answer = await service.ListStrategies(pb.ListStrategiesRequest(), CONTEXT)
    listed = {strategy.name: strategy for strategy in answer.strategies}
    assert list(listed) == list(STRATEGIES)
    assert all(strategy.needs and strategy.cost for strategy in listed.values())
    assert all(option.help for strategy in listed.values() for option in strategy.options)
    assert all(preset.summary for strategy in listed.values() for preset in strategy.presets)
    assert [
        list(listed[name].needs) for name in ("uniform", "uniform_per_class", "forgetting")
    ] == [["nothing"], ["labels"], ["learners"]]
    assert [preset.name for preset in listed["ccs"].presets] == ["paper"]
    for name, strategy in STRATEGIES.items():
        assert listed[name].default_proxy == strategy.proxy
        assert len(listed[name].options) == len(strategy.options)
    assert listed["kcenter"].works_without_labels
    assert not listed["auto"].works_without_labels


async def test_a_request_s_features_and_previous_subset_are_used(
    service: SubsetService, subsets: Fake
) -> None:
    features = BlobName.of(b"features")
    request = pb.GetSubsetRequest(
        run_id="r", strategy="crest", budget=2, features=blob_to_proto(features), previous="d"
    )
    request.proxy, request.preset, request.labels = "ridge:user", "paper", "none"
    request.soft_labels = True
    answering = service.GetSubset(request, CONTEXT)
    first = await anext(answering)
    subsets.let_go.set()
    responses = [first, *[response async for response in answering]]
    (query,) = subsets.queries
    assert (query.features, query.previous, query.weights) == (features, "d", None)
    assert (str(query.proxy), query.preset, query.labels) == ("ridge:user", "paper", "none")
    assert query.soft_labels
    kinds = [response.WhichOneof("part") for response in responses]
    assert kinds == ["progress", "subset"]
    assert responses[1].subset.file == blob_to_proto(RECORD.blob)
    assert responses[1].subset.kept
    assert (responses[1].subset.num_examples, responses[1].subset.num_classes) == (2, 10)


async def test_a_disconnected_client_is_not_waited_for(
    service: SubsetService, subsets: Fake
) -> None:
    request = pb.GetSubsetRequest(run_id="r", strategy="crest", budget=2)
    answering = cast("AsyncGenerator[Any, None]", service.GetSubset(request, CONTEXT))
    await anext(answering)
    await answering.aclose()
    await subsets.left.wait()


async def test_progress_is_streamed_before_the_description() -> None:
    diagnoses = Fake(DIAGNOSIS)
    features = BlobName.of(b"features")
    request = diagnosis_pb2.DiagnoseRequest(
        run_id="latest", proxy="ridge:learners", features=blob_to_proto(features)
    )
    call = DiagnosisService(cast("Any", diagnoses)).Diagnose(request, CONTEXT)
    progress = run_pb2.Progress(activity="computing", done=1, total=2, ahead=3)
    assert await anext(call) == diagnosis_pb2.DiagnoseResponse(progress=progress)
    diagnoses.let_go.set()
    (last,) = [response async for response in call]
    assert diagnoses.queries == [DiagnosisQuery("latest", "ridge:learners", features)]
    assert last.diagnosis == diagnosis_pb2.DiagnosisDescription(
        file=blob_to_proto(DIAGNOSIS.blob),
        fingerprint=DIAGNOSIS.fingerprint,
        num_examples=2,
        run_id="r",
        proxy="auto",
        manifest_json=json.dumps(DIAGNOSIS.manifest),
    )


async def test_only_the_latest_progress_is_sent() -> None:
    let_go = asyncio.Event()

    async def answer(report: OnProgress) -> str:
        report(Progressed("first", 1, 3))
        report(Progressed("second", 2, 3))
        await let_go.wait()
        return "done"

    with Answering(answer) as answering:
        assert await anext(answering) == Progressed("second", 2, 3)
        let_go.set()
        assert [latest async for latest in answering] == []
        assert answering.result() == "done"


async def test_the_last_progress_is_repeated_as_keep_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SIGN_OF_LIFE_SECONDS", 0.01)

    async def answer(report: OnProgress) -> None:
        report(Progressed("thinking", 0, 0))
        await asyncio.Event().wait()

    with Answering(answer) as answering:
        told = [await anext(answering) for _ in range(3)]
    assert told == [Progressed("thinking", 0, 0)] * 3


def test_names_that_no_message_holds_are_refused_before_the_service_starts() -> None:
    names = tuple(f"{label:06}{'x' * 34}" for label in range(100_000))
    data = DataDescription("d", names, (1,) * len(names), ImageSpec(1, 2, 2), "0" * 16)
    with pytest.raises(DataError, match=r"100000 names .* takes 4\.3 MB.*shorter names"):
        dataset_view(data)
    short = dataclasses.replace(data, class_names=tuple(str(label) for label in range(100_000)))
    assert len(dataset_view(short).class_names) == 100_000
