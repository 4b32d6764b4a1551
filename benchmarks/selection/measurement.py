"""One row of a table, in a process of its own, so that its memory is its own.

Started by `runner.py` with a file that says what to measure. What is imported and what is
compiled at first use comes before the measured call, as do the signals.
"""

from __future__ import annotations

import json
import resource
import signal
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from benchmarks.selection.groups import CLASS_SIDES, GROUPS, IMAGENET_SIDES
from benchmarks.selection.implementation import Checkouts, Implementation, PeerMissingError, Task
from benchmarks.selection.runner import metered
from benchmarks.selection.workload import read


def implementations_of(group: str) -> tuple[Implementation, ...]:
    match group:
        case "class":
            return CLASS_SIDES
        case "imagenet":
            return IMAGENET_SIDES
        case _:
            return GROUPS[group].implementations


def main(spec_path: Path) -> None:
    spec = json.loads(spec_path.read_text())
    torch.set_num_threads(spec["threads"])
    outcome: dict[str, Any]
    try:
        outcome = asdict(measure(spec, spec_path.with_name("chosen")))
    except PeerMissingError as error:
        outcome = {"problem": str(error)}
    except MemoryError:
        outcome = {"problem": f"needs more than {spec['memory_limit_gb']:.0f} GB"}
    except Exception as error:  # noqa: BLE001 - a peer that fails is a row of the table
        words = " ".join(str(error).split())
        if "can't allocate memory" in words:
            words = f"needs more than {spec['memory_limit_gb']:.0f} GB"
        outcome = {"problem": f"{type(error).__name__}: {words}"[:160]}
    spec_path.with_name("outcome").write_text(json.dumps(outcome))


def measure(spec: Mapping[str, Any], chosen_path: Path) -> Any:
    signals = read(Path(spec["folder"]), spec["device"], mapped=spec["mapped"])
    paths = {
        name: None if spec[name] is None else Path(spec[name]) for name in ("deepcore", "cords")
    }
    task = Task(signals, spec["budget"], Checkouts(**paths))
    implementation = next(
        implementation
        for implementation in implementations_of(spec["group"])
        if implementation.name == spec["implementation"]
    )
    run = implementation.prepare(task)
    limit(spec)
    chosen, cost = metered(run, spec["device"])
    signal.setitimer(signal.ITIMER_PROF, 0)
    tensors = {
        "indices_K": chosen.indices_K.cpu().contiguous(),
        "weights_K": chosen.weights_K.cpu().contiguous(),
    }
    save_file(tensors, chosen_path)
    return cost


def limit(spec: Mapping[str, Any]) -> None:
    """CPU seconds and private memory from here on; the first ends the process by SIGPROF."""
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, spec["time_limit_seconds"])
    if spec["device"] == "cpu":
        num_bytes = int(spec["memory_limit_gb"] * 1e9)
        resource.setrlimit(resource.RLIMIT_DATA, (num_bytes, num_bytes))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
