"""Shared passes over the digits; what workers send is put where they would have sent it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from lipt.common.blobs.blob import BlobName
from lipt.common.config.run_config import RunConfig
from lipt.common.inputs.specs import ImageFormat
from lipt.common.signals.passes import encode_range, score_range
from lipt.coordinator.compute.context import Context
from lipt.coordinator.compute.messages import News, ScanClosed, ScanNews
from lipt.coordinator.compute.scan import (
    HERE,
    RangeDone,
    RangeFolder,
    Scan,
    ScanOpened,
    WorkerDistrusted,
    scan_of,
    scanned_signals,
    scans_dir,
)
from lipt.coordinator.settings import CoordinatorSettings
from lipt.core.signals.signals import Signals
from lipt.core.stages.warm_up import model_signals
from tests.digits import digits_settings
from tests.tiny import linear

CONFIG = RunConfig(model="tests.tiny:linear", seed=3, evaluation_threads=1)
IMAGE = ImageFormat(1, 8, 8, mean=(0.5,), std=(0.25,))
WEIGHTS = BlobName.of(b"theta_p")
# Of 1,797 digits in batches of 1,024 there would be one and a half.
RANGE = 256

pytest.importorskip("sklearn")


class Killed(BaseException): ...


class World:
    """A compute process, what it says, and what workers do when it does."""

    def __init__(
        self, state_dir: Path, monkeypatch: pytest.MonkeyPatch, scoring_range: int = RANGE
    ) -> None:
        monkeypatch.setattr(Context, "batch_size", property(lambda _: 64))
        settings = digits_settings(state_dir)
        compute = settings.compute.model_copy(update={"scoring_range": scoring_range})
        self.settings = settings.model_copy(update={"compute": compute})
        self.news: list[ScanNews] = []
        self.when_opened: Callable[[Scan], None] = lambda _: None
        self.when_done: Callable[[RangeDone], None] = lambda _: None
        self.model = linear(num_classes=10)
        self.context = self.started(self.settings)
        self.scan = scan_of(self.context, CONFIG, IMAGE, self.model, WEIGHTS)
        self.folder = RangeFolder(scans_dir(state_dir), self.scan.scan_id)

    def started(self, settings: CoordinatorSettings) -> Context:
        return Context(settings, send=self._hear)

    def _hear(self, said: News) -> None:
        if isinstance(said, ScanNews):
            self.news.append(said)
        if isinstance(said, ScanOpened):
            self.when_opened(said.scan)
        elif isinstance(said, RangeDone):
            self.when_done(said)

    def signals(self) -> Signals:
        return scanned_signals(self.context, CONFIG, IMAGE, self.model, weights=WEIGHTS)

    def alone(self) -> Signals:
        return model_signals(self.context, CONFIG, IMAGE, self.model)

    def sent(self, worker: str, index: int, model: nn.Module | None = None) -> None:
        self.folder.keep(index, worker, self.file(index, model or self.model))

    def file(self, index: int, model: nn.Module) -> bytes:
        task = self.scan.task(index)
        return encode_range(
            score_range(model, self.context.dataset, task, device=torch.device("cpu"))
        )

    def done_here(self) -> list[int]:
        return [said.index for said in self.news if isinstance(said, RangeDone)]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(tmp_path, monkeypatch)


def same(first: Signals, second: Signals) -> bool:
    return torch.equal(first.errors_NC, second.errors_NC) and torch.equal(
        first.features_ND, second.features_ND
    )


def test_a_coordinator_alone_goes_from_the_end_to_the_beginning_to_the_same_bits(
    world: World,
) -> None:
    assert same(world.signals(), world.alone())
    assert world.done_here() == [7, 6, 5, 4, 3, 2, 1, 0]
    assert isinstance(world.news[0], ScanOpened)
    assert isinstance(world.news[-1], ScanClosed)
    assert not world.folder.path.exists()


def test_a_pass_that_was_cut_goes_on_with_what_is_missing(world: World) -> None:
    def end(said: RangeDone) -> None:
        if said.index == 4:
            raise Killed

    world.when_done = end
    with pytest.raises(Killed):
        world.signals()
    assert set(world.folder.files()) == {4, 5, 6, 7}
    world.when_done = lambda _: None
    world.news.clear()
    assert same(world.signals(), world.alone())
    assert world.done_here() == [3, 2, 1, 0]
    opened = world.news[0]
    assert isinstance(opened, ScanOpened)
    assert opened.present == {4, 5, 6, 7}


def test_wrong_values_are_found_and_all_of_that_worker_s_ranges_computed_again(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    def send(_: Scan) -> None:
        world.sent("liar", 1, linear(num_classes=10))
        world.sent("liar", 2, linear(num_classes=10))
        world.sent("honest", 3)

    world.when_opened = send
    assert same(world.signals(), world.alone())
    assert world.done_here() == [7, 6, 5, 4, 0, 2, 1]
    (distrusted,) = (said for said in world.news if isinstance(said, WorkerDistrusted))
    assert (distrusted.worker_id, distrusted.ranges) == ("liar", {1, 2})
    assert "worker liar has sent signals that its examples do not have" in caplog.text


def test_of_many_new_workers_each_is_verified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, monkeypatch, scoring_range=128)
    faulty = [f"faulty {number}" for number in range(12)]

    def send(_: Scan) -> None:
        for index, worker in enumerate(faulty):
            world.sent(worker, index, linear(num_classes=10))
        world.sent("honest", 12)

    world.when_opened = send
    assert same(world.signals(), world.alone())
    distrusted = {said.worker_id for said in world.news if isinstance(said, WorkerDistrusted)}
    assert distrusted == set(faulty)
    assert 12 not in world.done_here()


def test_a_worker_whose_file_the_disk_has_damaged_is_not_trusted_for_it(world: World) -> None:
    def send(_: Scan) -> None:
        world.sent("w1", 0)
        (damaged,) = world.folder.files().values()
        damaged.path.write_bytes(b"")

    def send_more(said: RangeDone) -> None:
        if said.index == 0:
            # It comes back only once its first file was found damaged.
            world.sent("w1", 1, linear(num_classes=10))
            (world.folder.path / next(world.folder.path.glob("1.here.*"))).unlink()

    world.when_opened, world.when_done = send, send_more
    assert same(world.signals(), world.alone())
    assert [said.worker_id for said in world.news if isinstance(said, WorkerDistrusted)] == ["w1"]


def test_values_of_another_kind_of_machine_may_differ_in_their_last_digits(world: World) -> None:
    near = linear(num_classes=10)
    near.load_state_dict({name: value * (1 + 1e-6) for name, value in _state(world.model)})
    compute = world.settings.compute.model_copy(
        update={"scoring_workers": world.settings.compute.scoring_workers.ANY}
    )
    world.context = world.started(world.settings.model_copy(update={"compute": compute}))
    scan = scan_of(world.context, CONFIG, IMAGE, world.model, WEIGHTS)
    assert (scan.kind, scan.scan_id != world.scan.scan_id) == ("", True)
    world.scan = scan
    world.folder = RangeFolder(scans_dir(world.settings.state_dir), scan.scan_id)
    world.when_opened = lambda _: world.sent("w1", 0, near)
    signals = world.signals()
    assert not same(signals, world.alone())
    assert torch.allclose(signals.errors_NC, world.alone().errors_NC, atol=1e-4)
    assert 0 not in world.done_here()


def _state(model: nn.Module) -> list[tuple[str, torch.Tensor]]:
    return list(model.state_dict().items())


@pytest.mark.parametrize("damage", ["a bit", "the end", "all"])
def test_a_file_that_the_disk_has_changed_is_computed_again(world: World, damage: str) -> None:
    def send(_: Scan) -> None:
        world.sent("w1", 5)
        path = world.folder.files()[5].path
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        left = {"a bit": content, "the end": content[:-9], "all": bytearray()}[damage]
        path.write_bytes(left)

    world.when_opened = send
    assert same(world.signals(), world.alone())
    assert 5 in world.done_here()


def test_only_so_many_cut_passes_are_kept(tmp_path: Path) -> None:
    for number in range(5):
        folder = RangeFolder(tmp_path, f"scan-{number}")
        folder.open()
        folder.keep(0, HERE, b"content")
    assert {path.name for path in tmp_path.iterdir()} == {"scan-2", "scan-3", "scan-4"}
