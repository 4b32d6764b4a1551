"""Example files: every setting of the two services, with its description and its default.

`make generate`, which is `python -m deploy.generate`, writes them after a change of a setting.
"""

from __future__ import annotations

from pathlib import Path

from lipt.common.config.knobs import example_toml
from lipt.coordinator.settings import CoordinatorSettings
from lipt.worker.settings import WorkerSettings

_HEADING = """\
{command} --config {file}

Every setting, at its default; lines that are commented out are examples. LIPT_* variables win \
over this file ({variable}), flags over both. Unknown names are refused.

Made by `make generate` from the descriptions in {source}."""


def example_files() -> dict[str, str]:
    return {
        "run.example.toml": example_toml(
            CoordinatorSettings,
            _HEADING.format(
                command="lipt-coordinator",
                file="run.toml",
                variable="LIPT_RUN__LEARNERS__NUM_STEPS=5",
                source="coordinator/settings.py and common/config/run_config.py",
            ),
        ),
        "worker.example.toml": example_toml(
            WorkerSettings,
            _HEADING.format(
                command="lipt-worker",
                file="worker.toml",
                variable="LIPT_DEVICE=cpu",
                source="worker/settings.py",
            ),
        ),
    }


if __name__ == "__main__":
    for name, content in example_files().items():
        Path(__file__).with_name(name).write_text(content, encoding="utf-8")
