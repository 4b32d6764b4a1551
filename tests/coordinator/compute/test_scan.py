"""Shared passes over the digits; what workers send is put where they would have sent it."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from lipt.common.blobs.blob import BlobName
from lipt.common.config.run_config import RunConfig
from lipt.common.tensor_files import read_weights, specs_of
from lipt.coordinator.compute.context import Context
from lipt.coordinator.compute.messages import News, ScanClosed, ScanNews
from lipt.coordinator.compute.scan import (
    HERE,
    CredentialDistrusted,
    RangeDone,
    RangeFolder,
    Scan,
    ScanOpened,
    ScoreVerification,
    scan_of,
    scanned,
    scans_dir,
    scorers_of,
)
from lipt.coordinator.settings import CoordinatorSettings
from lipt.core.passes import account, data_proof, encode_range, score_range, unnoticed
from lipt.core.signals.signals import labels_only
from lipt.core.signals.targeted import TargetSignals
from lipt.core.stages.warm_up import ModelPass, PassResult, pass_here
from lipt.core.tasks import ScoredValues, ScoringTask
from tests.coordinator.made_up_runs import IMAGE
from tests.digits import digits_settings
from tests.tiny import linear

CONFIG = RunConfig(model="tests.tiny:linear", seed=3, evaluation_threads=1)
WEIGHTS = BlobName.of(b"theta_p")
# Of 1,797 digits in batches of 1,024 there would be one and a half.
RANGE = 256

pytest.importorskip("sklearn")


class Killed(BaseException): ...


class World:
    """A compute process, what it says, and what workers do when it does."""

    def __init__(
        self,
        state_dir: Path,
        monkeypatch: pytest.MonkeyPatch,
        scoring_range: int = RANGE,
        values: ScoredValues = ScoredValues.SIGNALS,
    ) -> None:
        monkeypatch.setattr(Context, "batch_size", property(lambda _: 64))
        settings = digits_settings(state_dir)
        # Half of all examples: a range of forged ones never goes unnoticed.
        self.settings = settings
        self.settings = self.computing(scoring_range=scoring_range, verified_share=0.5)
        self.news: list[ScanNews] = []
        self.when_opened: Callable[[Scan], None] = lambda _: None
        self.when_done: Callable[[RangeDone], None] = lambda _: None
        self.model = linear(num_classes=10)
        self.context = self.started(self.settings)
        self.wanted = ModelPass(CONFIG, IMAGE, self.model, values, "scoring", WEIGHTS)
        self.scan = scan_of(self.context, self.wanted, WEIGHTS)
        self.folder = RangeFolder(scans_dir(state_dir), self.scan.scan_id)

    def computing(self, **changes: object) -> CoordinatorSettings:
        compute = self.settings.compute.model_copy(update=changes)
        return self.settings.model_copy(update={"compute": compute})

    def started(self, settings: CoordinatorSettings) -> Context:
        return Context(settings, send=self._hear)

    def _hear(self, said: News) -> None:
        if isinstance(said, ScanNews):
            self.news.append(said)
        if isinstance(said, ScanOpened):
            self.when_opened(said.scan)
        elif isinstance(said, RangeDone):
            self.when_done(said)

    def shared(self) -> PassResult:
        return scanned(self.context, self.wanted)

    def alone(self) -> PassResult:
        return pass_here(self.context, self.wanted)

    def sent(self, credential: str, index: int, model: nn.Module | None = None) -> None:
        self.folder.keep(index, credential, self.file(index, model or self.model))

    def file(self, index: int, model: nn.Module) -> bytes:
        task = self.scan.task(index)
        return encode_range(
            score_range(model, self.context.dataset, task, device=torch.device("cpu"))
        )

    def done_here(self) -> list[int]:
        return [said.index for said in self.news if isinstance(said, RangeDone)]

    def distrusted(self) -> dict[str, frozenset[int]]:
        return {
            it.credential: it.ranges for it in self.news if isinstance(it, CredentialDistrusted)
        }


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(tmp_path, monkeypatch)


def same(first: PassResult, second: PassResult) -> bool:
    assert first.computed.keys() == second.computed.keys()
    return all(torch.equal(first.computed[name], second.computed[name]) for name in first.computed)


EACH_KIND = pytest.mark.parametrize(
    "values", [ScoredValues.SIGNALS, ScoredValues.LOSSES, ScoredValues.LOSSES_AND_FEATURES]
)


@EACH_KIND
def test_a_coordinator_alone_computes_all_ranges_to_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, values: ScoredValues
) -> None:
    world = World(tmp_path, monkeypatch, values=values)
    assert same(world.shared(), world.alone())
    assert world.done_here() == [7, 6, 5, 4, 3, 2, 1, 0]
    assert isinstance(world.news[0], ScanOpened)
    assert isinstance(world.news[-1], ScanClosed)
    assert not world.folder.path.exists()


def test_an_interrupted_pass_computes_only_missing_ranges(world: World) -> None:
    def end(said: RangeDone) -> None:
        if said.index == 4:
            raise Killed

    world.when_done = end
    with pytest.raises(Killed):
        world.shared()
    assert set(world.folder.files()) == {4, 5, 6, 7}
    world.when_done = lambda _: None
    world.news.clear()
    assert same(world.shared(), world.alone())
    assert world.done_here() == [3, 2, 1, 0]
    opened = world.news[0]
    assert isinstance(opened, ScanOpened)
    assert opened.present == {4, 5, 6, 7}


@EACH_KIND
def test_wrong_values_are_found_and_the_credential_s_ranges_repeated(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    values: ScoredValues,
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World(tmp_path, monkeypatch, values=values)

    def send(_: Scan) -> None:
        world.sent("faulty", 1)
        world.sent("faulty", 2, linear(num_classes=10))
        world.sent("honest", 3)

    world.when_opened = send
    signals = world.shared()
    assert same(signals, world.alone())
    assert world.done_here() == [7, 6, 5, 4, 2, 1, 0]
    assert world.distrusted() == {"faulty": {1, 2}}
    assert "faulty has sent values that its examples do not have" in caplog.text
    assert signals.scored_by is not None
    (credential,) = signals.scored_by["credentials"]
    assert (
        credential["credential"],
        credential["num_examples"],
        signals.scored_by["num_here"],
    ) == (*("honest", 256), 1797 - 256)
    assert 64 < credential["num_verified"] < 192


def test_each_of_many_credentials_is_verified_in_each_of_its_ranges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A credential that has sent right ranges before is verified like any other.
    world = World(tmp_path, monkeypatch, scoring_range=128)
    faulty = {f"faulty-{number}" for number in range(6)}

    def send(_: Scan) -> None:
        for index, credential in enumerate(sorted(faulty)):
            world.sent(credential, index)
            world.sent(credential, index + 6, linear(num_classes=10))
        world.sent("honest", 12)

    world.when_opened = send
    assert same(world.shared(), world.alone())
    assert world.distrusted().keys() == faulty
    assert 12 not in world.done_here()


def test_a_forged_last_range_and_later_ranges_are_detected(world: World) -> None:
    def send(said: RangeDone) -> None:
        if said.index == 1:
            world.sent("late", 0, linear(num_classes=10))
        if said.index == 4:
            world.sent("early", 3, linear(num_classes=10))
        if said.index == 2 and "early" in world.distrusted():
            # It was on its way.
            world.sent("early", 1)

    world.when_done = send
    assert same(world.shared(), world.alone())
    assert world.distrusted().keys() == {"early", "late"}
    assert world.done_here() == [7, 6, 5, 4, 3, 2, 1, 0]
    assert not world.folder.path.exists()


def test_sampled_examples_of_a_partial_batch_are_verified_at_the_end(world: World) -> None:
    # Some 26 of 256, and a batch has 64.
    world.context = world.started(world.computing(verified_share=0.1))
    world.when_opened = lambda _: world.sent("faulty", 0, linear(num_classes=10))
    assert same(world.shared(), world.alone())
    assert world.distrusted() == {"faulty": {0}}


def test_cached_signals_lose_ranges_of_a_distrusted_credential(world: World) -> None:
    other = RangeFolder(scans_dir(world.settings.state_dir), "scan-other")
    other.open()
    for credential in ("faulty", "honest"):
        other.keep(0 if credential == "faulty" else 1, credential, b"content")
        for kind, kept in (("signals", labels_only(torch.zeros(3))), ("target", TargetSignals())):
            path = world.context.signals_dir / f"{kind}-{credential}.0.safetensors"
            replace(kept, scored_by=account(0, {credential: 3}, {}, 0.5)).save(path)
    (world.context.signals_dir / "damaged-faulty.0.safetensors").write_bytes(b"faulty")
    world.when_opened = lambda _: world.sent("faulty", 0, linear(num_classes=10))
    world.shared()
    kept = {path.name.partition(".")[0] for path in world.context.signals_dir.glob("*.safetensors")}
    assert kept == {"signals-honest", "target-honest", "damaged-faulty"}
    assert [file.credential for file in other.files().values()] == ["honest"]


def test_a_data_proof_depends_on_each_example_target_and_nonce(world: World) -> None:
    world.shared()
    (opened,) = (said for said in world.news if isinstance(said, ScanOpened))
    dataset, asked = world.context.dataset, opened.challenge
    assert data_proof(dataset, asked.nonce, asked.ids) == asked.proof
    assert len(set(asked.ids)) == 16
    others = [(asked.nonce, (*asked.ids[:-1], asked.ids[0])), ("", asked.ids)]
    relabelled = replace(dataset, rows=replace(dataset.rows, labels_N=dataset.labels_N + 1))  # type: ignore[type-var]
    proofs = [data_proof(dataset, *other) for other in others]
    assert asked.proof not in [*proofs, data_proof(relabelled, asked.nonce, asked.ids)]


def test_machines_of_any_kind_differ_in_last_digits_and_coarse_ones_are_rejected(
    world: World,
) -> None:
    near, coarse = linear(num_classes=10), linear(num_classes=10)
    near.load_state_dict({name: value * (1 + 1e-6) for name, value in _state(world.model)})
    rounded = {name: (value * 16).round() / 16 for name, value in _state(world.model)}
    coarse.load_state_dict(rounded)
    any_kind = world.computing(scoring_workers=world.settings.compute.scoring_workers.ANY)
    world.context = world.started(any_kind)
    scan = scan_of(world.context, world.wanted, WEIGHTS)
    assert (scan.kind, scan.scan_id != world.scan.scan_id) == ("", True)
    world.scan = scan
    world.folder = RangeFolder(scans_dir(world.settings.state_dir), scan.scan_id)

    def send(_: Scan) -> None:
        world.sent("near", 0, near)
        world.sent("coarse", 1, coarse)

    world.when_opened = send
    signals, alone = world.shared(), world.alone()
    assert not same(signals, alone)
    errors = signals.computed["errors"], alone.computed["errors"]
    assert torch.allclose(errors[0], errors[1], atol=1e-4)
    assert 0 not in world.done_here()
    assert world.distrusted() == {"coarse": {1}}
    chosen = [errors_NC.norm(dim=1).argsort(stable=True)[-180:] for errors_NC in errors]
    assert set(chosen[0].tolist()) == set(chosen[1].tolist())


def test_the_coordinator_s_own_range_is_preferred(world: World) -> None:
    world.folder.open()
    for credential in ("a", HERE, "z"):
        world.folder.keep(0, credential, credential.encode())
    assert [file.credential for file in world.folder.files().values()] == [HERE]


def _state(model: nn.Module) -> list[tuple[str, torch.Tensor]]:
    return list(model.state_dict().items())


@pytest.mark.parametrize("damage", ["a bit", "the end", "all"])
def test_a_damaged_range_file_is_computed_again(world: World, damage: str) -> None:
    def send(_: Scan) -> None:
        world.sent("w1", 5)
        path = world.folder.files()[5].path
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        left = {"a bit": content, "the end": content[:-9], "all": bytearray()}[damage]
        path.write_bytes(left)

    world.when_opened = send
    assert same(world.shared(), world.alone())
    assert 5 in world.done_here()


def test_the_number_of_kept_interrupted_passes_is_limited(tmp_path: Path) -> None:
    for number in range(5):
        folder = RangeFolder(tmp_path, f"scan-{number}")
        folder.open()
        folder.keep(0, HERE, b"content")
    assert {path.name for path in tmp_path.iterdir()} == {"scan-2", "scan-3", "scan-4"}


# The stated probability of unnoticed forgeries, against simulated faulty workers.
NUM_EXAMPLES, PART, SHARE = 400, 40, 0.05
WHOLE = ScoringTask(
    model="resnet8",
    num_classes=2,
    image=IMAGE,
    fingerprint="f" * 64,
    start=0,
    stop=NUM_EXAMPLES,
    batch_size=8,
    threads=1,
    values=ScoredValues.SIGNALS,
)
TRUE = torch.rand(NUM_EXAMPLES, 2, generator=torch.Generator().manual_seed(1))
TRIALS = 300


class Scorer:
    """Scores as this process does; `shift` depends on an example's place in its batch."""

    def __init__(self, shift: float = 0.0) -> None:
        self.shift, self.num_batches = shift, 0

    def __call__(self, ids_B: Tensor) -> tuple[Tensor]:
        self.num_batches += 1
        return (TRUE[ids_B] + self.shift * torch.arange(len(ids_B))[:, None],)


def verification(share: float = SHARE, *, exact: bool = True) -> ScoreVerification:
    return ScoreVerification(WHOLE, Scorer(), share=share, exact=exact)


def noticed(credentials: Sequence[str], forged: Sequence[int]) -> bool:
    """Whether a pass with a range from each credential in turn finds any forged example."""
    sent = TRUE.clone()
    sent[list(forged)] += 0.5
    checked = verification()
    for place, start in enumerate(range(0, NUM_EXAMPLES, PART)):
        checked.draw(credentials[place % len(credentials)], start, (sent[start : start + PART],))
        if checked.check(everything=start + PART == NUM_EXAMPLES):
            return True
    return False


@pytest.mark.parametrize(
    ("credentials", "forged"),
    [
        (["one"], range(160, 190)),
        (["one", "another"], [*range(12), *range(40, 52)]),
        (["patient"], range(390, 400)),
        (["careful"], range(7, 400, 80)),
    ],
    ids=["one", "two in turn", "late", "a few ids"],
)
def test_forged_examples_are_missed_as_often_as_stated(
    credentials: list[str], forged: Sequence[int]
) -> None:
    missed = sum(not noticed(credentials, forged) for _ in range(TRIALS))
    stated = unnoticed(SHARE, len(forged))
    # Five standard deviations: one failure in a million runs.
    assert abs(missed / TRIALS - stated) < 5 * (stated * (1 - stated) / TRIALS) ** 0.5


def test_the_verified_share_falls_under_load_to_a_minimum() -> None:
    many = replace(WHOLE, stop=100_000, batch_size=100)
    values = torch.zeros(1000, 2)
    checked = ScoreVerification(
        many, lambda ids: (torch.zeros(len(ids), 2),), share=0.05, exact=True
    )
    checked.draw("a", 0, (values,))
    assert checked.least_share == 0.05
    for start in range(1000, 100_000, 1000):
        checked.draw("a", start, (values,))
    assert checked.least_share == 0.01
    assert checked.check(everything=True) == set()
    # Five standard deviations around a thousand, and fifty of the first two ranges.
    assert 840 < checked.num_verified["a"] < 1300
    # What this process scores makes room again, for six hundred.
    checked.num_here = 10_000
    before = checked.num_verified["a"]
    for start in range(0, 20_000, 1000):
        checked.draw("a", start, (values,))
    checked.check(everything=True)
    assert checked.num_verified["a"] - before > 500


def test_weights_without_a_file_are_stored_for_workers(world: World) -> None:
    world.wanted = replace(world.wanted, weights=None)
    world.shared()
    (opened,) = (said for said in world.news if isinstance(said, ScanOpened))
    state = world.model.state_dict()
    stored = read_weights(
        world.context.read(opened.scan.weights), like=specs_of(state), max_bytes=2**20
    )
    assert all(torch.equal(stored[name], state[name]) for name in state)


def test_the_credentials_of_an_account_are_its_scorers() -> None:
    assert scorers_of(account(0, {"a": 200, "b": 100}, {"b": 7}, 0.5)) == {"a", "b"}
    assert scorers_of(None) == set()


def test_one_last_bit_is_noticed_on_equal_machines_and_accepted_on_others() -> None:
    sent = TRUE.clone()
    sent[3, 1] = torch.nextafter(sent[3, 1], torch.tensor(2.0))
    for exact, wrong in ((True, {"a"}), (False, set[str]())):
        checked = verification(share=1.0, exact=exact)
        checked.draw("a", 0, (sent[:RANGE],))
        assert checked.check(everything=True) == wrong
    # float32 kernels of different machines differ by a thousandth of this.
    checked = verification(share=1.0, exact=False)
    checked.draw("a", 0, (sent[:RANGE] + 0.01,))
    assert checked.check(everything=True) == {"a"}


def test_a_suspected_range_is_confirmed_by_its_own_batch() -> None:
    shift = 1e-6
    scorer = Scorer(shift)
    checked = ScoreVerification(WHOLE, scorer, share=1.0, exact=True)
    places_N = torch.arange(NUM_EXAMPLES) % WHOLE.batch_size
    sent = TRUE + shift * places_N[:, None]
    # From the second example on: all places differ from those of the batches they are checked in.
    checked.draw("honest", 1, (sent[1:121],))
    assert checked.check(everything=True) == set()
    # Fifteen batches, and one that confirmed the first row that differed.
    assert scorer.num_batches == 16
    sent[200] += 0.01
    checked.draw("liar", 192, (sent[192:208],))
    assert checked.check(everything=True) == {"liar"}


def test_whole_batches_and_then_the_rest_are_checked_without_dropped_credentials() -> None:
    checked = verification(share=1.0)
    checked.draw("a", 0, (TRUE[:12] + 0.5,))
    checked.draw("b", 12, (TRUE[12:18],))
    assert checked.check(everything=False) == {"a"}
    checked.forget("a")
    assert checked.check(everything=True) == set()
    assert checked.num_verified == {"b": 6}
