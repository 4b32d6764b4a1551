"""The data of a compute process: compared with what a job is for, opened anew when it changes."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from PIL import Image

from lipt.common.data import open_dataset
from lipt.common.errors import ComputeError, DataError, OtherDataError, StateError
from lipt.coordinator.compute import messages
from lipt.coordinator.compute.context import Context, with_kept_quarantine
from lipt.coordinator.compute.messages import OnData, Timed, Took, name_of
from tests.digits import digits_settings


def paint(path: Path, brightness: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((8, 8), brightness, np.uint8)).save(path)


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    """Two classes of two images, of which every one counts in a sampled fingerprint."""
    for number, name in enumerate(("cat/0", "cat/1", "dog/0", "dog/1")):
        paint(tmp_path / "pets" / f"{name}.png", 50 * number)
    return tmp_path / "pets"


@pytest.fixture
def context(tmp_path: Path, pets: Path) -> Context:
    settings = digits_settings(tmp_path, f"imagefolder:{pets}")
    return Context(settings, send=lambda _: None)


@dataclass(frozen=True)
class Do:
    """A job that does something, and gives the brightness of the first image."""

    action: Callable[[], object] = lambda: None

    def run(self, context: Context) -> int:
        self.action()
        return int(context.dataset.rows.raw(0)[0])


def fingerprint_of(pets: Path) -> str:
    return open_dataset(f"imagefolder:{pets}").fingerprint


def test_job_on_the_data_that_is_there_is_done(context: Context, pets: Path) -> None:
    own = fingerprint_of(pets)
    assert OnData(own, Do()).run(context) == 0
    assert OnData(context.dataset.full_fingerprint, Do()).run(context) == 0


@pytest.mark.parametrize("kind", ["", "full-"])
def test_job_on_other_data_is_refused_before_it_begins(context: Context, kind: str) -> None:
    begun: list[bool] = []
    with pytest.raises(OtherDataError, match=f"{kind}{'f' * 64} is needed. Put the run's own data"):
        OnData(f"{kind}{'f' * 64}", Do(lambda: begun.append(True))).run(context)
    assert begun == []


def test_data_that_was_replaced_is_opened_again_and_so_when_it_is_back(
    context: Context, pets: Path, caplog: pytest.LogCaptureFixture
) -> None:
    own = fingerprint_of(pets)
    assert OnData(own, Do()).run(context) == 0
    paint(pets / "cat" / "0.png", 200)
    other = fingerprint_of(pets)
    with pytest.raises(OtherDataError, match=f"has the fingerprint {other} now, and {own} is"):
        OnData(own, Do()).run(context)
    assert OnData(other, Do()).run(context) == 200
    paint(pets / "cat" / "0.png", 0)
    assert OnData(own, Do()).run(context) == 0
    assert caplog.text.count("have changed: it is opened again") == 2


def test_result_is_not_believed_where_the_data_was_replaced_meanwhile(
    context: Context, pets: Path
) -> None:
    job = Do(lambda: paint(pets / "dog" / "1.png", 1))
    with pytest.raises(OtherDataError, match="Put the run's own data back"):
        OnData(fingerprint_of(pets), job).run(context)


def test_job_that_fails_on_data_that_was_taken_away_is_explained_by_that(
    context: Context, pets: Path
) -> None:
    def take_away() -> None:
        (pets / "cat").rename(pets.parent / "away")
        raise ComputeError("an image cannot be read.")

    own = fingerprint_of(pets)
    with pytest.raises(OtherDataError, match=f"had the fingerprint {own}, cannot be read any more"):
        OnData(own, Do(take_away)).run(context)
    with pytest.raises(OtherDataError):
        OnData(own, Do()).run(context)
    (pets.parent / "away").rename(pets / "cat")
    assert OnData(own, Do()).run(context) == 0


@dataclass(frozen=True)
class Text:
    """The least that can be kept."""

    text: str

    def save(self, path: Path) -> None:
        path.write_text(self.text)

    @classmethod
    def load(cls, path: Path) -> Text:
        return cls(path.read_text())


def keep(context: Context, made: list[str], during: Callable[[], object] = lambda: None) -> None:
    def compute() -> Text:
        during()
        made.append("text")
        return Text("text")

    context.cached("texts", ("same",), load=Text.load, compute=compute)


def test_what_was_computed_on_data_that_changed_meanwhile_is_not_kept(
    context: Context, pets: Path
) -> None:
    made: list[str] = []
    keep(context, made, lambda: paint(pets / "cat" / "0.png", 9))
    context.require_data(fingerprint_of(pets))
    keep(context, made)
    keep(context, made)
    assert len(made) == 2


def test_what_is_kept_is_told_apart_by_the_full_fingerprint_where_that_is_asked_for(
    tmp_path: Path, pets: Path
) -> None:
    settings = digits_settings(tmp_path, f"imagefolder:{pets}", fingerprint="full")
    made: list[str] = []
    for brightness in (0, 9, 0):
        paint(pets / "cat" / "0.png", brightness)
        keep(Context(settings, send=lambda _: None), made)
    assert len(made) == 2


@dataclass(frozen=True)
class Wait:
    """A job that takes as long as it says, on a clock that it moves itself."""

    now: list[float]
    seconds: float

    def run(self, context: Any) -> str:
        self.now[0] += self.seconds
        return "done"


def test_a_timed_job_says_how_long_it_took_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(messages, "monotonic", lambda: now[0])
    job = Timed(Wait(now, 7.0))
    now[0] += 100.0  # its turn in the queue
    assert job.run(cast("Any", None)) == Took("done", 7.0)


def test_a_job_is_called_by_what_is_inside() -> None:
    assert name_of(OnData("f", Timed(Wait([], 0.0)))) == "Wait"


pytest.importorskip("sklearn")
DIGITS = open_dataset("digits")


def quarantined(folder: Path, *ids: int) -> tuple[int, ...]:
    return with_kept_quarantine(replace(DIGITS, quarantined=ids), folder).quarantined


def test_an_image_that_was_repaired_stays_out(tmp_path: Path) -> None:
    assert quarantined(tmp_path, 3, 8) == (3, 8)
    assert quarantined(tmp_path, 8) == (3, 8)
    assert quarantined(tmp_path) == (3, 8)


def test_an_image_that_broke_since_then_is_refused(tmp_path: Path) -> None:
    quarantined(tmp_path, 3)
    with pytest.raises(DataError, match=r"^2 images of digits cannot be used .* made: 5, 9\."):
        quarantined(tmp_path, 3, 5, 9)


@pytest.mark.parametrize("content", ["", "{}", '["a"]', "[1", "\x00"])
def test_a_damaged_file_is_not_guessed_at(tmp_path: Path, content: str) -> None:
    quarantined(tmp_path, 3)
    (file,) = tmp_path.iterdir()
    file.write_text(content)
    with pytest.raises(StateError, match="Restore it from a backup"):
        quarantined(tmp_path, 3)


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr("os.fsync", full)


@pytest.mark.usefixtures("full_disk")
def test_whole_data_is_served_from_a_full_disk(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert quarantined(tmp_path) == ()
    assert "is not noted" in caplog.text


@pytest.mark.usefixtures("full_disk")
def test_what_is_left_out_has_to_be_kept(tmp_path: Path) -> None:
    with pytest.raises(StateError, match=r"cannot be kept .* Make room"):
        quarantined(tmp_path, 3)
