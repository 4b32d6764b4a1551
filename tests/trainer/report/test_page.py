from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lipt.common.config.run_config import LearnersConfig, RunConfig
from lipt.common.data import open_dataset
from lipt.common.errors import ConfigError, SubsetError
from lipt.common.states import LearnerState, RunState
from lipt.trainer.main_training.records import Look
from lipt.trainer.report.gathering import Report, gather
from lipt.trainer.report.page import render
from lipt.trainer.subsets.subset import Subset
from lipt.trainer.views import (
    CostsView,
    DatasetView,
    InfoView,
    IngredientView,
    LearnerView,
    SoupView,
)
from tests.trainer.made_up import made_up_learner, made_up_run, made_up_subset, made_up_trial

DIGITS = open_dataset("digits-test")
HOSTILE = "<script>alert(1)</script>"


def learner(index: int, *, kept: bool, position: int) -> LearnerView:
    ingredient = IngredientView(
        position=position, accuracy=0.5 + index / 100, soup_accuracy=0.6, alpha=0.3, kept=kept
    )
    return made_up_learner(
        index,
        state=LearnerState.DONE,
        worker=HOSTILE,
        device="cpu",
        loss=1.25,
        ingredient=ingredient,
    )


RUN = made_up_run(
    state=RunState.READY,
    fingerprint=DIGITS.fingerprint,
    config=RunConfig(model="resnet8"),
    learners=(learner(0, kept=False, position=1), learner(1, kept=True, position=0)),
    soup=SoupView(0.1, 0.5, 0.51, 0.6, 1, 200),
    costs=CostsView(0.0, 0.1, 2.0, 3.0, 1000, 2_000_000),
)
INFO = InfoView(
    protocol=(1, 0),
    versions={"torch": "2.15.0"},
    device="cpu",
    dataset=DatasetView("digits-test", len(DIGITS), DIGITS.class_names, (), "", (1, 8, 8)),
    default_run=RunConfig(model="resnet8"),
    workers=(),
)


class FakeClient:
    """Chooses the first rows, whatever it is asked."""

    def info(self) -> InfoView:
        return INFO

    def subset(self, run: str, strategy: str, *, fraction: float = 0.0, budget: int = 0) -> Subset:
        assert run == "r-1"
        count = budget or round(fraction * len(DIGITS))
        return made_up_subset(range(count), fingerprint=DIGITS.fingerprint, strategy=strategy)


TRIALS = [
    made_up_trial(seed=seed, strategy=strategy, test_accuracy=accuracy + seed / 1000)
    for seed in range(3)
    for strategy, accuracy in (("uniform", 0.9), ("uniform_per_class", 0.91), ("craig", 0.95))
]


COMPARISON = {"model": "resnet8", "recipe": {"steps": 60}, "data": DIGITS.fingerprint}


@pytest.fixture
def report() -> Report:
    return gather(FakeClient(), RUN, DIGITS, [("craig", 0.1)], (COMPARISON, TRIALS))  # type: ignore[arg-type]


class _Page(HTMLParser):
    """Open tags that were closed in order, and what they load."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loaded: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.loaded += [value or "" for name, value in attrs if name in {"src", "href"}]
        if tag not in {"meta", "link", "img", "br"}:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_whole_and_loads_nothing(report: Report) -> None:
    page = _Page()
    page.feed(render(report))
    assert not page.open
    assert page.loaded
    assert all(address.startswith("data:") for address in page.loaded)
    assert "script" not in page.tags


def test_what_comes_from_peers_is_text(report: Report) -> None:
    assert HOSTILE not in render(report)
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in render(report)


def test_what_comes_from_peers_has_no_marks_that_act(report: Report) -> None:
    worker = replace(RUN.learners[0], worker="w\x1b[2J\x9b\u202e\x00", message="two\nlines")
    text = render(replace(report, run=replace(RUN, learners=(worker, *RUN.learners[1:]))))
    assert r"<td>w\x1b[2J\x9b\u202e\x00</td>" in text
    assert {mark for mark in text if not mark.isprintable()} == {"\n"}


def test_it_says_what_a_run_says_of_itself() -> None:
    run = replace(RUN, message=f"2 learners in quarantine {HOSTILE}")
    text = render(gather(FakeClient(), run, DIGITS, []))  # type: ignore[arg-type]
    assert "<p>2 learners in quarantine &lt;script&gt;" in text


def test_it_tells_the_verdict_the_soup_and_the_classes(report: Report) -> None:
    text = " ".join(re.sub(r"<[^>]*>", " ", render(report)).split())
    assert "At 10% craig beats random by 4.0 points" in text
    assert "theta* 10.0%" in text
    assert "1 of 2 learners kept" in text
    # In the order of the soup: learner 1 was tried first.
    assert text.index("51.0% 0.3 60.0%") < text.index("50.0% discarded 60.0%")
    kept = np.bincount(DIGITS.labels_N.numpy()[:36], minlength=10)
    available = np.bincount(DIGITS.labels_N.numpy())
    for label in range(10):
        assert f"{label} {kept[label]} of {available[label]}" in text


def test_the_three_answers_stand_below_their_questions() -> None:
    looks = (Look(10, 2.0, 0.5), Look(20, 4.0, 0.96))
    everything = [
        made_up_trial(
            seed=seed, strategy="everything", fraction=1.0, test_accuracy=0.98, looks=looks
        )
        for seed in range(3)
    ]
    trials = [*(replace(trial, looks=looks) for trial in TRIALS), *everything]
    report = gather(FakeClient(), RUN, DIGITS, [], (COMPARISON, trials))  # type: ignore[arg-type]
    text = " ".join(re.sub(r"<[^>]*>", " ", render(report)).split())
    (found,) = report.answers
    assert f"Is it better than a random subset of its size? {found.better}" in text
    assert f"Is it faster than training on everything for as long? {found.faster}" in text
    assert f"What did choosing cost? {found.cost}" in text
    assert "What people would do instead fraction strategy to everything" in text
    assert render(report).count('<div class="verdict good">') == 1


def test_most_wanted_is_the_choice_of_few_and_least_what_most_leave_out(report: Report) -> None:
    (story,) = report.stories
    assert [picture.row for picture in story.most_wanted] == list(range(12))
    assert [picture.row for picture in story.least_wanted] == list(
        range(len(DIGITS) - 12, len(DIGITS))
    )


def test_without_a_comparison_it_says_how_to_get_one() -> None:
    report = gather(FakeClient(), RUN, DIGITS, [])  # type: ignore[arg-type]
    assert "No main training has been compared yet: lipt compare does that." in render(report)


def test_a_run_that_failed_early_has_a_page_too() -> None:
    bare = replace(RUN, learners=(), soup=None, costs=None, state=RunState.FAILED)
    page = _Page()
    page.feed(render(gather(FakeClient(), bare, DIGITS, [])))  # type: ignore[arg-type]
    assert not page.open


def test_other_data_is_refused() -> None:
    other = replace(RUN, fingerprint="f" * 64)
    with pytest.raises(SubsetError, match=r"fingerprint f{64}.*digits-test has"):
        gather(FakeClient(), other, DIGITS, [])  # type: ignore[arg-type]


def test_a_comparison_of_other_data_is_refused() -> None:
    other = COMPARISON | {"data": "f" * 64, "data_source": "cifar10"}
    with pytest.raises(
        SubsetError, match=rf"on cifar10 with .* f{{64}}, but .*{DIGITS.fingerprint}"
    ):
        gather(FakeClient(), RUN, DIGITS, [], (other, TRIALS))  # type: ignore[arg-type]


def test_a_comparison_without_a_trial_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"no trial yet.* leave --comparison out"):
        gather(FakeClient(), RUN, DIGITS, [], (COMPARISON, []))  # type: ignore[arg-type]


def test_a_class_may_be_called_anything() -> None:
    names = (HOSTILE, '"><img src=x onerror=alert(1)>', *DIGITS.class_names[2:])
    rows: Any = DIGITS.rows
    hostile = replace(DIGITS, rows=replace(rows, names=names))
    text = render(gather(FakeClient(), RUN, hostile, [("craig", 0.1)]))  # type: ignore[arg-type]
    page = _Page()
    page.feed(text)
    assert not page.open
    assert "script" not in page.tags
    assert page.tags.count("img") == 24  # the thumbnails
    assert all(address.startswith("data:") for address in page.loaded)
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text


def test_snapshots_are_told_where_a_run_takes_them() -> None:
    learners = LearnersConfig(num_steps=10, num_snapshots=2)
    run = replace(RUN, config=RunConfig(model="resnet8", learners=learners))
    text = " ".join(render(gather(FakeClient(), run, DIGITS, [])).split())  # type: ignore[arg-type]
    assert "with 2 snapshots of each on the way, after steps 5, 10." in text
    none = render(gather(FakeClient(), RUN, DIGITS, []))  # type: ignore[arg-type]
    assert "on the way, after steps" not in none


def test_it_shows_all_settings_and_versions(report: Report) -> None:
    text = html.unescape(render(report))
    assert json.dumps(RUN.config.model_dump(mode="json"), indent=2) in text
    assert json.dumps({"steps": 60}, indent=2) in text
    assert "2.15.0" in text
    assert RUN.fingerprint in text


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


def browse(page: Path, profile: Path) -> tuple[str, list[str]]:
    """Open a page in a browser; the document as it became, and what the console said."""
    assert CHROMIUM is not None
    quiet = ("--disable-background-networking", "--disable-component-update", "--disable-sync")
    shown = subprocess.run(
        [
            CHROMIUM,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--no-first-run",
            *quiet,
            f"--user-data-dir={profile}",
            "--enable-logging=stderr",
            "--dump-dom",
            page.as_uri(),
        ],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return shown.stdout, [line for line in shown.stderr.splitlines() if "CONSOLE" in line]


@pytest.mark.skipif(CHROMIUM is None, reason="needs a Chromium browser on the PATH")
def test_a_browser_shows_it_without_complaint(report: Report, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    page.write_text(render(report), encoding="utf-8")
    document, console = browse(page, tmp_path / "profile")
    assert console == []
    assert "craig beats random" in document
    assert document.count("<img") == 24

    # The same question to a page with a fault, to know that a fault would be seen.
    faulty = tmp_path / "faulty.html"
    script = "<script>undefined_name()</script>"
    faulty.write_text(page.read_text("utf-8").replace("</body>", f"{script}</body>"), "utf-8")
    _, console = browse(faulty, tmp_path / "profile")
    assert any("undefined_name is not defined" in line for line in console)


def test_what_was_fitted_to_the_data_is_said(report: Report) -> None:
    fitted = replace(report, run=replace(RUN, fitted="2560 are more than 1597"))
    assert "Fitted to the data: 2560 are more than 1597." in render(fitted)
    assert "Fitted" not in render(report)
