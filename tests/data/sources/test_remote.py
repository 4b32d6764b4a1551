"""Against a real server of S3's kind, on loopback."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from pyarrow import parquet as pq

from lipt.data.loading import open_dataset
from lipt.data.registry import open_rows
from tests.tar_shards import samples, write_shard

Encode = Callable[..., bytes]
pytest.importorskip("s3fs")
moto_server = pytest.importorskip("moto.server")
boto3 = pytest.importorskip("boto3")

pytestmark = [
    # Of what s3fs and moto are made of.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    server = moto_server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


class Bucket:
    def __init__(self, endpoint: str, name: str) -> None:
        self.client, self.name = boto3.client("s3", endpoint_url=endpoint), name
        self.client.create_bucket(Bucket=name)

    def put(self, key: str, content: bytes) -> str:
        self.client.put_object(Bucket=self.name, Key=key, Body=content)
        return f"s3://{self.name}/{key}"


@pytest.fixture
def bucket(
    endpoint: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Bucket:
    """A bucket of the test's own; who may read it is told by the environment."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "someone")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a secret")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    return Bucket(endpoint, f"bucket-{abs(hash(request.node.name)) % 10**9}")


def upload_shards(bucket: Bucket, folder: Path, images: list[bytes], labels: list[int]) -> str:
    for number in range(0, len(images), 3):
        part = samples(images[number : number + 3], labels[number : number + 3])
        path = write_shard(folder / f"s-{number // 3:03d}.tar", part)
        bucket.put(f"data/train/{path.name}", path.read_bytes())
    return f"s3://{bucket.name}/data/train"


def test_remote_shards_equal_local_ones(bucket: Bucket, tmp_path: Path, encode: Encode) -> None:
    images = [encode(i) for i in range(7)]
    url = upload_shards(bucket, tmp_path, images, [0, 1, 2, 0, 1, 2, 0])
    bucket.put("data/train/more/s-009.tar", b"not of this folder")
    local = open_dataset(f"webdataset:{tmp_path}")
    for source in (f"webdataset:{url}", f"webdataset:{url}/s-{{000..002}}.tar"):
        far = open_dataset(source, memory_budget_bytes=0)
        assert far.fingerprint == local.fingerprint
        assert [far.raw_bytes(row) for row in range(7)] == images
        assert torch.equal(far.images(torch.arange(7)), local.images(torch.arange(7)))
        assert not far.has_changed()
    where = far.rows.where(6)  # type: ignore[attr-defined]
    assert where == f"{url}/s-002.tar, member 000000.png"


def test_parquet_is_read_by_row_groups(
    bucket: Bucket, tmp_path: Path, encode: Encode, fetched: list[tuple[str, int, int]]
) -> None:
    # Random bytes: nothing of them can be compressed away. A row group is 4 x 60,000 bytes.
    images = [encode(i, (100, 200)) for i in range(20)]
    struct = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    column = pa.array([{"bytes": image, "path": None} for image in images], struct)
    table = pa.table({"image": column, "label": pa.array([0, 1] * 10, pa.int64())})
    pq.write_table(table, tmp_path / "train.parquet", row_group_size=4, compression="none")
    content = (tmp_path / "train.parquet").read_bytes()
    url = bucket.put("set/data/train-0.parquet", content)
    bucket.put("set/data/test-0.parquet", b"another split")
    rows: Any = open_rows(f"parquet:s3://{bucket.name}/set", (), None)
    assert rows.labels_N.tolist() == [0, 1] * 10
    assert sum(end - start for _, start, end in fetched) < len(content) / 10
    fetched.clear()
    assert rows.raw(9) == images[9]
    assert 4 * 60_000 < sum(end - start for _, start, end in fetched) < 5 * 60_000
    assert rows.where(9) == f"{url}, row 9"
    far = open_dataset(f"parquet:{url}")
    assert far.fingerprint == open_dataset(f"parquet:{tmp_path}").fingerprint
