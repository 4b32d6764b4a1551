"""Against a plain web server, on loopback: one that answers ranges, and one that does not."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch

from lipt.common.data import open_dataset
from lipt.common.errors import DataError
from tests.tar_shards import samples, write_shard

Encode = Callable[..., bytes]
pytest.importorskip("aiohttp")

# Of what aiohttp is made of.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


class Ranges(SimpleHTTPRequestHandler):
    """Answers as a web server for large files does."""

    def do_GET(self) -> None:
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        path = Path(self.translate_path(self.path))
        if asked is None or not path.is_file():
            super().do_GET()
            return
        content = path.read_bytes()
        part = content[int(asked[1]) : int(asked[2]) + 1]
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {asked[1]}-{asked[2]}/{len(content)}")
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        self.wfile.write(part)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's word
        pass


class Whole(Ranges):
    """Knows nothing of ranges."""

    def do_GET(self) -> None:
        SimpleHTTPRequestHandler.do_GET(self)


@contextmanager
def served(folder: Path, handler: type[SimpleHTTPRequestHandler]) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(handler, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def shards(tmp_path: Path, encode: Encode) -> Path:
    images = [encode(number) for number in range(10)]
    folder = tmp_path / "www"
    for number in range(2):
        own = samples(images[5 * number : 5 * number + 5], [0, 1, 0, 1, 1], first=5 * number)
        write_shard(folder / f"train-{number:02d}.tar", own)
    return folder


def test_shards_of_a_web_server_are_the_same_data(shards: Path) -> None:
    local = open_dataset(f"webdataset:{shards}")
    with served(shards, Ranges) as url:
        data = open_dataset(f"webdataset:{url}/train-{{00..01}}.tar")
        assert data.fingerprint == local.fingerprint
        assert torch.equal(data.images(torch.tensor([9, 0])), local.images(torch.tensor([9, 0])))
        with pytest.raises(DataError, match=r"train-02\.tar"):
            open_dataset(f"webdataset:{url}/train-{{00..02}}.tar")


def test_a_server_without_ranges_is_refused_and_says_why(shards: Path) -> None:
    with (
        served(shards, Whole) as url,
        pytest.raises(DataError, match=r"the server sends all of .* where a part is asked for"),
    ):
        open_dataset(f"webdataset:{url}/train-{{00..01}}.tar")
