"""Write the example files: `python -m deploy.generate`, which is `make generate`."""

from __future__ import annotations

from pathlib import Path

from deploy.generate import example_files

for name, content in example_files().items():
    (Path(__file__).parents[1] / name).write_text(content, encoding="utf-8")
