from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from tests.end_to_end.page.conftest import (
    HOSTILE_CLASSES,
    HOSTILE_RUN,
    HOSTILE_SOURCE,
    PATIENCE_MS,
    Watched,
    Watcher,
    make_token,
)

if TYPE_CHECKING:
    from playwright.sync_api import Page

VIEWS = (
    "runs",
    "runs/{run}",
    "runs/{mixed}",
    "runs/{run}/subsets",
    "compare/{run}/{run}",
    "workers",
    "queue",
    "diagnosis",
)
# Elements beyond the right edge, and tables that have to be scrolled sideways. Cards hide their
# heads, which name the columns for screen readers.
CUT_OFF = """[...document.querySelectorAll("main *:not(.cards thead *)")].filter((element) => {
  const {right, width} = element.getBoundingClientRect();
  const scrolls = element.matches(".wide") && element.scrollWidth > element.clientWidth;
  return width > 1 && right > innerWidth + 0.5 || scrolls;
}).map((element) => `${element.tagName} ${element.className}: ${element.textContent}`)"""
SOUP = re.compile("^The soup's accuracy: .* learners were offered")
SHARES = re.compile(r"^Shares for the target [0-9a-f]{10}$")
LOSSES = re.compile(r"^Losses in training: learner 0 from \d+\.\d+ to \d+\.\d+")
# A run that is at work for as long as a test looks at it.
LONG_RUN = {
    "model": "resnet8",
    "learners": {"num_learners": 4, "num_steps": 5000, "num_minibatches": 1, "batch_size": 8},
}
SETTINGS = """
learners.num_learners = 3
learners.num_steps = 2
learners.batch_size = 8
soup.num_alphas = 2
"""


def expect(locator: Any) -> Any:
    from playwright.sync_api import expect as expected  # may be missing

    expected.set_options(timeout=PATIENCE_MS)
    return expected(locator)


def rows(page: Page, caption: str | re.Pattern[str]) -> Any:
    return page.get_by_role("table", name=caption).locator("tbody tr")


@pytest.mark.smoke
def test_a_run_started_on_the_page_appears_and_changes_without_a_reload(page: Page) -> None:
    page.evaluate("window.untouched = true")
    page.get_by_role("button", name="Start a run").click()
    dialog = page.get_by_role("dialog", name="Start a run")
    expect(dialog.get_by_label("Name")).to_be_focused()
    dialog.get_by_label("Name").fill(HOSTILE_RUN)
    dialog.get_by_label("Settings").fill(SETTINGS)
    dialog.get_by_role("button", name="Start", exact=True).click()

    # Its name is markup, and shows as text.
    heading = page.get_by_role("heading", level=1)
    expect(heading).to_contain_text(HOSTILE_RUN)
    expect(rows(page, "Learners")).to_have_count(3)
    expect(heading).to_contain_text("ready")
    told = " ".join(" ".join(rows(page, "Learners").all_inner_texts()).split())
    assert re.search(r"kept (one|<script>).* 2 of 2 .*\d\.\d\d", told), told
    expect(page.get_by_role("img", name=re.compile(r"after 3 of 3 learners"))).to_be_visible()
    assert page.evaluate("window.untouched")
    assert page.evaluate("document.querySelector('main img, main script')") is None


def test_learners_update_and_an_admin_cancels_their_run(
    page: Page, service: Watched, ready: str
) -> None:
    with service.cluster.client() as client:
        run = client.start_run(LONG_RUN, name="long")
    page.get_by_role("link", name="long").click()
    step = rows(page, "Learners").first.locator("td").nth(2)
    expect(step).to_contain_text(re.compile(r"[1-9]\d* of 5,000"))
    before = step.inner_text()
    expect(step).not_to_have_text(before)
    expect(rows(page, "Learners").first).to_contain_text("training")

    page.get_by_role("button", name="Cancel the run").click()
    dialog = page.get_by_role("dialog", name="Cancel long?")
    expect(dialog.get_by_role("button", name="Keep it")).to_be_focused()
    dialog.get_by_role("button", name="Cancel the run").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("cancelled")
    expect(page.get_by_role("button", name="Cancel the run")).to_have_count(0)
    assert run.run_id in page.url


def test_class_names_with_markup_show_as_text(watcher: Watcher, ready: str) -> None:
    page = watcher.open("trainer", f"runs/{ready}/subsets")
    choose(page, "uniform_per_class", "20")
    expect(rows(page, "Classes of")).to_have_count(len(HOSTILE_CLASSES))
    assert [
        text.strip() for text in rows(page, "Classes of").get_by_role("rowheader").all_inner_texts()
    ] == sorted(HOSTILE_CLASSES)
    pictures = page.get_by_role("list", name=re.compile("^Chosen by")).get_by_role("img")
    expect(pictures.first).to_have_attribute("alt", re.compile("example .*labelled"))
    assert (
        page.evaluate(
            "document.querySelector('main script, main img:not([src^=\"data:image/png\"])')"
        )
        is None
    )


def choose(page: Page, strategy: str, percent: str) -> None:
    page.get_by_label("Strategy").select_option(strategy)
    page.get_by_label("Keep").fill(percent)
    page.get_by_role("button", name="Choose").click()
    expect(rows(page, "Subsets, newest first").filter(has_text=strategy)).not_to_have_count(0)


def side_by_side(page: Page) -> None:
    choose(page, "uniform", "10")
    choose(page, "el2n", "20")
    rows(page, "Subsets, newest first").filter(has_text="uniform").first.get_by_role(
        "link", name=re.compile("Side by side")
    ).click()


def test_runs_subsets_and_diagnoses_are_compared_and_drawn(
    watcher: Watcher, service: Watched, ready: str
) -> None:
    with service.cluster.client() as client:
        client.wait(client.start_run(one_learner(), name="second").run_id)
    page = watcher.open("trainer", f"runs/{ready}")
    page.get_by_role("link", name="Subsets").click()
    side_by_side(page)
    expect(page.get_by_text("in both by chance")).to_be_visible()
    page.get_by_role("button", name="Draw the map").click()
    expect(page.get_by_role("img", name=re.compile("^Map of"))).to_have_count(2)

    page.get_by_role("link", name="Diagnosis").click()
    page.get_by_role("button", name="Diagnose", exact=True).click()
    expect(page.get_by_text("wrong labels, estimated")).to_be_visible()

    page.get_by_role("link", name="Runs", exact=True).first.click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Runs")
    # An admin alone may do so.
    assert page.get_by_role("button", name="Start a run").count() == 0
    for name in ("first", "second"):
        page.get_by_label(f"compare {name}").check()
    page.get_by_role("button", name="Compare").click()
    expect(rows(page, "Settings that differ").filter(has_text="num_learners")).to_have_count(1)
    assert page.evaluate("document.querySelector('main script')") is None


def test_a_narrow_page_shows_every_value_of_a_learner_and_keeps_its_table(
    watcher: Watcher, ready: str
) -> None:
    page = watcher.open("trainer", f"runs/{ready}", width=390)
    expect(rows(page, "Learners")).not_to_have_count(0)
    charts: list[Any] = [page.get_by_role("img", name=name) for name in (SOUP, LOSSES)]
    for chart in charts:
        expect(chart).to_be_visible()
        # Drawn for this width: labels are not scaled.
        assert chart.bounding_box()["width"] == int(chart.get_attribute("width"))
    card = rows(page, "Learners").first
    for name in ("loss", "accuracy", "soup after", "density", "time"):
        cell = card.locator(f"[data-name='{name}']")
        expect(cell).to_be_visible()
        assert re.search(r"\d", cell.inner_text()), name
    table = page.get_by_role("table", name="Learners")
    assert table.get_by_role("columnheader").count() == card.get_by_role("cell").count() + 1


def test_a_run_by_source_shows_its_mixtures_and_whose_learners_it_has(
    watcher: Watcher, service: Watched, mixed: str
) -> None:
    page = watcher.open("trainer", f"runs/{mixed}")
    sources = rows(page, "Learners").locator("[data-name='source']")
    expect(sources).to_have_text([HOSTILE_SOURCE, "day"] * 2)
    shares = rows(page, SHARES)
    expect(shares.get_by_role("rowheader")).to_have_text([HOSTILE_SOURCE, "day"])
    expect(shares.first).to_contain_text(re.compile(r"\d+\.\d% *\d+ to \d+%"))
    expect(page.get_by_text("held-out loss of the mixture")).to_be_visible()

    with service.cluster.client() as client:
        target = service.target.with_name(HOSTILE_SOURCE)
        found = client.mixture(mixed, f"imagefolder:{target}")
    page.get_by_role("button", name="Refresh").click()
    summaries = page.locator("#content section details > summary")
    expect(summaries).to_have_count(2)
    # The newest is first, and alone open.
    expect(summaries.first).to_contain_text(f"{found.manifest['target_examples']} examples")
    expect(rows(page, SHARES)).to_have_count(2)
    assert page.evaluate("document.querySelector('main section b')") is None


@pytest.mark.parametrize("width", [390, 1440])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_view_is_accessible_and_fits(
    watcher: Watcher, ready: str, mixed: str, scheme: str, width: int
) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    page = watcher.open("admin", width=width, scheme=scheme)
    for view in VIEWS:
        page.goto(f"{page.url.split('#')[0]}#/{view.format(run=ready, mixed=mixed)}")
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        if "mixed" in view:
            expect(rows(page, SHARES)).to_have_count(2)
        if view.endswith("subsets"):
            side_by_side(page)
            expect(page.get_by_role("list", name=re.compile("^Chosen by"))).to_have_count(2)
        require_accessible(axe, page, view)
        excess = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert page.evaluate(excess) <= 0, view
        assert page.evaluate(CUT_OFF) == [], view
    page.goto(f"{page.url.split('#')[0]}#/runs")
    page.get_by_role("button", name="Start a run").click()
    require_accessible(axe, page, "the dialog")


def require_accessible(axe: Any, page: Page, view: str) -> None:
    found = axe.run(page)
    assert found.violations_count == 0, f"{view}: {found.generate_report()}"


def test_a_token_signs_in_and_out(watcher: Watcher, service: Watched) -> None:
    watcher.expect("status of 401")
    page = watcher.open(None, "workers")
    page.get_by_label("Token").fill("lipt-nobody")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_be_visible()
    page.get_by_label("Token").fill(service.tokens["trainer"])
    page.get_by_role("button", name="Sign in").click()
    # Where one was going.
    expect(page.get_by_role("heading", level=1)).to_contain_text("Workers")
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_label("Token")).to_be_visible()


def test_an_ended_session_asks_to_sign_in_and_returns(
    watcher: Watcher, service: Watched, ready: str
) -> None:
    watcher.expect("status of 401")
    token = make_token(service.cluster, "trainer")
    service.tokens["leaving"] = token["secret"]
    page = watcher.open("leaving", f"runs/{ready}")
    page.evaluate("window.untouched = true")
    service.cluster.lipt("token", "revoke", token["token_id"])
    expect(page.get_by_role("alert")).to_contain_text("Your session has ended")
    assert page.get_by_role("table").count() == 0
    page.get_by_label("Token").fill(service.tokens["trainer"])
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("first")
    assert page.evaluate("window.untouched")


def test_the_keyboard_reaches_everything_in_order(page: Page, ready: str) -> None:
    expect(page.get_by_role("link", name="first")).to_be_visible()
    reached = []
    for _ in range(7):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.textContent"))
    assert reached[0] == "Skip to the content"
    assert [re.sub(r"\d+$", "", text) for text in reached[1:6]] == [
        "lipt", "Runs", "Workers", "Queue", "Diagnosis",
    ]  # fmt: skip
    assert reached[6] == "Sign out"
    page.get_by_role("link", name="Skip to the content").focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    focused = page.evaluate("document.activeElement.closest('main') !== null")
    assert focused


def test_focus_and_what_is_typed_outlive_new_data(
    watcher: Watcher, service: Watched, ready: str
) -> None:
    page = watcher.open("admin", f"runs/{ready}/subsets")
    page.get_by_label("Keep").fill("33")
    page.evaluate("window.field = document.activeElement")
    with service.cluster.client() as client:
        client.wait(client.start_run(one_learner(), name="while typing").run_id)
    # The page has heard of that run, and told of it.
    expect(page.locator("#toasts")).to_contain_text("while typing")
    assert page.evaluate("document.activeElement === window.field")
    expect(page.get_by_label("Keep")).to_have_value("33")


def one_learner() -> dict[str, Any]:
    return {
        "model": "resnet8",
        "learners": {"num_learners": 1, "num_steps": 1, "num_minibatches": 1, "batch_size": 8},
    }


def test_the_page_shows_an_unreachable_coordinator_and_recovers(
    watcher: Watcher, service: Watched, ready: str
) -> None:
    watcher.expect("Failed to load resource")
    page = watcher.open("admin", f"runs/{ready}")
    page.evaluate("window.untouched = true")
    expect(page.get_by_text("live", exact=True)).to_be_visible()
    learners = rows(page, "Learners").all_inner_texts()

    service.coordinator.stop(9)
    expect(page.get_by_text("The coordinator has been unreachable since")).to_be_visible()
    expect(page).to_have_title(re.compile("^Away"))
    # What was seen stays.
    assert rows(page, "Learners").all_inner_texts() == learners

    service.restart()
    expect(page.get_by_text("live", exact=True)).to_be_visible()
    expect(page.get_by_text("The coordinator has been unreachable since")).to_have_count(0)
    expect(page.locator("#toasts")).to_contain_text("back")
    with service.cluster.client() as client:
        client.start_run(one_learner(), name="after the fall")
    page.get_by_role("link", name="Runs", exact=True).first.click()
    expect(page.get_by_role("link", name="after the fall")).to_be_visible()
    assert page.evaluate("window.untouched")
