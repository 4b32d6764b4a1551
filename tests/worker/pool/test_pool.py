import logging
import threading
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lipt.common.config.settings import load_settings
from lipt.common.errors import ConfigError, LiptError, ProcessEndedError, UnreachableError
from lipt.common.rpc.channel import LongPoll
from lipt.v1 import worker_pb2, worker_pb2_grpc
from lipt.worker.pool.pool import (
    Demand,
    DemandSource,
    Ended,
    LocalEngine,
    Pool,
    open_pool_workers,
    own_arguments,
)
from lipt.worker.settings import PoolSettings
from tests.clock import Clock
from tests.worker.fake_client import serving

IDLE_SECONDS = 60.0


def settings(**flags: Any) -> PoolSettings:
    return load_settings(PoolSettings, config=None, flags=flags)


class FakeEngine:
    def __init__(self) -> None:
        self.running: dict[int, Sequence[str]] = {}
        self.over: list[Ended] = []
        self.stopped: list[int] = []

    def start(self, number: int, arguments: Sequence[str]) -> None:
        assert number not in self.running
        self.running[number] = arguments

    def ended(self) -> list[Ended]:
        over, self.over = self.over, []
        for ended in over:
            del self.running[ended.number]
        return over

    def stop(self, numbers: Collection[int]) -> None:
        self.stopped += numbers
        self.over += [Ended(number, 0) for number in sorted(numbers)]


class FakeSource:
    def __init__(self, *answers: Demand | LiptError) -> None:
        self.answers = list(answers)
        self.known: list[Demand | None] = []
        self.pool: Pool | None = None
        self.polls = LongPoll()

    def wait(self, known: Demand | None, *, wait_seconds: float) -> Demand:
        self.known.append(known)
        if not self.answers and self.pool is not None:
            self.pool.stop()
            raise UnreachableError("the end.")
        if isinstance(answer := self.answers.pop(0), LiptError):
            raise answer
        return answer


class Bench:
    def __init__(self, *answers: Demand | LiptError, most: int = 4) -> None:
        self.clock, self.engine, self.source = Clock(100.0), FakeEngine(), FakeSource(*answers)
        self.pool = Pool(
            settings(workers=most, idle_seconds=IDLE_SECONDS),
            ["--coordinator", "head:1"],
            cast("Any", self.source),
            cast("Any", self.engine),
            clock=self.clock,
        )
        self.source.pool = self.pool

    def tend(self, demand: Demand, *, after_seconds: float = 1.0) -> list[int]:
        self.clock.now += after_seconds
        self.pool.tend(demand)
        return sorted(self.engine.running)

    def end(self, number: int, status: int | None, tail: str = "") -> None:
        self.engine.over.append(Ended(number, status, tail))


def test_the_pool_starts_workers_for_learners_and_stops_idle_ones() -> None:
    bench = Bench()
    assert bench.tend(Demand()) == []
    # These workers have no data.
    assert bench.tend(Demand(num_ranges=3)) == []
    assert bench.tend(Demand(num_queued=1, num_leased=1, num_upcoming=1)) == [0, 1, 2]
    assert bench.tend(Demand(num_queued=3, num_leased=3)) == [0, 1, 2, 3]
    bench.tend(Demand())
    assert bench.engine.stopped == []
    bench.tend(Demand(), after_seconds=IDLE_SECONDS)
    assert bench.engine.stopped == [0, 1, 2, 3]
    assert bench.tend(Demand()) == []


def test_invalid_worker_arguments_end_the_pool() -> None:
    bench = Bench()
    bench.tend(Demand(num_queued=1))
    bench.end(0, 2, "No such option: --nonsense")
    with pytest.raises(ProcessEndedError, match="No such option: --nonsense"):
        bench.tend(Demand(num_queued=1))


def test_the_pool_keeps_workers_without_a_coordinator(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = UnreachableError("head:1 does not answer.")
    bench = Bench(Demand(num_queued=1), away, away, Demand(num_queued=2))
    monkeypatch.setattr(bench.pool._stopping, "wait", lambda _: None)
    with caplog.at_level(logging.INFO):
        bench.pool.run()
    assert sorted(bench.engine.running) == [0, 1]
    assert caplog.text.count("head:1 does not answer. Trying again until it answers.") == 1
    first, *others = bench.source.known
    assert first is None
    assert others == [Demand(num_queued=1)] * 3 + [Demand(num_queued=2)]


class Fake(worker_pb2_grpc.WorkerServiceServicer):
    def __init__(self) -> None:
        self.asked: list[worker_pb2.GetDemandRequest] = []
        self.may_answer = threading.Event()
        self.when_asked: Callable[[], object] = lambda: None

    def GetDemand(self, request: Any, context: Any) -> Any:
        self.asked.append(request)
        self.when_asked()
        assert self.may_answer.wait(60.0)
        return worker_pb2.GetDemandResponse(
            num_queued=1, num_leased=2, num_upcoming=3, num_ranges=4
        )


def test_the_pool_polls_the_demand_until_interrupted() -> None:
    fake = Fake()  # pyright: ignore[reportAbstractUsage] - the rest stays unimplemented
    with serving(fake) as channel:
        source = DemandSource(channel)
        fake.may_answer.set()
        first = source.wait(None, wait_seconds=2.0)
        assert first == Demand(num_queued=1, num_leased=2, num_upcoming=3, num_ranges=4)
        assert source.wait(first, wait_seconds=2.0) == first
        without, having = fake.asked
        assert not without.HasField("known")
        assert having.known == first
        fake.may_answer.clear()
        fake.when_asked = source.polls.interrupt
        assert source.wait(Demand(num_queued=4), wait_seconds=60.0) == Demand(num_queued=4)
        assert source.wait(None, wait_seconds=60.0) == Demand()
        fake.may_answer.set()


TOKEN = "lipt_0123456789abcdef_" + "A" * 43


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ({"workers": 0}, "workers = 0"),
        ({"working_dir": Path()}, "working_dir is for a pool on Ray"),
        ({"resources": ("gpu=1",)}, "resources is for a pool on Ray"),
        ({"coordinator": "head"}, "address 'head' is not host:port"),
        ({"ray": "auto", "resources": ("gpu",)}, "resources.0 = 'gpu': string should match"),
        ({"ray": "auto", "working_dir": "/none"}, "working_dir = '/none': path does not point"),
    ],
)
def test_invalid_pool_settings_are_refused(flags: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence), open_pool_workers(settings(**flags), []):
        pass


def test_workers_get_file_paths_and_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = own_arguments(settings(coordinator="head:1", tls_ca=Path("ca.pem"), token=TOKEN))
    assert words == [
        *("--coordinator", "head:1", "--log-level", "INFO"),
        *("--tls-ca", str(tmp_path / "ca.pem")),
    ]


@pytest.mark.parametrize(
    ("gpus", "devices"),
    [(0.0, ["cpu", "cpu", "cpu"]), (1.0, ["cuda:0", "cuda:1", "cuda:2"]),
     (0.5, ["cuda:0", "cuda:0", "cuda:1"])],
)  # fmt: skip
def test_local_workers_share_gpus_as_configured(
    gpus: float, devices: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[list[str]] = []

    class Told:
        def __init__(self, module: str, arguments: list[str], *_: object) -> None:
            started.append([module, *arguments])

    monkeypatch.setattr("lipt.worker.pool.pool.Child", Told)
    engine = LocalEngine(gpus)
    for number in range(3):
        engine.start(number, ["--device", "mine"])
    assert [words[:3] for words in started] == [
        ["lipt.worker", "--device", device] for device in devices
    ]
    assert all(words[3:] == ["--device", "mine"] for words in started)


def test_workers_that_fail_early_restart_after_growing_pauses() -> None:
    bench, pauses = Bench(most=1), []
    demand = Demand(num_queued=1)
    bench.tend(demand)
    for _ in range(8):
        bench.end(0, 1)
        failed_at = bench.clock.now
        while not bench.tend(demand):
            pass
        pauses.append(bench.clock.now - failed_at - 1.0)
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]


@given(st.integers(1, 10), st.lists(st.integers(0, 15), min_size=1, max_size=120))
def test_the_pool_stays_within_bounds_and_is_empty_when_idle(most: int, demands: list[int]) -> None:
    bench = Bench(most=most)
    for num_open in demands:
        present = len(bench.tend(Demand(num_queued=num_open), after_seconds=10.0))
        assert min(num_open, most) <= present <= most
    for _ in range(3):
        bench.tend(Demand(), after_seconds=IDLE_SECONDS)
    assert bench.engine.running == {}
