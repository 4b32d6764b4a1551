"""Client of commands: its calls that wait print their progress, and that a coordinator is gone."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from lipt.cli.output import PrintLine, run_with_progress
from lipt.trainer.client.client import Client
from lipt.trainer.diagnosis.diagnosis import Diagnosis
from lipt.trainer.subsets.subset import Subset
from lipt.trainer.views import RunView

if TYPE_CHECKING:
    from lipt.trainer.mixture import Mixture

ResultT = TypeVar("ResultT")


class TerminalClient(Client):
    """A client that prints a line at least every ten seconds while a call waits."""

    def reach(self, seconds: float, **options: Any) -> None:
        """Wait up to `seconds` for the coordinator's first answer."""
        wait = super().reach
        activity = f"waiting for the coordinator at {self.address}"
        run_with_progress(lambda _: wait(seconds, **options), activity=activity)

    def wait(self, run_id: str = "latest") -> RunView:
        """Wait until a run is ready, and return it."""
        wait = super().wait
        return self._shown(lambda _: wait(run_id), f"waiting for run {run_id}")

    def subset(self, run: str = "latest", *given: Any, **asked: Any) -> Subset:
        """Select examples with a run's model."""
        select = super().subset
        return self._shown(
            lambda report: select(
                run, *given, **asked, on_progress=lambda progress: report(str(progress))
            ),
            "waiting for the subset",
        )

    def diagnose(self, *given: Any, **asked: Any) -> Diagnosis:
        """Find wrong labels, duplicates, outliers and weak classes in the coordinator's data."""
        diagnose = super().diagnose
        return self._shown(
            lambda report: diagnose(
                *given, **asked, on_progress=lambda progress: report(str(progress))
            ),
            "waiting for the diagnosis",
        )

    def mixture(self, *given: Any, **asked: Any) -> Mixture:
        """Find how much of each of a run's sources to train on for a target."""
        mix = super().mixture
        return self._shown(
            lambda report: mix(*given, **asked, on_progress=lambda progress: report(str(progress))),
            "waiting for the mixture",
        )

    def _shown(self, work: Callable[[PrintLine], ResultT], activity: str) -> ResultT:
        return run_with_progress(work, activity=activity, silence=self.silence)
