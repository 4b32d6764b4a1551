import json
import os
import tarfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lipt.common.errors import ConfigError, DataError
from lipt.data.loading import open_dataset
from lipt.data.sources.address import Address
from lipt.data.sources.rows import EncodedRows
from lipt.data.sources.webdataset import expand_braces, webdataset_rows
from tests.properties import at_most
from tests.tar_shards import Members, samples, write_shard

Encode = Callable[..., bytes]
SUPPRESSED = (HealthCheck.function_scoped_fixture, HealthCheck.too_slow)


def rows_of(path: object) -> EncodedRows:
    return webdataset_rows(Address.parse(f"webdataset:{path}", ("image", "label")))


def refused(path: Path, members: Members, words: str, options: str = "") -> None:
    write_shard(path, members)
    with pytest.raises(DataError, match=words):
        rows_of(f"{path}{options}")


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("s-{3..1}.tar", r"\{3\.\.1\} stands for no shards\. .*, the lower number first"),
        ("s-{0..9999999}.tar", r"stands for no shards\. .* of at most 1000000 such as"),
        ("s-{0}.tar", r"\{0\} stands for no shards\. Write a list such as \{a,b\}, or a range"),
        ("s-{0..1.tar", r"a brace is left open in s-\{0\.\.1\.tar"),
    ],
)
def test_shard_patterns_expand_ranges_and_lists_or_are_refused(pattern: str, words: str) -> None:
    names = ["a/08.tar", "a/09.tar", "a/10.tar", "b/08.tar", "b/09.tar", "b/10.tar"]
    assert list(expand_braces("x", "{a,b}/{08..10}.tar")) == names
    with pytest.raises(ConfigError, match=words):
        rows_of(pattern)


@pytest.mark.parametrize("format_", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_samples_have_long_names_and_folders(tmp_path: Path, encode: Encode, format_: int) -> None:
    long = f"{'folder.v1/' * 30}Zürich-{'x' * 200}"
    members = [
        (f"{long}/1.cls", b"0"),
        (f"{long}/1.JPG", encode(1)),
        ("other/1.cls", b"1\n"),
        ("other/1.JPG", encode(2)),
    ]
    rows = rows_of(write_shard(tmp_path / "a.tar", members, format=format_))
    assert rows.labels_N.tolist() == [0, 1]
    shown = f"{long}/1.JPG".encode()[-200:].decode()
    assert rows.where(0) == f"{tmp_path / 'a.tar'}, member {shown}"


def test_class_names_are_read_from_a_file(tmp_path: Path, encode: Encode) -> None:
    for name in ("a", "b"):
        write_shard(tmp_path / f"{name}.tar", samples([encode(1)], [1]))
    (tmp_path / "classes.txt").write_text("ant\nbee\ncow\n")
    (tmp_path / "my-classes.txt").write_text("dog\n")
    for path in (tmp_path, tmp_path / "b.tar", tmp_path / "{a,b}.tar"):
        data = open_dataset(f"webdataset:{path}")
        assert data.class_names == ("ant", "bee", "cow")
    (tmp_path / "classes.txt").write_text("ant\nbee\n")
    assert data.has_changed()
    (tmp_path / "classes.txt").write_text("ant\n")
    with pytest.raises(DataError, match=r"row 0 has the label 1, .* its 1 classes"):
        open_dataset(f"webdataset:{tmp_path}")
    (tmp_path / "classes.txt").write_bytes(b"\xff")
    with pytest.raises(DataError, match=r"the classes in .* Name a text file"):
        open_dataset(f"webdataset:{tmp_path}")


def test_a_sample_with_several_images_needs_a_name(tmp_path: Path, encode: Encode) -> None:
    members = [("0.cls", b"1"), ("0.seg.png", encode(1)), ("0.rgb.png", encode(2))]
    words = r"a\.tar: the sample '0', with \.cls, \.seg\.png, \.rgb\.png, has 2 images\. .* image="
    refused(tmp_path / "a.tar", members, words)
    assert rows_of(f"{tmp_path}?image=rgb.png").raw(0) == encode(2)
    refused(tmp_path / "a.tar", members, r"has 0 members called \.jpg", "?image=jpg")


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ([("0.cls", b"1")], r"the sample '0', with \.cls, has 0 images\. Give"),
        ([("d/0.png", b"")], r"the sample 'd/0', with \.png, has no label: there is no \.cls or"),
        ([("0.png", b""), ("0.cls", b"cat")], r"'0\.cls' holds b'cat' in place of a class numb"),
        *(
            ([("0.png", b""), ("0.json", label)], r"the member '0\.json' holds .*label=KEY")
            for label in (b"{", b"[" * 10**5, b"[]", b'{"a": 1}', b'{"label": 1e3}', b" " * 2**21)
        ),
        ([("0.png", b""), ("0.png", b"")], r"the member '0\.png' is there twice, or stands"),
        (
            [("0.png", b""), ("0.cls", b"1"), ("1.png", b""), ("1.cls", b"1"), ("0.txt", b"")],
            r"the member '0\.txt' is there twice, or stands apart from others of its sample",
        ),
    ],
)
def test_an_unusable_sample_is_named(tmp_path: Path, members: Members, words: str) -> None:
    refused(tmp_path / "a.tar", members, rf"{tmp_path / 'a.tar'}: .*{words}")


def shard_of_three(path: Path) -> bytes:
    contents = [bytes([i]) * 700 for i in range(3)]
    return write_shard(path, samples(contents, [0, 1, 0])).read_bytes()


@pytest.mark.parametrize("end", [*range(0, 3 * 2048, 700), 3 * 2560 - 1, 3 * 2560])
def test_a_shard_truncated_anywhere_is_refused(tmp_path: Path, end: int) -> None:
    # A sample is two headers of 512 bytes, a label in 512 and an image in 1024: three take 7680.
    path = tmp_path / "a.tar"
    path.write_bytes(shard_of_three(path)[:end])
    with pytest.raises(DataError, match=rf"^{path}: it is cut off or damaged .* fetch it again"):
        rows_of(path)


def test_garbage_between_members_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    content = bytearray(shard_of_three(path))
    content[2560 : 2560 + 512] = b"x" * 512
    path.write_bytes(content)
    words = r"damaged behind the member '000000\.png': at byte 2560 there is no header"
    with pytest.raises(DataError, match=words):
        rows_of(path)


@pytest.mark.parametrize("size", [b"77777777777\0", b"\xff" * 12, b"\x80" + b"\x7f" * 11])
def test_a_size_beyond_the_shard_s_end_is_refused(tmp_path: Path, size: bytes) -> None:
    path = tmp_path / "a.tar"
    content = bytearray(shard_of_three(path))
    header = content[1024:1536]
    header[124:136] = size
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    content[1024:1536] = header
    path.write_bytes(content)
    with pytest.raises(DataError, match=rf"^{path}.* Make the shard again"):
        rows_of(path)


def test_a_name_of_gigabytes_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    info = tarfile.TarInfo("././@LongLink")
    info.type, info.size = tarfile.GNUTYPE_LONGNAME, 2**33
    path.write_bytes(info.tobuf(tarfile.GNU_FORMAT) + bytes(4096))
    os.truncate(path, 2**34)
    with pytest.raises(DataError, match=r"a header at byte \d+ claims \d+ bytes of names"):
        rows_of(path)


@settings(max_examples=at_most(60), suppress_health_check=SUPPRESSED)
@given(data=st.data())
def test_random_bytes_are_refused(tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "a.tar"
    content = bytearray(shard_of_three(path))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content) - 1))
        part = data.draw(st.binary(min_size=1, max_size=40))
        content[at : at + len(part)] = part
    path.write_bytes(content)
    with suppress(DataError):
        rows = rows_of(path)
        assert all(len(rows.raw(row)) <= len(content) for row in range(len(rows)))


def test_other_files_are_not_shards(tmp_path: Path) -> None:
    for path in (tmp_path / "absent", tmp_path):
        with pytest.raises(DataError, match=r"is no file, and there is no \*\.tar in it\. Name a"):
            rows_of(path)
    with tarfile.open(tmp_path / "a.tar", "w:gz") as archive:
        archive.addfile(tarfile.TarInfo("0.png"))
    with pytest.raises(DataError, match=r"A compressed one has to be unpacked to a plain \.tar"):
        rows_of(tmp_path)
    write_shard(tmp_path / "a.tar", [])
    with pytest.raises(DataError, match=r"has no samples"):
        rows_of(tmp_path)
    with pytest.raises(DataError, match=r"s-1\.tar: it is cut off .*No such file"):
        rows_of(tmp_path / "s-{1..2}.tar")
    with pytest.raises(ConfigError, match=r"there is no option 'labels'\. Did you mean label\?"):
        rows_of(f"{tmp_path}?labels=a")


CONTENTS = st.binary(max_size=1500)


@st.composite
def shards(draw: st.DrawFn) -> list[Members]:
    made: list[Members] = []
    for _ in range(draw(st.integers(1, 3))):
        members: list[tuple[str, bytes]] = []
        names = st.lists(
            st.text("abcz/é", min_size=1, max_size=12).filter(lambda text: text.strip("/") == text),
            unique=True,
            max_size=5,
        )
        for name in draw(names):
            of_sample = [
                (f"{name}.cls", b"%d" % draw(st.integers(0, 5))),
                (f"{name}.{draw(st.sampled_from(['png', 'JPG', 'webp']))}", draw(CONTENTS)),
                *([(f"{name}.txt", draw(CONTENTS))] if draw(st.booleans()) else []),
            ]
            members += draw(st.permutations(of_sample))
        made.append(members)
    return made


def extracted(paths: list[Path]) -> Iterator[tuple[int, bytes]]:
    """The slow way: every member, by the standard library."""
    for path in paths:
        with tarfile.open(path) as archive:
            contents: dict[str, dict[str, bytes]] = {}
            for info in archive:
                name, _, extension = info.name.rpartition(".")
                file = archive.extractfile(info)
                assert file is not None
                contents.setdefault(name, {})[extension] = file.read()
        for members in contents.values():
            image = next(c for extension, c in members.items() if extension not in {"cls", "txt"})
            yield int(members["cls"]), image


@settings(max_examples=at_most(40), suppress_health_check=SUPPRESSED)
@given(made=shards(), format_=st.sampled_from([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]))
def test_members_equal_those_of_tarfile(
    tmp_path_factory: pytest.TempPathFactory, made: list[Members], format_: int
) -> None:
    folder = tmp_path_factory.mktemp("shards")
    paths = [
        write_shard(folder / f"{number}.tar", members, format=format_)
        for number, members in enumerate(made)
    ]
    expected = list(extracted(paths))
    if not expected:
        return
    rows = rows_of(folder)
    assert rows.labels_N.tolist() == [label for label, _ in expected]
    backwards = range(len(rows) - 1, -1, -1)
    assert [rows.raw(row) for row in backwards] == [image for _, image in expected[::-1]]


def test_only_images_are_read_and_a_cached_index_needs_no_shard(
    tmp_path: Path, fetched: list[tuple[str, int, int]], indexes: Path
) -> None:
    images = [bytes([i]) * 100_000 for i in range(20)]
    path = write_shard(tmp_path / "a.tar", samples(images, [0, 1] * 10))
    rows = rows_of(path)
    # 16 KiB for each image, at most two more for the file's ends; of 2 MB.
    assert 0 < sum(end - start for _, start, end in fetched) <= (20 + 2) * 2**14
    fetched.clear()
    assert rows.raw(2) == images[2]
    # Each sample before it takes 1024 + 512 and 100352 bytes; then its label and two headers.
    start = 2 * (1536 + 100_352) + 1536
    assert fetched == [(str(path), start, start + 100_000)]
    assert len(list(indexes.iterdir())) == 1
    fetched.clear()
    again = rows_of(path)
    assert fetched == []
    assert torch.equal(again.labels_N, rows.labels_N)
    assert (again.raw(1), again.where(1)) == (images[1], rows.where(1))


def test_a_shard_truncated_later_names_its_member(tmp_path: Path, encode: Encode) -> None:
    path = write_shard(tmp_path / "a.tar", samples([encode(1), encode(2)], [0, 1]))
    rows_of(path)
    rows = rows_of(path)  # by the index that was kept: nothing was read
    os.truncate(path, path.stat().st_size // 4)
    with pytest.raises(DataError, match=r"image 1 of web.*member 000001\.png\) .*ends \d+ byt"):
        rows.raw(1)


def test_json_labels_are_numbers_or_names(tmp_path: Path, encode: Encode) -> None:
    def members(*labels: object) -> Members:
        made: list[tuple[str, bytes]] = []
        for number, label in enumerate(labels):
            described = json.dumps({"label": 7, "species": label}).encode()
            made += [(f"{number}.png", encode(number)), (f"{number}.json", described)]
        return made

    write_shard(tmp_path / "a.tar", members("dog", "cat", "dog"))
    rows = rows_of(f"{tmp_path}?label=species")
    assert (rows.names, rows.labels_N.tolist()) == (("cat", "dog"), [1, 0, 1])
    assert rows_of(tmp_path).labels_N.tolist() == [7, 7, 7]
    write_shard(tmp_path / "b.tar", members(2, 0))
    with pytest.raises(DataError, match=r"the label of .* is a class's name, and that of .*number"):
        rows_of(f"{tmp_path}?label=species")


@pytest.mark.parametrize(
    ("kind", "pax_headers"),
    [
        (tarfile.SYMTYPE, {}),
        (tarfile.LNKTYPE, {}),
        (tarfile.FIFOTYPE, {}),
        (tarfile.REGTYPE, {"GNU.sparse.map": "0,0", "GNU.sparse.size": "4096"}),
    ],
)
def test_links_devices_and_sparse_files_are_not_images(
    tmp_path: Path, kind: bytes, pax_headers: dict[str, str]
) -> None:
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as archive:
        archive.addfile(tarfile.TarInfo("0.cls"))
        info = tarfile.TarInfo("0.png")
        info.type, info.linkname, info.pax_headers = kind, "x.png", pax_headers
        archive.addfile(info)
    with pytest.raises(DataError, match=r"with \.cls, has 0 images\. Give .* and no link"):
        rows_of(path)
