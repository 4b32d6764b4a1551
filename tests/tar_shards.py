"""Tar shards made by hand."""

import io
import tarfile
from collections.abc import Sequence
from pathlib import Path

Members = Sequence[tuple[str, bytes]]


def write_shard(path: Path, members: Members, *, format: int = tarfile.PAX_FORMAT) -> Path:  # noqa: A002
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=format) as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def samples(images: Sequence[bytes], labels: Sequence[int]) -> Members:
    return [
        member
        for number, (image, label) in enumerate(zip(images, labels, strict=True))
        for member in ((f"{number:06d}.cls", b"%d" % label), (f"{number:06d}.png", image))
    ]
