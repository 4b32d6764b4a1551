import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torchvision.datasets import ImageFolder

from lipt.common.errors import DataError
from lipt.data.loading import decode_all, open_data, open_dataset
from lipt.data.sources.address import Address
from lipt.data.sources.folders import imagefolder_rows
from lipt.data.sources.pairs import open_pairs
from tests.data.columns import write_folder

Encode = Callable[..., bytes]


def rows_of(folder: Path) -> tuple[tuple[str, ...], list[str], str]:
    rows = imagefolder_rows(Address.parse(f"imagefolder:{folder}"))
    files = [os.path.relpath(rows.where(row), folder) for row in range(len(rows))]
    return rows.class_names, files, rows.note


def test_other_files_are_counted_by_suffix(
    tmp_path: Path, encode: Encode, caplog: pytest.LogCaptureFixture
) -> None:
    image = encode()
    files = {f"cat/{number}.gif": b"" for number in range(85)}
    names = ("cat/a.PNG", "cat/deep/er/b.jpeg", "dog/c.WebP")
    write_folder(tmp_path, dict.fromkeys(names, image) | files | {"dog/d.heic": b""})
    assert rows_of(tmp_path) == (("cat", "dog"), list(names), "ignored 86 files: 85 .gif, 1 .heic")
    opened = open_data(f"imagefolder:{tmp_path}")
    assert opened.note.startswith("ignored 86 files: 85 .gif, 1 .heic")
    assert "ignored 86 files: 85 .gif, 1 .heic" in caplog.text
    assert decode_all(f"imagefolder:{tmp_path}").note == "ignored 86 files: 85 .gif, 1 .heic"


def test_hidden_directories_and_files_are_no_classes_and_no_images(
    tmp_path: Path, encode: Encode
) -> None:
    hidden = (".ipynb_checkpoints/a.png", "__MACOSX/a.png", "@eaDir/a.png", "cat/._a.png")
    nested = ("cat/.ipynb_checkpoints/a-checkpoint.png", "dog/Thumbs.db", "dog/.DS_Store")
    write_folder(tmp_path, dict.fromkeys(("cat/a.png", "dog/a.png", *hidden, *nested), encode()))
    note = "ignored the hidden directories .ipynb_checkpoints, @eaDir, __MACOSX"
    assert rows_of(tmp_path) == (("cat", "dog"), ["cat/a.png", "dog/a.png"], note)


def test_without_hidden_ones_the_order_is_torchvisions(tmp_path: Path, encode: Encode) -> None:
    names = ("b/2.png", "b/10.png", "b/x/0.png", "B/1.JPG", "a/z.tif", "b/A.png", "b/C.JPEG")
    write_folder(tmp_path, dict.fromkeys(names, encode()))
    (tmp_path / "a" / "linked").symlink_to(tmp_path / "B")
    classes, files, note = rows_of(tmp_path)
    theirs = ImageFolder(tmp_path)
    assert (list(classes), note) == (theirs.classes, "")
    assert files == [os.path.relpath(file, tmp_path) for file, _ in theirs.samples]
    assert open_dataset(f"imagefolder:{tmp_path}").labels_N.tolist() == theirs.targets


def test_broken_images_and_empty_classes_are_listed_together(
    tmp_path: Path, encode: Encode
) -> None:
    image = encode()
    broken = {
        "cat/empty.png": b"",
        "cat/short.jpg": encode(kind="JPEG")[:-20],
        "dog/text.png": b"x",
    }
    write_folder(tmp_path, {"cat/a.png": image, "dog/a.png": image} | broken)
    (tmp_path / "emu").mkdir()
    write_folder(tmp_path, {"fox/notes.txt": b""})
    for budget in (0, 2**30):
        with pytest.raises(DataError) as caught:
            open_dataset(f"imagefolder:{tmp_path}", memory_budget_bytes=budget, max_corrupt=9)
        first, *lines = str(caught.value).split("\n")
        assert first.startswith(
            f"3 of 5 images of imagefolder:{tmp_path} cannot be used and 2 of 4 classes of "
        )
        assert lines[:2] == [f"no image in {tmp_path / name}" for name in ("emu", "fox")]
        assert [line.partition(")")[0].rpartition("/")[2] for line in lines[2:]] == [
            Path(name).name for name in broken
        ]
    found = decode_all(f"imagefolder:{tmp_path}")
    assert found.empty_folders == (str(tmp_path / "emu"), str(tmp_path / "fox"))
    assert len(found.unusable) == 3
    assert found.unusable[0].problem == "it is not a whole image: the file is empty"


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (("a.png", "b.png"), "no directory, and 2 images without a class beside them"),
        (("cat/a.gif", "cat/b.gif"), r"no image in its 1 directories \(ignored 2 files: 2 .gif\)"),
        (("train/cat/a.png", "test/cat/a.png"), r"of test, train, .* imagefolder:.*/train$"),
        (("Valid/cat/a.png", "Test/dog/a.png"), r"of Test, Valid, .* imagefolder:.*/Test$"),
        (("pets/cat/a.png", "pets/dog/a.png"), r"of pets, which are no .* imagefolder:.*/pets$"),
    ],
)
def test_a_layout_without_classes_is_refused_with_what_works(
    tmp_path: Path, encode: Encode, names: tuple[str, ...], words: str
) -> None:
    write_folder(tmp_path, dict.fromkeys(names, encode()))
    with pytest.raises(DataError, match=words):
        open_dataset(f"imagefolder:{tmp_path}")


def test_images_beside_the_classes_are_counted(tmp_path: Path, encode: Encode) -> None:
    write_folder(tmp_path, dict.fromkeys(("a.png", "train/a.png", "test/b.png"), encode()))
    note = "ignored 1 image beside the directories of the classes"
    # Named as parts, but with images of their own: these are classes.
    assert rows_of(tmp_path) == (("test", "train"), ["test/b.png", "train/a.png"], note)


def test_links_in_a_loop_end_and_others_are_followed_once(tmp_path: Path, encode: Encode) -> None:
    pets = write_folder(tmp_path / "pets", dict.fromkeys(("cat/a.png", "dog/a.png"), encode()))
    more = write_folder(tmp_path / "more", {"9.png": encode()})
    links = {"self": pets, "loop": Path("loop"), "cat/up": pets, "cat/same": pets / "cat"}
    links |= {"dog/broken": tmp_path / "none", "cat/more": more, "cat/more again": more}
    for name, target in links.items():
        (pets / name).symlink_to(target)
    assert rows_of(pets)[:2] == (("cat", "dog"), ["cat/a.png", "cat/more/9.png", "dog/a.png"])


def test_names_that_are_not_utf8_are_escaped_once(tmp_path: Path, encode: Encode) -> None:
    folder = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9")
    write_folder(Path(folder), dict.fromkeys(("caf\udce9/\udce9.png", "dog/a.png"), encode()))
    opened = open_dataset(f"imagefolder:{folder}")
    assert opened.class_names == ("caf\\udce9", "dog")
    assert opened.source == f"imagefolder:{tmp_path}/caf\\udce9"
    # Its files are still there.
    assert torch.equal(opened.images(torch.tensor([0])), opened.images(torch.tensor([1])))
    assert opened.source_rows.raw(0) == encode()


def test_pairs_leave_out_the_same_and_tell_it(tmp_path: Path, encode: Encode) -> None:
    files = ("a.png", "a.txt", "b.heic", "b.txt", ".ipynb_checkpoints/a.png", "._a.png")
    write_folder(tmp_path, dict.fromkeys(files, encode()))
    found = open_pairs(f"pairs:{tmp_path}")
    assert (list(found.images), found.note) == ([f"{tmp_path}/a.png"], "ignored 1 file: 1 .heic")
