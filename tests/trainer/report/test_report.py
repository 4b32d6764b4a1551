import json
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import numpy as np
import pytest

from lipt.common.config.run_config import RunConfig
from lipt.common.errors import SubsetError
from lipt.common.states import LearnerState, RunState
from lipt.core.diagnosis.findings import Findings
from lipt.data.loading import open_dataset
from lipt.trainer.diagnosis.diagnosis import Diagnosis
from lipt.trainer.report.report import render
from lipt.trainer.subsets.subset import Subset
from lipt.trainer.views import CostsView, DatasetView, InfoView, LearnerView, RunView, SoupView
from tests.trainer.made_up import (
    KEPT,
    made_up_learner,
    made_up_mixture,
    made_up_run,
    made_up_subset,
    made_up_trial,
)
from tests.trainer.made_up_diagnosis import made_up_findings
from tests.trainer.report.reading import Page, words

DIGITS = open_dataset("digits-test")


HOSTILE = "<script>alert(1)</script>"


def learner(index: int, *, kept: bool, position: int) -> LearnerView:
    given = {"position": position, "accuracy": 0.5 + index / 100, "soup_accuracy": 0.6}
    part = replace(KEPT, **given, kept=kept)  # type: ignore[arg-type]
    done = {"state": LearnerState.DONE, "worker": HOSTILE, "device": "cpu", "loss": 1.25}
    return made_up_learner(index, **done, ingredient=part)


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
    """Chooses the first rows; by grand the last ones."""

    def info(self) -> InfoView:
        return INFO

    def subset(self, run: str, strategy: str, *, fraction: float = 0.0, budget: int = 0) -> Subset:
        assert run == "r-1"
        count = budget or round(fraction * len(DIGITS))
        first = len(DIGITS) - count if strategy == "grand" else 0
        rows = range(first, first + count)
        return made_up_subset(
            rows,
            fingerprint=DIGITS.fingerprint,
            strategy=strategy,
            findings={"words": ["judged by <b>", "no learner was used"]},
        )


CLIENT: Any = FakeClient()
TRIALS = [
    made_up_trial(seed=seed, strategy=strategy, test_accuracy=accuracy + seed / 1000)
    for seed in range(3)
    for strategy, accuracy in (
        *(("uniform", 0.9), ("uniform_per_class", 0.91)),
        *(("craig", 0.95), ("craig+soft", 0.96)),
    )
]


REQUESTS = (["craig", "grand"], 0.1)
COMPARISON = {"model": "resnet8", "recipe": {"steps": 60}, "data": DIGITS.fingerprint}


def rendered(run: RunView = RUN) -> str:
    return render(CLIENT, run, DIGITS, *REQUESTS, (COMPARISON, TRIALS))


def test_the_report_has_no_control_characters_from_peers() -> None:
    text = rendered(replace(RUN, message="w\x1b[2J\x9b\u202e\x00"))
    assert r"<p>w\x1b[2J\x9b\u202e\x00</p>" in text
    assert {mark for mark in text if not mark.isprintable()} == {"\n"}


def test_the_report_draws_losses_and_the_soups_growth() -> None:
    curves = (replace(one, losses=(2.0, 1.25), loss_steps=(1, 5)) for one in RUN.learners)
    text = rendered(replace(RUN, learners=tuple(curves)))
    assert Page(text).tags.count("svg") == 2
    assert 'aria-label="Losses in training: learner 0 from 2.000 to 1.250; learner 1' in text
    assert 'role="img"' in text
    assert "The soup&#39;s accuracy: 60.0% after the first of 2 learners" in text
    assert Page(rendered(replace(RUN, learners=()))).tags.count("svg") == 0


def test_the_report_has_no_verdict_with_a_baseline_at_chance() -> None:
    lost = [replace(trial, chance=0.9) for trial in TRIALS]
    page = render(CLIENT, RUN, DIGITS, [], 0.1, (COMPARISON, lost))
    assert "At 10% this recipe does not learn here: random (uniform) reaches 90.0%" in words(page)
    assert '<div class="verdict bad">' in page
    assert "choosing with" not in page


def test_the_report_has_verdict_soup_classes_requests_and_learners() -> None:
    failed = made_up_learner(2, state=LearnerState.FAILED, loss=2.5, message="two\nlines")
    page = rendered(replace(RUN, learners=(failed, *RUN.learners)))
    text = words(page)
    assert "At 10% craig beats random by 4.0 points" in text
    assert "craig 10% random +4.0 (+4.0 to +4.0) better" in text
    assert "At 10% choosing with craig took" in text
    assert "craig +soft 96.1% ± 0.1 +1.0 (+1.0 to +1.0) to without" in text
    assert "theta* 10.0%" in text
    assert "1 of 3 learners kept" in text
    assert "judged by &lt;b&gt; no learner was used" in text
    assert "craig and grand 0 " in text
    kept = np.bincount(DIGITS.labels_N.numpy()[:36], minlength=10)
    available = np.bincount(DIGITS.labels_N.numpy())
    for label in range(10):
        assert f"{label} {kept[label]} of {available[label]}" in text
    sections = re.split(r"<h3>(?:Most|Least) wanted</h3>", page)
    rows = [
        [int(row) for row in re.findall(r'<figure title="row (\d+): \d"><img', section)]
        for section in sections[1:]
    ]
    first, last = list(range(24)), list(range(len(DIGITS) - 24, len(DIGITS)))
    # craig takes the first ones first, and grand the last ones.
    assert rows == [first, last, last, first]
    worker = "&lt;script&gt;alert(1)&lt;/script&gt;"
    # In the order of the soup, those that it never tried last.
    assert (
        f"1 {worker} cpu 1.250 0.900 51.0% 0.3 60.0% "
        f"0 {worker} cpu 1.250 0.900 50.0% discarded 60.0% "
        "2 - - 2.500 0.900 - two lines -"
    ) in text


def test_the_report_has_a_mixture_and_the_learners_sources() -> None:
    mixture = made_up_mixture(fingerprint=DIGITS.fingerprint)
    run = replace(RUN, sources=("night", HOSTILE))
    text = render(CLIENT, run, DIGITS, [], 0.1, mixture=mixture)
    assert not Page(text).open
    assert '<rect width="75.00"' in text
    assert 'd="M0.00 6H50.00M0.00 2v8M50.00 2v8"' in text
    shown = words(text)
    assert "Mixture for a target of 60 examples Better than equal shares." in shown
    assert "&lt;b&gt;day 75.0% (50 to 100%) night 25.0% (0 to 50%)" in shown
    assert "these shares 0.225 0.917 equal shares 0.387 0.900 shares by size 0.401 0.850" in shown
    assert "night has no example of the class &lt;i&gt;." in shown
    assert "learner source worker" in shown
    worker = "&lt;script&gt;alert(1)&lt;/script&gt;"
    assert f" 1 {worker} {worker} cpu" in shown
    assert f" 0 night {worker} cpu" in shown


def test_the_report_has_a_mixtures_accuracies_after_training() -> None:
    outcomes = dict(made_up_mixture().outcomes)
    outcomes["merged"] = replace(outcomes["merged"], real_accuracies=(0.9, 0.8))
    mixture = made_up_mixture(fingerprint=DIGITS.fingerprint, outcomes=outcomes)
    shown = words(render(CLIENT, RUN, DIGITS, [], 0.1, mixture=mixture))
    assert "accuracy after training these shares 0.225 0.917 0.850 equal" in shown
    assert "equal shares 0.387 0.900 - shares" in shown


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
    findings = Findings.model_validate_json(json.dumps(content))
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


def test_suspects_have_both_classes_and_their_strategies() -> None:
    page = render(CLIENT, RUN, DIGITS, ["craig"], 0.1, diagnosis=diagnosis())
    (shown,) = re.findall(r'<div class="examples">.*?</div>', page, re.DOTALL)
    # The worst first.
    assert re.findall(r'base64,[^"]*" alt="example (\d+),', shown) == ["3", "50"]
    text = words(page)
    assert "The diagnosis suspects 2 of 355 labels" in text
    # The subset has row 3 of them, and by chance 2 x 36 / 355.
    assert "craig 36 1 0.2" in text
    given = [str(int(DIGITS.labels_N[row])) for row in SUSPECTS]
    assert f"{given[0]} → 7 fits &lt;0.01 in craig 3" in text
    assert f"{given[1]} → 7 fits 0.14 50" in text


def test_the_report_has_the_times_of_run_and_page() -> None:
    began = datetime(2026, 3, 1, 9, 30, tzinfo=UTC)
    run = replace(RUN, created_at=began, ended_at=began + timedelta(seconds=185))
    now = datetime(2026, 3, 2, 1, 5, tzinfo=timezone(timedelta(hours=2)))
    page = render(CLIENT, run, DIGITS, [], 0.1, now=now)
    text = " ".join(re.sub(r"<[^>]*>", "", page).split())
    assert (
        "started 2026-03-01 09:30 UTC, ready 2026-03-01 09:33 UTC, page made 2026-03-01 23:05 UTC"
    ) in text


def test_a_run_or_a_file_of_other_data_is_refused() -> None:
    other = "f" * 64
    of_run = replace(RUN, fingerprint=other)
    with pytest.raises(SubsetError, match=r"fingerprint f{64}, but digits-test has"):
        render(CLIENT, of_run, DIGITS, [], 0.1)
    looked_at = replace(diagnosis(), fingerprint=other)
    with pytest.raises(SubsetError, match=r"the data of the diagnosis has the fingerprint f{64}"):
        render(CLIENT, RUN, DIGITS, [], 0.1, diagnosis=looked_at)
    with pytest.raises(SubsetError, match=r"the data of the mixture has the fingerprint f{64}"):
        render(CLIENT, RUN, DIGITS, [], 0.1, mixture=made_up_mixture())
    compared = COMPARISON | {"data": other}
    complaint = rf"the data of the comparison has .* f{{64}}, but .*{DIGITS.fingerprint}"
    with pytest.raises(SubsetError, match=complaint):
        render(CLIENT, RUN, DIGITS, [], 0.1, (compared, TRIALS))


def test_the_report_is_self_contained_for_any_class_names() -> None:
    names = (HOSTILE, '"><img src=x onerror=alert(1)>', *DIGITS.class_names[2:])
    rows: Any = DIGITS.rows
    hostile = replace(DIGITS, rows=replace(rows, names=names))
    found = diagnosis()
    found = replace(found, findings=found.findings.model_copy(update={"class_names": names}))
    text = render(CLIENT, RUN, hostile, *REQUESTS, (COMPARISON, TRIALS), diagnosis=found)
    page = Page(text)
    assert not page.open
    assert "script" not in page.tags
    assert page.tags.count("img") == 2 + 2 * 2 * 24  # the suspects and the galleries
    assert all(address.startswith("data:") for address in page.loaded)
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
