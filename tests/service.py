"""The real service in the tests' process: a coordinator of the digits with a run that is ready.

It is made once for all tests of a process, so that none may wait for it. A test that starts a run
gives it a name of its own; nobody trains its learners but the test itself.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lipt.common.blobs.blob import BlobName
from lipt.common.blobs.transfer import Transfers
from lipt.common.config.settings import load_settings
from lipt.common.rpc.channel import open_channel
from lipt.coordinator.settings import CoordinatorSettings
from lipt.trainer.client.client import Client
from lipt.trainer.views import RunView
from lipt.v1 import blob_pb2_grpc
from tests.blob_files import blob_file
from tests.embedded import EmbeddedCoordinator
from tests.played_worker import PlayedWorker

SOURCE, MODEL, READY, WORKER = "digits-train", "resnet8", "first", "box"
# Two learners that see next to nothing.
SMALLEST: Mapping[str, Any] = {
    "learners": {"num_learners": 2, "num_steps": 1, "num_minibatches": 1, "batch_size": 16},
    "soup": {"batch_norm_examples": 32},
}


@dataclass(frozen=True)
class Service:
    address: str
    state: Path
    ready: RunView

    def store(self, content: bytes) -> BlobName:
        with open_channel(self.address) as channel:
            return Transfers(blob_pb2_grpc.BlobServiceStub(channel)).upload(content)

    def blob(self, sha256: str) -> bytes:
        return blob_file(self.state, sha256).read_bytes()


@contextmanager
def serving(folder: Path) -> Iterator[Service]:
    settings = load_settings(
        CoordinatorSettings,
        config=None,
        flags={
            "dataset": {"source": SOURCE},
            "run": {"model": MODEL},
            "listen": "127.0.0.1:0",
            "dashboard_listen": "127.0.0.1:0",
            "state_dir": folder / "state",
            "device": "cpu",
            "drain_seconds": 0.1,
        },
    )
    with EmbeddedCoordinator(settings) as address, Client(address) as client:
        with open_channel(address) as channel:
            run = client.start_run(SMALLEST, name=READY)
            worker = PlayedWorker(folder, channel, WORKER)
            for _ in range(run.config.learners.num_learners):
                worker.submit(worker.take())
        yield Service(address, settings.state_dir, client.wait(run.run_id))
