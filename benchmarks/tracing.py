"""What tracing costs a run, and what a run looks like in a trace.

Runs of the digits with a coordinator and two workers as real processes, in turn without and with
OTEL_* variables that name a collector, which is a thread of this one. Shown are seconds of a run,
from its request to its soup, and the median of the ratios within the pairs. With --draw, the last
trace is written as the drawing of docs/observing.md#traces; transfers' calls are left out of it.
Run: python -m benchmarks.tracing [--pairs 5] [--draw docs/diagrams/trace.svg]
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from xml.sax.saxutils import escape

from benchmarks.processes import Children
from lipt.trainer import Client
from tests.collector import Spanned, collecting

ROOT = Path(__file__).resolve().parents[1]
RUN = {
    "model": "resnet8",
    "learners": {"num_learners": 8, "num_steps": 10, "batch_size": 32},
}
DRAWN = ["--num-learners", "2", "--num-steps", "10", "--batch-size", "32"]
SERVICES = ("lipt", "lipt-coordinator", "lipt-compute", "lipt-worker")
SVG = "http://www.w3.org/2000/svg"
WIDTH, LEFT, ROW, TOP = 700, 230, 18, 34


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--draw", type=Path)
    arguments = parser.parse_args()
    with collecting() as collector:
        ratios = []
        with serving({}) as (plain, _), serving(collector.environment) as (traced, children):
            seconds_of_run(plain)
            seconds_of_run(traced)
            for _ in range(arguments.pairs):
                without, with_it = seconds_of_run(plain), seconds_of_run(traced)
                ratios.append(with_it / without)
                print(f"{without:.2f} s without, {with_it:.2f} s with: {ratios[-1]:.3f}")
            num_spans = len(collector.spans())
            if arguments.draw:
                start = ["-m", "lipt.trainer.cli", "run", "start", "--watch", *DRAWN]
                children.start("lipt", [*start, "--coordinator", traced])
                spans = collector.wait_for(lambda all_: "lipt run start" in {s.name for s in all_})
                arguments.draw.write_text(drawing(spans), encoding="utf-8")
    off, on = microseconds_of_a_span({}), microseconds_of_a_span({"OTEL_TRACES_EXPORTER": "otlp"})
    print(f"a span takes {off:.1f} us where nothing is traced, {on:.0f} us where it is exported")
    if ratios:
        shown = f"median {statistics.median(ratios):.3f}, {min(ratios):.3f} to {max(ratios):.3f}"
        print(f"{shown}; {num_spans / (arguments.pairs + 1):.0f} spans a run")


def microseconds_of_a_span(environment: dict[str, str]) -> float:
    """Of the thread that makes it, in a process of its own; the median of 20 times 100."""
    program = """
import statistics, time
from lipt.common.observability.tracing import exporting
from lipt.common.observability.tracing import span
with exporting("lipt-benchmark"):
    seconds = []
    for _ in range(20):
        began = time.thread_time()
        for number in range(100):
            with span("work", run_id="r", bytes=number):
                pass
        seconds.append(time.thread_time() - began)
print(statistics.median(seconds) * 1e4)
"""
    clean = {name: text for name, text in os.environ.items() if not name.startswith("OTEL_")}
    done = subprocess.run(
        [sys.executable, "-c", program], env=clean | environment, stdout=subprocess.PIPE, check=True
    )
    return float(done.stdout)


@contextmanager
def serving(environment: dict[str, str]) -> Iterator[tuple[str, Children]]:
    """A coordinator and two workers with these variables; the address, and its children."""
    with tempfile.TemporaryDirectory() as folder:
        scratch, file = Path(folder), Path(folder, "address")
        clean = {name: text for name, text in os.environ.items() if not name.startswith("OTEL_")}
        with Children(scratch, {**clean, **environment}) as children:
            listen = ("--listen", "127.0.0.1:0", "--address-file", str(file))
            own = ("--device", "cpu", "--state-dir", str(scratch / "state"), *listen)
            serve = ("-m", "lipt.coordinator", "--data", "digits", "--model", "resnet8")
            children.start("coordinator", [*serve, *own])
            while not file.exists():
                children.check()
                time.sleep(0.05)
            address = file.read_text().strip()
            for name in ("gpu-1", "gpu-2"):
                work = ("-m", "lipt.worker", "--coordinator", address, "--device", "cpu")
                cache = str(scratch / name)
                children.start(name, [*work, "--name", name, "--cache-dir", cache])
            yield address, children


def seconds_of_run(address: str) -> float:
    with Client(address) as client:
        began = time.perf_counter()
        client.wait(client.start_run(RUN).run_id)
        return time.perf_counter() - began


def drawing(spans: list[Spanned]) -> str:
    """The trace of `lipt run start` as bars over time, each below what it is a part of."""
    (root,) = (span for span in spans if span.name == "lipt run start")
    of_it = [span for span in spans if span.trace_id == root.trace_id]
    rows = list(in_order(of_it, root, 0))
    begin, end = root.start, max(span.end for span in of_it)
    scale = (WIDTH - LEFT - 60) / (end - begin)
    height = TOP + ROW * len(rows) + 10
    size = f'viewBox="0 0 {WIDTH} {height}" xmlns="{SVG}"'
    parts = [f'<svg class="sequence trace" role="img" aria-label="One run as a trace" {size}>']
    for place, service in enumerate(SERVICES):
        parts.append(
            f'<rect class="s{place}" x="{10 + 150 * place}" y="8" width="12" height="12"/>'
            f'<text x="{28 + 150 * place}" y="18">{service}</text>'
        )
    for row, (span, depth) in enumerate(rows):
        y = TOP + ROW * row
        x, width = LEFT + (span.start - begin) * scale, max(1.5, (span.end - span.start) * scale)
        milliseconds = (span.end - span.start) / 1e6
        said = f"{milliseconds / 1000:.1f} s" if milliseconds >= 1000 else f"{milliseconds:.0f} ms"
        name = span.name.removeprefix("lipt.v1.RunService/").removeprefix("lipt.v1.WorkerService/")
        parts.append(
            f'<text x="{8 + 12 * depth}" y="{y + 12}">{escape(name)}</text>'
            f'<rect class="s{SERVICES.index(span.service)}" x="{x:.1f}" y="{y + 2}" '
            f'width="{width:.1f}" height="{ROW - 5}"/>'
            f'<text x="{x + width + 5:.1f}" y="{y + 12}">{said}</text>'
        )
    return "\n".join([*parts, "</svg>", ""])


def in_order(spans: list[Spanned], span: Spanned, depth: int) -> Iterator[tuple[Spanned, int]]:
    """A span and all that are parts of it, with how deep they are; calls of transfers are not."""
    yield span, depth
    for child in spans:
        if child.parent_id == span.span_id and "BlobService" not in child.name:
            yield from in_order(spans, child, depth + 1)


if __name__ == "__main__":
    main()
