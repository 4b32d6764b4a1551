"""The service in the tests' process, clients of it through a relay; digits, and subsets."""

import socket
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from lipt.data.dataset import Dataset
from lipt.data.loading import open_dataset
from lipt.trainer.client.client import Client
from lipt.trainer.subsets.subset import Subset
from lipt.v1 import run_pb2
from tests.relay import Relay
from tests.service import Service, serving
from tests.trainer.made_up import made_up_subset


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with serving(tmp_path_factory.mktemp("service")) as service:
        yield service


@pytest.fixture
def relay(service: Service) -> Iterator[Relay]:
    """What the test's clients talk to; runs that they have started are cancelled at the end."""
    with Relay(service.address) as relay:
        yield relay
    if relay.requests_of(run_pb2.CreateRunRequest):
        with Client(service.address) as client:
            for run in client.runs():
                if run.goes_on:
                    client.cancel(run.run_id)


@pytest.fixture
def client(relay: Relay) -> Iterator[Client]:
    with Client(relay.address) as opened:
        yield opened


@pytest.fixture
def stranger() -> Iterator[str]:
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None).wait()


@pytest.fixture
def dead_address() -> Iterator[str]:
    """An address that refuses connections: its port is taken, and nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"


@pytest.fixture(scope="session")
def digits() -> Dataset:
    return open_dataset("digits-train")


@pytest.fixture
def subset_of() -> Callable[..., Subset]:
    def make(
        dataset: Dataset, indices: Sequence[int], weights: Sequence[float] | None = None
    ) -> Subset:
        return made_up_subset(indices, weights, fingerprint=dataset.fingerprint)

    return make
