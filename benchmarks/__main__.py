"""`make bench`: every benchmark, one after another, each in a process of its own."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

from lipt.common.process.devices import versions

BENCHMARKS = ("main_training", "blobs")


def main() -> int:
    names = ", ".join(f"{name} {version}" for name, version in versions().items())
    print(f"{platform.machine()}, {cores()}, {names}")
    failed = [name for name in BENCHMARKS if run(name)]
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return len(failed)


def run(name: str) -> int:
    print(f"\n== {name}", flush=True)
    script = Path(__file__).parent / f"{name}.py"
    return subprocess.run([sys.executable, str(script)], check=False).returncode


def cores() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{len(models)} cores of {models[0]}" if models else platform.processor()


if __name__ == "__main__":
    sys.exit(main())
