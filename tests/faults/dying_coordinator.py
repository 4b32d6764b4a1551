"""A coordinator that kills itself with SIGKILL at the n-th event of a kind.

Run: python -m tests.faults.dying_coordinator KIND NUMBER -- ARGUMENTS OF lipt-coordinator
Every event says what the service is doing at that moment, so a test can put the end of the
process inside a stage, whatever the machine's speed. With NUMBER 0 it never comes. When it
ends by SIGTERM it prints how many events of each kind there were. With SYNC_JOURNAL it
and its compute process write there what they have synced: see `power_cut`. With COMMIT_SECONDS
the disk takes so long for each transaction with a result. With ASK_TO_END the signal is SIGTERM."""

import json
import os
import shutil
import signal
import sqlite3
import stat
import sys
import threading
from collections import Counter
from pathlib import Path
from time import sleep
from typing import Any

from lipt.common.blobs.store import Expiry
from lipt.coordinator import cli
from lipt.coordinator.compute.messages import Progressed
from lipt.coordinator.compute.process import ComputeProcess
from lipt.coordinator.rpc import blobs


def record_syncs(journal: Path) -> None:
    """Let every `os.fsync` of this process leave in `journal` what it made durable."""
    fsync = os.fsync

    def recorded(descriptor: int) -> None:
        # Before the sync: what is added while it lasts may not be part of it.
        found = os.fstat(descriptor)
        lines = [f"content {found.st_ino} {found.st_size}\n"]
        if stat.S_ISDIR(found.st_mode):
            folder = Path(f"/proc/self/fd/{descriptor}").resolve()
            lines = [f"name {entry}\n" for entry in folder.iterdir()]
        fsync(descriptor)
        with journal.open("a") as file:
            file.write("".join(lines))

    setattr(os, "fsync", recorded)  # noqa: B010 - a module is patched


def cut_power(directory: Path, journal: Path) -> list[Path]:
    """Remove names and empty files that had no sync; the paths of what was lost."""
    synced = set(journal.read_text().splitlines())
    lost = []
    for path in sorted(directory.resolve().glob("*/*")):
        named = {f"name {path}", f"name {path.parent}"} <= synced
        found = path.stat()
        if not named:
            path.unlink()
        elif f"content {found.st_ino} {found.st_size}" not in synced:
            os.truncate(path, 0)
        else:
            continue
        lost.append(path)
    for folder in directory.resolve().iterdir():
        if f"name {folder}" not in synced:
            shutil.rmtree(folder)
    return lost


# What the compute process reports in each stage.
_STAGES = {
    "training the initial weights": "initialization",
    "cutting shards": "sharding",
    "merging learners": "soup",
    "computing signals": "selection",
    "computing per-example gradients": "selection",
}
# At these the disk hangs first. Whatever does not wait for it goes on meanwhile: an answer that
# is given too early is on its way before the end comes.
_AT_THE_DISK = {"write", "result", "sync"}
_HANGING_SECONDS = 1.0


class Death:
    def __init__(self, kind: str, number: int) -> None:
        self.counts: Counter[str] = Counter()
        self._ordered = (kind, number)
        self._lock = threading.Lock()
        self._process_id = os.getpid()

    def event(self, kind: str) -> None:
        # The compute process may be a fork, which inherits what is patched here.
        if os.getpid() != self._process_id:
            return
        with self._lock:
            self.counts[kind] += 1
            ordered = (kind, self.counts[kind]) == self._ordered
        if ordered:
            # A signal that asks comes while the disk hangs; one that kills, after.
            asks = "ASK_TO_END" in os.environ
            if asks:
                os.kill(os.getpid(), signal.SIGTERM)
            sleep(_HANGING_SECONDS if kind in _AT_THE_DISK or asks else 0.0)
            if not asks:
                os.kill(os.getpid(), signal.SIGKILL)

    def before(self, target: Any, name: str, kind: str) -> None:
        original = getattr(target, name)

        def counted(*arguments: Any, **options: Any) -> Any:
            self.event(kind)
            return original(*arguments, **options)

        setattr(target, name, counted)

    def watch_stages(self) -> None:
        original = ComputeProcess._in_thread

        async def counted(self_: ComputeProcess, action: Any) -> Any:
            message = await original(self_, action)
            if isinstance(message, Progressed) and message.activity in _STAGES:
                self.event(_STAGES[message.activity])
            return message

        ComputeProcess._in_thread = counted  # type: ignore[method-assign]

    def watch_database(self) -> None:
        death = self
        commit_seconds = float(os.environ.get("COMMIT_SECONDS", "0"))

        class Connection(sqlite3.Connection):
            results = creates = False

            def execute(self, sql: str, parameters: Any = ()) -> sqlite3.Cursor:
                # As the learners of one run are written: JSON in JSON.
                self.results |= any(r"\"state\":\"done\"" in str(value) for value in parameters)
                # A coordinator that dies while it makes its tables has never served.
                self.creates |= sql.startswith("PRAGMA user_version = ")
                if sql != "COMMIT" or self.creates:
                    self.creates &= sql != "COMMIT"
                    return super().execute(sql, parameters)
                before, after = ("result", "recorded") if self.results else ("write", "written")
                sleep(commit_seconds if self.results else 0.0)
                death.event(before)
                cursor = super().execute(sql, parameters)
                self.results = False
                death.event(after)
                return cursor

        connect = sqlite3.connect
        setattr(  # noqa: B010 - a module is patched
            sqlite3,
            "connect",
            lambda *args, **options: connect(*args, factory=Connection, **options),
        )


def journal_syncs() -> None:
    journal = os.environ.get("SYNC_JOURNAL")
    if journal is not None:
        record_syncs(Path(journal))


def main() -> None:
    journal_syncs()
    kind, number, _, *arguments = sys.argv[1:]
    death = Death(kind, int(number))
    death.watch_stages()
    death.watch_database()
    death.before(blobs, "_read", "download")
    death.before(blobs, "_append", "upload")
    death.before(os, "fsync", "sync")
    death.before(Expiry, "remove_blob", "removal")
    sys.argv[1:] = arguments
    try:
        cli.main()
    finally:
        sys.stdout.write(f"counted {json.dumps(death.counts)}\n")


if __name__ == "__main__":
    main()
elif __name__ == "__mp_main__":  # the compute process, which stores theta*, shards and the soup
    journal_syncs()
