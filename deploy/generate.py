"""Example files: every setting of the two services, with its description and its default.

`make generate`, which is `python -m deploy.generate`, writes them after a change of a setting.
"""

from __future__ import annotations

from pathlib import Path

from lipt.common.config.knobs import example_toml
from lipt.coordinator.settings import CoordinatorSettings
from lipt.worker.settings import WorkerSettings


def example_files() -> dict[str, str]:
    described = "coordinator/settings.py and common/config/run_config.py"
    run = _heading("lipt-coordinator", "run.toml", "LIPT_RUN__LEARNERS__NUM_STEPS=5", described)
    worker = _heading("lipt-worker", "worker.toml", "LIPT_DEVICE=cpu", "worker/settings.py")
    return {
        "run.example.toml": example_toml(CoordinatorSettings, run),
        "worker.example.toml": example_toml(WorkerSettings, worker),
    }


def _heading(command: str, file: str, variable: str, source: str) -> str:
    return f"""\
{command} --config {file}

Every setting, at its default; lines that are commented out are examples. LIPT_* variables win \
over this file ({variable}), flags over both. Unknown names are refused.

Made by `make generate` from the descriptions in {source}."""


if __name__ == "__main__":
    for name, content in example_files().items():
        Path(__file__).with_name(name).write_text(content, encoding="utf-8")
