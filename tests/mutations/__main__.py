"""Mutation run: takes each protection of the table out, and names those that no test misses.

`make test-mutations` runs it; docs/architecture.md says how to add a row. `--decisions N` changes N
places of each deciding module in place of that, and prints the share that tests notice.
"""

import argparse
import os
import re
import shlex
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

# One thread for each process, also in the libraries that read this when they are imported.
os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}

from tests.mutations.mutants import (
    DECISIONS,
    Mutant,
    Outcome,
    StaleError,
    Verdict,
    judge,
    mutated_files,
    read_mutants,
)
from tests.mutations.scratch import ROOT, Scratch, Trial

_TABLES, _DECIDING = Path(__file__).parent / "rows", Path(__file__).parent / "deciding.toml"
_UNMUTATED_LIMIT_S = 900.0
# A mutant's tests may take so many times as long as without it, and a minute at least.
_LIMIT_FACTOR, _LEAST_LIMIT_S = 5, 60.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the mutants that the command line names; 0 if each was caught."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutations", description=__doc__)
    parser.add_argument("--only", default="", help="pattern of a row's name, module or tests")
    parser.add_argument("--slow", action="store_true", help="rows that take minutes, too")
    parser.add_argument("--stale", action="store_true", help="only compare the rows with the code")
    parser.add_argument(
        "--decisions", type=int, default=0, metavar="N", help="N mutants of each deciding module"
    )
    parser.add_argument("--jobs", type=int, default=1, help="mutants that are tested at a time")
    parser.add_argument("--pytest", default="", help="more options for pytest, in one text")
    options = parser.parse_args(arguments)
    chosen = read_mutants(_TABLES)
    if options.decisions:
        from tests.mutations.operators import decision_mutants

        sample = options.decisions
        chosen = decision_mutants(_DECIDING, ROOT, sample=sample, only=options.only)
    mutants = [
        mutant
        for mutant in chosen
        if (options.slow or options.stale or not mutant.slow)
        and any(re.search(options.only, text) for text in _texts(mutant))
    ]
    fitting = [mutant for mutant in mutants if _fits(mutant)]
    if options.stale:
        return int(len(fitting) < len(mutants))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with tempfile.TemporaryDirectory(prefix="lipt-mutations-") as folder:
        more = shlex.split(options.pytest)
        scratches = [Scratch(Path(folder, str(number)), more) for number in range(options.jobs)]
        for scratch in scratches:
            scratch.fill()
        runner = Runner(scratches)
        runner.run(fitting)
    wrong = _print_summary(fitting, runner.verdicts)
    _print_line(f"{len(mutants) - len(fitting)} stale rows")
    return int(wrong or len(fitting) < len(mutants))


def _texts(mutant: Mutant) -> list[str]:
    return [mutant.name, *mutant.tests, *(edit.file for edit in mutant.edits)]


def _fits(mutant: Mutant) -> bool:
    try:
        mutated_files(mutant, ROOT)
    except StaleError as error:
        _print_line(f"{Verdict.STALE:9} {mutant.name}: {error}")
        return False
    return True


def _print_summary(mutants: Sequence[Mutant], verdicts: Mapping[str, Verdict]) -> bool:
    """Names the mutants that were not caught; whether one of them is a row's."""
    wrong, counts = False, dict[str, Counter[str]]()
    for mutant in mutants:
        verdict = verdicts[mutant.name]
        counts.setdefault(mutant.group, Counter())[verdict.value] += 1
        if verdict is not Verdict.CAUGHT:
            # Not every change of a decision changes what it decides: their share is the score.
            wrong |= mutant.group != DECISIONS
            _print_line(f"{verdict:9} {mutant.name}")
    for group, counted in counts.items():
        parts = ", ".join(f"{number} {verdict}" for verdict, number in sorted(counted.items()))
        _print_line(f"{group}: {counted.total()} mutants: {parts}")
    return wrong


class Runner:
    """Runs tests with and without mutations, in as many scratch copies at a time as there are."""

    def __init__(self, scratches: Sequence[Scratch]) -> None:
        self._free = list(scratches)
        self._under_way: list[tuple[Scratch, Trial, Mutant | tuple[str, ...]]] = []
        self._unmutated: dict[tuple[str, ...], Trial] = {}
        self.verdicts: dict[str, Verdict] = {}

    def run(self, mutants: Sequence[Mutant]) -> None:
        """Run each set of tests once without mutations, then every mutant."""
        try:
            for tests in dict.fromkeys(mutant.tests for mutant in mutants):
                self._start(tests, tests, _UNMUTATED_LIMIT_S)
            self._finish()
            for mutant in mutants:
                trial = self._unmutated[mutant.tests]
                if trial.outcome is Outcome.PASSED:
                    limit_s = max(_LEAST_LIMIT_S, _LIMIT_FACTOR * trial.seconds)
                    self._start(mutant, mutant.tests, limit_s)
                else:
                    self._report(mutant, Verdict.BROKEN)
            self._finish()
        finally:
            for _, trial, _ in self._under_way:
                trial.kill()

    def _start(
        self, subject: Mutant | tuple[str, ...], tests: tuple[str, ...], limit_s: float
    ) -> None:
        while not self._free:
            self._wait()
        scratch = self._free.pop()
        if isinstance(subject, Mutant):
            scratch.mutate(mutated_files(subject, scratch.tree))
        self._under_way.append((scratch, scratch.start(tests, limit_s=limit_s), subject))

    def _finish(self) -> None:
        while self._under_way:
            self._wait()

    def _wait(self) -> None:
        for entry in [entry for entry in self._under_way if entry[1].poll()]:
            self._under_way.remove(entry)
            scratch, trial, subject = entry
            scratch.restore()
            self._free.append(scratch)
            if isinstance(subject, Mutant):
                outcome = self._unmutated[subject.tests].outcome
                verdict = judge(outcome, trial.outcome, hangs=subject.hangs)
                self._report(subject, verdict, seconds=trial.seconds, failed=trial.failed)
                continue
            self._unmutated[subject] = trial
            _print_line(f"{trial.outcome:9} {trial.seconds:6.1f} s  {' '.join(subject)}")
            if trial.outcome is not Outcome.PASSED:
                _print_line(scratch.log.read_text("utf-8", errors="replace"))
        time.sleep(0.02)

    def _report(
        self, mutant: Mutant, verdict: Verdict, *, seconds: float = 0.0, failed: str = ""
    ) -> None:
        self.verdicts[mutant.name] = verdict
        _print_line(f"{verdict:9} {seconds:6.1f} s  {mutant.name}  {failed}")


def _print_line(line: str) -> None:
    print(line, flush=True)  # noqa: T201 - the command's output


if __name__ == "__main__":
    sys.exit(main())
