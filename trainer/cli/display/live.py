"""Live table of a run: it changes in place, a row per learner."""

from __future__ import annotations

from rich.console import Group
from rich.live import Live
from rich.table import Table

from lipt.trainer.cli.display.displays import Display
from lipt.trainer.cli.display.pace import Pace
from lipt.trainer.cli.display.progress import LEARNER_COLUMNS, learner_cells, state_line
from lipt.trainer.cli.display.screen import Screen, styled
from lipt.trainer.views import LearnerView, RunView

_NUMBERS = ("learner", "step", "loss", "validation", "density")

# Taller tables than the terminal would scroll instead of changing in place.
_SPARE_LINES = 6


class LiveDisplay(Display):
    """A live table of a run's learners below a line with its state."""

    def __init__(self, console: Screen | None = None) -> None:
        self._console = console or Screen()
        self._live = Live(styled("waiting for the coordinator"), console=self._console)
        self._live.start()
        self._pace = Pace()
        self._run: RunView | None = None

    def show(self, run: RunView, now: float) -> None:
        """Draw the run anew."""
        self._pace.observe(run, now)
        self._run = run
        self.tick(now)

    def tick(self, now: float) -> None:
        """Draw it with what is left by now."""
        run = self._run
        if run is None:
            return
        height = max(self._console.height - _SPARE_LINES, 5)
        # What has ended is no longer drawn in place and may be of any length.
        learners = run.learners if run.ended else shown_learners(run.learners, height)
        self._live.update(render(run, learners, left=self._pace.words(now)), refresh=True)

    def close(self) -> None:
        """Leave the last table on the screen and give the cursor back."""
        self._live.stop()


def shown_learners(learners: tuple[LearnerView, ...], height: int) -> tuple[LearnerView, ...]:
    """As many learners as there are lines: those in training before the others."""
    if len(learners) <= height:
        return learners
    by_interest = sorted(learners, key=lambda item: (item.state != "leased", item.index))
    return tuple(sorted(by_interest[:height], key=lambda item: item.index))


def render(run: RunView, learners: tuple[LearnerView, ...], *, left: str = "") -> Group:
    """The state's line, what is left of that state, and the learners' table, as rich draws them."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in LEARNER_COLUMNS:
        table.add_column(column, justify="right" if column in _NUMBERS else "left")
    for learner in learners:
        cells = learner_cells(learner, run.config.learners.num_steps)
        table.add_row(*map(styled, cells), style=_style(learner))
    hidden = len(run.learners) - len(learners)
    lines = [styled("; ".join(filter(None, (state_line(run), left))), "bold")]
    if hidden:
        lines.append(styled(f"and {hidden} more learners", "dim"))
    return Group(lines[0], table, *lines[1:]) if run.learners else Group(*lines)


def _style(learner: LearnerView) -> str:
    if learner.ingredient is not None:
        return "green" if learner.ingredient.kept else "dim"
    return {"leased": "cyan", "failed": "red", "dropped": "dim"}.get(learner.state.value, "")
