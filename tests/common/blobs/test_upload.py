import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lipt.common.blobs.blob import BlobName
from lipt.common.blobs.store import BlobStore
from lipt.common.errors import CorruptBlobError, StateError, UploadInProgressError, WrongOffsetError
from tests.blob_files import file_size_limit, files_of

DATA = b"0123456789" * 100
NAME = BlobName.of(DATA)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cuts=st.lists(st.integers(0, 1000), max_size=5), data=st.binary(max_size=1000))
def test_any_cuts_give_the_same_blob(tmp_path: Path, cuts: list[int], data: bytes) -> None:
    store = BlobStore(tmp_path, max_blob_bytes=10_000)
    name = BlobName.of(data)
    edges = [*sorted(cut for cut in cuts if cut < len(data)), len(data)]
    for edge in edges:
        offset = store.committed_offset(name)
        if not store.has(name):
            with store.open_upload(name, offset) as upload:
                upload.write(data[offset:edge])
                if edge == len(data):
                    upload.finish()
    assert store.read_bytes(name) == data


def test_an_upload_that_changed_on_the_way_is_dropped(store: BlobStore) -> None:
    with store.open_upload(NAME, 0) as upload:
        upload.write(DATA[:-1] + b"x")
        with pytest.raises(CorruptBlobError, match="Send it again from the start"):
            upload.finish()
    assert files_of(store) == []
    assert store.committed_offset(NAME) == 0


def test_no_more_than_the_declared_size_is_written(store: BlobStore) -> None:
    with store.open_upload(NAME, 0) as upload:
        upload.write(DATA)
        with pytest.raises(WrongOffsetError, match="1 bytes at 1000 go on after the end"):
            upload.write(b"x")
        upload.finish()
    assert store.read_bytes(NAME) == DATA


def test_an_unfinished_upload_keeps_what_it_has_for_its_user_alone(store: BlobStore) -> None:
    with store.open_upload(NAME, 0) as upload:
        upload.write(DATA[:300])
        assert store.part(NAME).stat().st_mode & 0o777 == 0o600
        with pytest.raises(WrongOffsetError, match="ends at byte 300"):
            upload.finish()
    assert store.committed_offset(NAME) == 300
    for offset in (0, 299, 301, 1000):
        with pytest.raises(WrongOffsetError, match=f"up to byte 300, not {offset}"):
            store.open_upload(NAME, offset)


def test_a_part_longer_than_the_blob_is_dropped(store: BlobStore) -> None:
    with store.open_upload(BlobName(NAME.sha256, 2000), 0) as upload:
        upload.write(bytes(1500))
    assert store.committed_offset(NAME) == 0
    with store.open_upload(NAME, 0) as upload:
        upload.write(DATA)
        upload.finish()
    assert store.read_bytes(NAME) == DATA


def test_a_full_disk_is_a_sentence_and_what_fits_is_kept(store: BlobStore) -> None:
    with file_size_limit(500), store.open_upload(NAME, 0) as upload:
        upload.write(DATA[:300])
        with pytest.raises(StateError, match=r"File too large. Free space there"):
            upload.write(DATA[300:])
    assert store.committed_offset(NAME) == 500
    with store.open_upload(NAME, 500) as upload:
        upload.write(DATA[500:])
        upload.finish()
    assert store.read_bytes(NAME) == DATA


def test_an_upload_of_a_killed_process_can_be_continued(store: BlobStore) -> None:
    program = """
import sys
from pathlib import Path
from lipt.common.blobs.blob import BlobName
from lipt.common.blobs.store import BlobStore
upload = BlobStore(Path(sys.argv[1]), max_blob_bytes=10_000).open_upload(
    BlobName(sys.argv[2], 1000), 0
)
upload.write(b"0123456789" * 30)
print("ready", flush=True)
sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", program, store.root, NAME.sha256],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        with pytest.raises(UploadInProgressError, match=r"sent by someone else. Try again"):
            store.open_upload(NAME, 300)
        process.kill()
    with store.open_upload(NAME, 300) as upload:
        upload.write(DATA[300:])
        with pytest.raises(UploadInProgressError):
            store.open_upload(NAME, 1000)
        upload.finish()
    assert store.has(NAME)
