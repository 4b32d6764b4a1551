from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter

from lipt.common.config.run_config import LearnersConfig, RunConfig
from lipt.common.data import open_dataset
from lipt.common.errors import ConfigError, DiagnosisError, RunNotReadyError, SubsetError
from lipt.common.states import LearnerState, RunState
from lipt.trainer.diagnosis.diagnosis import Diagnosis
from lipt.trainer.diagnosis.findings import Findings
from lipt.trainer.main_training.records import Look
from lipt.trainer.report import examination
from lipt.trainer.report import report as report_module
from lipt.trainer.report.page import dates_of, duration, render, unfolded
from lipt.trainer.report.report import Report, gather
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
from tests.trainer.made_up_diagnosis import made_up_findings
from tests.trainer.report.reading import Page, words

BEGAN = datetime(2026, 3, 1, 9, 30, 15, tzinfo=UTC)


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(0, "0 s"), (59.4, "59 s"), (60, "1 min 0 s"), (185, "3 min 5 s"), (7800, "2 h 10 min")],
)
def test_a_duration_has_two_units_at_most(seconds: float, expected: str) -> None:
    assert duration(timedelta(seconds=seconds)) == expected


def test_dates_that_nobody_knows_are_left_out() -> None:
    assert dates_of(made_up_run(), None) == ()
    (began,) = dates_of(made_up_run(created_at=BEGAN), None)
    assert (began.what, began.text, began.after) == ("started", "2026-03-01 09:30 UTC", "")


def test_the_end_is_called_by_the_state_of_the_run() -> None:
    run = made_up_run(
        state=RunState.CANCELLED, created_at=BEGAN, ended_at=BEGAN + timedelta(minutes=1)
    )
    _, ended = dates_of(run, None)
    assert (ended.what, ended.after) == ("cancelled", " after 1 min 0 s")
    assert ended.iso == "2026-03-01T09:31:15+00:00"


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
    """Chooses the first rows, whatever it is asked; by grand the last ones. It has no weights."""

    def info(self) -> InfoView:
        return INFO

    def subset(self, run: str, strategy: str, *, fraction: float = 0.0, budget: int = 0) -> Subset:
        assert run == "r-1"
        count = budget or round(fraction * len(DIGITS))
        first = len(DIGITS) - count if strategy == "grand" else 0
        rows = range(first, first + count)
        return made_up_subset(rows, fingerprint=DIGITS.fingerprint, strategy=strategy)

    def weights(self, run: str) -> bytes:
        raise RunNotReadyError("there are none yet.")


TRIALS = [
    made_up_trial(seed=seed, strategy=strategy, test_accuracy=accuracy + seed / 1000)
    for seed in range(3)
    for strategy, accuracy in (("uniform", 0.9), ("uniform_per_class", 0.91), ("craig", 0.95))
]


COMPARISON = {"model": "resnet8", "recipe": {"steps": 60}, "data": DIGITS.fingerprint}


@pytest.fixture(scope="module")
def report() -> Report:
    return gather(FakeClient(), RUN, DIGITS, [("craig", 0.1)], (COMPARISON, TRIALS))  # type: ignore[arg-type]


def test_the_page_is_whole_and_loads_nothing(report: Report) -> None:
    page = Page(render(report))
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
    text = words(render(report))
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
    text = words(render(report))
    (found,) = report.answers
    assert f"Is it better than a random subset of its size? {found.better}" in text
    assert f"Is it faster than training on everything for as long? {found.faster}" in text
    assert f"What did choosing cost? {found.cost}" in text
    assert re.search("What people would do instead .*fraction strategy to everything", text)
    assert render(report).count('<div class="verdict good">') == 1


def test_most_wanted_is_the_choice_of_few_and_least_what_most_leave_out(report: Report) -> None:
    (story,) = report.stories
    assert [picture.row for picture in story.most_wanted] == list(range(48))
    assert [picture.row for picture in story.least_wanted] == list(
        range(len(DIGITS) - 48, len(DIGITS))
    )


def test_twelve_of_the_pictures_are_seen_at_once_spread_over_all(report: Report) -> None:
    (story,) = report.stories
    seen, folded = unfolded(story.most_wanted)
    assert [picture.row for picture in seen] == list(range(0, 48, 4))
    assert [picture.row for picture in folded] == [row for row in range(48) if row % 4]
    assert unfolded(story.most_wanted[:5]) == (story.most_wanted[:5], ())
    assert unfolded(()) == ((), ())
    assert render(report).count("<summary>36 more</summary>") == 3


def test_a_random_choice_stands_beside_the_chosen_ones(report: Report) -> None:
    rows = [picture.row for picture in report.random_choice]
    assert len(set(rows)) == 48
    assert rows == sorted(rows)
    assert max(rows) > 200  # of 355: not the first ones
    again = gather(FakeClient(), RUN, DIGITS, [("craig", 0.1)])  # type: ignore[arg-type]
    assert again.random_choice == report.random_choice
    assert "A random choice" in render(report)


def test_the_map_marks_what_was_chosen(report: Report) -> None:
    assert report.example_map is not None
    assert report.example_map.seen_by == ("their own values, not by theta_p: there are none yet.")
    (drawing,) = re.findall(
        r'<svg class="map"[^>]*aria-label="Map of the examples, chosen by craig">.*?</svg>',
        render(report),
        re.DOTALL,
    )
    told = re.findall(r"<title>(\d+): (\d)(, chosen)?</title>", drawing)
    assert sorted(int(row) for row, _, _ in told) == list(range(len(DIGITS)))
    assert {int(row) for row, _, chosen in told if chosen} == set(range(36))
    assert all(int(label) == DIGITS.labels_N[int(row)] for row, label, _ in told)
    text = " ".join(render(report).split())
    assert "Drawn are 36 of the 36 chosen and 319 of the others." in text


def test_subsets_that_were_asked_for_or_compared_are_set_beside_each_other() -> None:
    grand = made_up_trial(strategy="grand", fraction=0.1)
    elsewhere = made_up_trial(strategy="el2n", fraction=0.5)
    trials = [*TRIALS, grand, elsewhere]
    requests = [("craig", 0.1), ("glister", 0.1)]
    report = gather(FakeClient(), RUN, DIGITS, requests, (COMPARISON, trials))  # type: ignore[arg-type]
    assert [(pair.first, pair.second, pair.shared) for pair in report.overlaps] == [
        ("craig", "glister", 36),
        ("craig", "grand", 0),
        ("glister", "grand", 0),
    ]
    text = words(render(report))
    assert "craig and glister 36 " in text
    assert " 100.0% craig and grand 0 " in text


SUSPECTS = np.array([3, 50])


def diagnosis() -> Diagnosis:
    """Of the digits: rows 3 and 50 are suspected to be a seven each."""
    content = made_up_findings()
    counts = np.bincount(DIGITS.labels_N.numpy()).tolist()
    content |= {
        "num_examples": len(DIGITS),
        "class_names": list(DIGITS.class_names),
        "class_counts": counts,
    }
    content["duplicates"] |= {"surplus": 0, "groups": []}
    findings = TypeAdapter(Findings).validate_json(json.dumps(content))
    zeros = np.zeros(len(DIGITS))
    suspect, suggested = zeros.astype(np.uint8), DIGITS.labels_N.numpy().astype(np.int32)
    suspect[SUSPECTS], suggested[SUSPECTS] = 1, 7
    return Diagnosis(
        findings=findings,
        given_label=DIGITS.labels_N.numpy().astype(np.int32),
        suggested_label=suggested,
        label_quality=np.linspace(0, 1, len(DIGITS)).astype(np.float32),
        suspect=suspect,
        duplicate_of=np.arange(len(DIGITS), dtype=np.int32),
        outlier_score=zeros.astype(np.float32),
        fingerprint=DIGITS.fingerprint,
    )


def test_suspects_are_shown_with_both_classes_and_who_chose_them() -> None:
    report = gather(FakeClient(), RUN, DIGITS, [("craig", 0.1)], diagnosis=diagnosis())  # type: ignore[arg-type]
    assert [view.row for view in report.suspects] == [3, 50]  # the worst first
    assert [view.suggested for view in report.suspects] == ["7", "7"]
    assert all(view.picture.startswith("data:image/png;base64,") for view in report.suspects)
    text = words(render(report))
    assert "The diagnosis suspects 2 of 355 labels" in text
    # The subset has row 3 of them, and by chance 2 x 36 / 355.
    assert "craig 36 1 0.2" in text
    given = [str(int(DIGITS.labels_N[row])) for row in SUSPECTS]
    assert f"{given[0]} → 7 fits &lt;0.01 in craig 3" in text
    assert f"{given[1]} → 7 fits 0.14 50" in text
    rings = re.findall(r'<circle class="ring"[^>]*><title>([^<]*)</title>', render(report))
    assert rings == [
        f"3: labelled {given[0]}, looks like 7, chosen",
        f"50: labelled {given[1]}, looks like 7",
    ]


def test_data_without_suspects_says_so() -> None:
    found = diagnosis()
    errors = replace(found.findings.label_errors, num_suspects=0)
    clean = replace(
        found,
        findings=replace(found.findings, label_errors=errors),
        suspect=np.zeros(len(DIGITS), np.uint8),
    )
    report = gather(FakeClient(), RUN, DIGITS, [], diagnosis=clean)  # type: ignore[arg-type]
    assert "The diagnosis suspects none of 355 labels." in render(report)


def test_a_diagnosis_of_other_data_is_refused() -> None:
    other = replace(diagnosis(), fingerprint="f" * 64)
    with pytest.raises(DiagnosisError, match=r"fingerprint f{64}"):
        gather(FakeClient(), RUN, DIGITS, [], diagnosis=other)  # type: ignore[arg-type]


def test_it_says_when_the_run_was_and_when_the_page_was_made() -> None:
    began = datetime(2026, 3, 1, 9, 30, tzinfo=UTC)
    run = replace(RUN, created_at=began, ended_at=began + timedelta(seconds=185))
    now = datetime(2026, 3, 2, 1, 5, tzinfo=timezone(timedelta(hours=2)))
    page = render(gather(FakeClient(), run, DIGITS, [], now=now))  # type: ignore[arg-type]
    text = " ".join(re.sub(r"<[^>]*>", "", page).split())
    assert (
        "started 2026-03-01 09:30 UTC, ready 2026-03-01 09:33 UTC after 3 min 5 s, "
        "this page was made 2026-03-01 23:05 UTC"
    ) in text
    assert '<time datetime="2026-03-01T23:05:00+00:00">' in page


def test_pictures_and_bars_have_tooltips(report: Report) -> None:
    page = Page(render(report))
    assert f"row 0: {int(DIGITS.labels_N[0])}" in page.titles
    available, kept = (int((DIGITS.labels_N[:end] == 0).sum()) for end in (len(DIGITS), 36))
    assert f"0: {kept} of {available} kept, {100 * kept / available:.1f}%" in page.titles


def test_examples_without_pictures_are_named_by_class_and_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in (report_module, examination):
        monkeypatch.setattr(module, "pictures_of", lambda _, rows, __: [""] * len(rows))
    report = gather(FakeClient(), RUN, DIGITS, [("craig", 0.1)], diagnosis=diagnosis())  # type: ignore[arg-type]
    page = Page(render(report))
    assert "img" not in page.tags
    text = words(render(report))
    assert f"{int(DIGITS.labels_N[4])} 4 " in text
    assert "→ 7 fits &lt;0.01 in craig 3" in text


def test_tables_of_many_columns_scroll_in_their_own_box_and_say_so(report: Report) -> None:
    text = render(report)
    for name in ("Main training at equal steps", "Learners"):
        box = f'<div class="scroll" role="region" aria-label="{name}" tabindex="0">'
        before = text[: text.index(box)].rstrip().splitlines()[-1]
        assert "Swipe the table for more columns" in before


def test_without_a_comparison_it_says_how_to_get_one() -> None:
    report = gather(FakeClient(), RUN, DIGITS, [])  # type: ignore[arg-type]
    assert "No main training has been compared yet: lipt compare does that." in render(report)


def test_a_run_that_failed_early_has_a_page_too() -> None:
    bare = replace(RUN, learners=(), soup=None, costs=None, state=RunState.FAILED)
    page = Page(render(gather(FakeClient(), bare, DIGITS, [])))  # type: ignore[arg-type]
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
    found = diagnosis()
    found = replace(found, findings=replace(found.findings, class_names=names))
    report = gather(FakeClient(), RUN, hostile, [("craig", 0.1)], diagnosis=found)  # type: ignore[arg-type]
    text = render(report)
    page = Page(text)
    assert not page.open
    assert "script" not in page.tags
    assert page.tags.count("img") == 3 * 48 + 2  # the thumbnails, and two suspects
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
    assert document.count("<img") == 3 * 48

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
