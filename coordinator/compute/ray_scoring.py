"""Ray scoring: ranges of a pass over the data as a Ray Data pipeline, on whatever nodes there are.

Each node opens the data by itself and compares its fingerprint; a range goes to any of them, and to
another where its node is lost. What comes back is read as a worker's is.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from lipt.common.errors import ConfigError, OtherDataError, SignalsError
from lipt.common.images.formats import ImageFormat
from lipt.common.imports.extras import import_extra
from lipt.common.process.devices import device_name, kind_of, resolve_device, versions_on
from lipt.common.signals.ranges import encode_range, score_range
from lipt.common.signals.task_parts import is_data_of, load_task_model, open_task_data
from lipt.coordinator.compute.scan import Scan

if TYPE_CHECKING:
    import pyarrow as pa

# Whose ranges they are, in a folder of ranges.
RAY = "ray"


@dataclass(frozen=True)
class OnNodes:
    """What nodes are given besides the scan.

    address: of the cluster, as `ray.init` takes it.
    source: what nodes call the data.
    allow_modules: modules whose factories may be imported there.
    weights: the file that is scanned through.
    max_bytes: the largest file of weights.
    num_gpus: of each process on a node.
    """

    address: str
    source: str
    allow_modules: tuple[str, ...]
    weights: bytes
    max_bytes: int
    num_gpus: int


def scored_on_ray(
    scan: Scan, indexes: Sequence[int], given: OnNodes
) -> Iterator[tuple[int, bytes]]:
    """Ranges as files, each with its index, in the order in which they are done.

    Args:
        scan: whose ranges they are.
        indexes: which are wanted.
        given: to the nodes.

    Raises:
        MissingExtraError: Ray is not installed.
        ConfigError: no node has room for it.
        SignalsError: it gave what nobody asked for.
        Exception: Ray's own, where there is no cluster, or nodes cannot do it.
    """
    what = {"extra": "ray", "needed_for": "scoring on Ray"}
    ray: Any = import_extra("ray", package="ray", **what)
    data: Any = import_extra("ray.data", package="ray", **what)
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    on_term = signal.getsignal(signal.SIGTERM)
    ray.init(address=given.address, log_to_driver=False, logging_level=logging.ERROR)
    # Ray has put its own there, which ends the process.
    signal.signal(signal.SIGTERM, on_term)
    try:
        require_room(ray.nodes(), scan.whole.threads, given.num_gpus)
        data.DataContext.get_current().enable_progress_bars = False
        rows = data.from_items([{"index": index} for index in indexes]).repartition(len(indexes))
        # Tasks, and no actors: what an actor had in hand waits for it, though its node is lost.
        scored = rows.map_batches(
            score_rows,
            fn_kwargs={"scan": scan, "given": given},
            batch_size=1,
            batch_format="pyarrow",
            num_cpus=scan.whole.threads,
            num_gpus=given.num_gpus,
        )
        wanted = set(indexes)
        for row in scored.iter_rows():
            index, content = row["index"], row["content"]
            if index not in wanted or len(content) > scan.max_file_bytes:
                raise SignalsError(
                    f"Ray gave range {index} with {len(content)} bytes, which nobody asked for. "
                    "See who is in the cluster."
                )
            wanted.remove(index)
            yield index, content
    finally:
        ray.shutdown()


def require_room(nodes: Iterable[Mapping[str, Any]], num_cpus: int, num_gpus: int) -> None:
    """See that a range fits some node: Ray itself would wait for one for ever.

    Args:
        nodes: as `ray.nodes()` tells of them.
        num_cpus: that a range takes.
        num_gpus: likewise.

    Raises:
        ConfigError: it fits none.
    """
    room = [node["Resources"] for node in nodes if node["Alive"]]
    if not any(one.get("CPU", 0) >= num_cpus and one.get("GPU", 0) >= num_gpus for one in room):
        most = max((int(one.get("CPU", 0)) for one in room), default=0)
        raise ConfigError(
            f"a range takes {num_cpus} CPUs and {num_gpus} GPUs of one node; of the cluster's "
            f"{len(room)} nodes none has both, and {most} CPUs are the most. Lower "
            "evaluation_threads, or add such a node."
        )


def score_rows(rows: pa.Table, scan: Scan, given: OnNodes) -> pa.Table:
    """On a node: the files of the ranges whose indexes the rows have."""
    return _scorer(scan, given)(rows)


@lru_cache(maxsize=1)
def _scorer(scan: Scan, given: OnNodes) -> RangeScorer:
    """This process's: the last range's data and model are the next one's."""
    return RangeScorer(scan, given)


class RangeScorer:
    """On a node: the data and the model, and one range after another."""

    def __init__(self, scan: Scan, given: OnNodes) -> None:
        """Open the data and build the model.

        Raises:
            OtherDataError: it is other data here, or the last digits would differ.
            LiptError: the data cannot be opened, or the model not be built.
        """
        self._scan, whole = scan, scan.whole
        self._device = resolve_device("cuda" if given.num_gpus else "cpu")
        here = kind_of(device_name(self._device), versions_on(self._device))
        if scan.kind not in {"", here}:
            raise OtherDataError(
                f"this node is {here}, and the coordinator {scan.kind}: the last digits would "
                "differ. Use nodes of its kind, or compute.scoring_workers = any."
            )
        image = whole.inputs if isinstance(whole.inputs, ImageFormat) else None
        self._dataset = open_task_data(
            whole,
            given.source,
            image_size=None if image is None else image.height,
            allowed_modules=given.allow_modules,
        )
        found = self._dataset.fingerprint_like(whole.fingerprint)
        if not is_data_of(whole, self._dataset, found):
            raise OtherDataError(
                f"{given.source} has the fingerprint {found} on this node, and the coordinator's "
                f"data {whole.fingerprint}. Give nodes the same data (compute.ray_data)."
            )
        self._model = load_task_model(
            whole,
            given.weights,
            device=self._device,
            allowed_modules=given.allow_modules,
            max_bytes=given.max_bytes,
        )

    def __call__(self, rows: pa.Table) -> pa.Table:
        """The files of the ranges whose indexes the rows have."""
        import pyarrow as pa  # noqa: PLC0415 - Ray brings it

        indexes = rows["index"].to_pylist()
        contents = [encode_range(self._scored(index)) for index in indexes]
        if self._dataset.has_changed():
            raise OtherDataError(f"files of {self._dataset.source} have changed meanwhile.")
        return pa.table({"index": indexes, "content": pa.array(contents, pa.large_binary())})

    def _scored(self, index: int) -> Any:
        task = self._scan.task(index)
        return score_range(self._model, self._dataset, task, device=self._device)
