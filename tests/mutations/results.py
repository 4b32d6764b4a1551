"""Results of a mutation run: verdicts and outcomes, written to the output file as they come."""

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.mutations.mutants import Mutant, Outcome, Verdict, is_expected


class Results:
    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._kept: dict[str, dict[str, Any]] = {"mutants": {}, "tests": {}}
        if path and path.is_file():
            self._kept = json.loads(path.read_text("utf-8"))

    def has_mutant(self, mutant: Mutant, key: str) -> bool:
        found = self._kept["mutants"].get(mutant.name, {})
        return found.get("key") == key and found["verdict"] != Verdict.BROKEN

    def has_tests(self, tests: tuple[str, ...], key: str) -> bool:
        found = self._kept["tests"].get(" ".join(tests), {})
        return found.get("key") == key and found["outcome"] == Outcome.PASSED

    def unmutated(self, tests: tuple[str, ...]) -> tuple[Outcome, float]:
        found = self._kept["tests"][" ".join(tests)]
        return Outcome(found["outcome"]), found["seconds"]

    def put_mutant(self, mutant: Mutant, key: str, verdict: Verdict, **details: Any) -> None:
        kept = {"key": key, "group": mutant.group, "verdict": verdict, **details}
        self._kept["mutants"][mutant.name] = kept
        self._write()

    def put_tests(self, tests: tuple[str, ...], key: str, **details: Any) -> None:
        self._kept["tests"][" ".join(tests)] = {"key": key, **details}
        self._write()

    def verdict(self, mutant: Mutant) -> Verdict:
        found = self._kept["mutants"].get(mutant.name)
        return Verdict(found["verdict"]) if found else Verdict.STALE

    def summary(self, mutants: Iterable[Mutant]) -> list[str]:
        lines: list[str] = []
        counts: dict[str, Counter[str]] = {}
        for mutant in mutants:
            verdict = self.verdict(mutant)
            counts.setdefault(mutant.group, Counter())[verdict.value] += 1
            if not is_expected(mutant, verdict) or mutant.survives:
                known = f" ({mutant.survives})" if mutant.survives else ""
                lines.append(f"{verdict:9} {mutant.name}{known}")
        for group, counted in counts.items():
            parts = ", ".join(f"{number} {verdict}" for verdict, number in sorted(counted.items()))
            lines.append(f"{group}: {counted.total()} mutants: {parts}")
        return lines

    def _write(self) -> None:
        if self._path:
            new = self._path.with_suffix(".new")
            new.write_text(json.dumps(self._kept, indent=1), "utf-8")
            new.replace(self._path)
