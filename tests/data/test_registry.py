import pytest

from lipt.common.errors import ConfigError, UnknownNameError
from lipt.common.imports import SCHEMES
from lipt.data.loading import open_dataset
from lipt.data.registry import known_sources, name_with_csv_options


def test_unknown_source_is_refused_with_the_list_of_sources() -> None:
    for source in ("", "MNIST:", "s3://bucket/x"):
        with pytest.raises(UnknownNameError) as caught:
            open_dataset(source)
        assert str(caught.value) == (
            f"there is no data set {source!r}. There are: {', '.join(known_sources())}."
        )
    with_path = {source.partition(":")[0] for source in known_sources() if ":" in source}
    assert with_path - {"package.module"} <= SCHEMES | {"cifar10-test", "cifar100-test"}


@pytest.mark.parametrize(
    ("source", "image_size", "words"),
    [
        ("digits:x", None, r"digits takes no path, not 'x'\. Write digits\."),
        ("cifar10", None, "Write cifar10:PATH"),
        ("parquet:", None, "Write parquet:PATH"),
        ("digits", 5000, r"the image size 5000 is outside 1\.\.4096"),
    ],
)
def test_wrong_paths_and_sizes_are_refused(source: str, image_size: int | None, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        open_dataset(source, image_size=image_size)


@pytest.mark.parametrize(
    ("source", "meant"),
    [
        ("data.csv", r"csv:data\.csv\?label=COLUMN\?"),
        ("/x/train.parquet", r"parquet:/x/train\.parquet\?label=COLUMN\?"),
        ("train.safetensors", r"features:train\.safetensors\?"),
        (".", r"imagefolder:\.\?"),
        ("digit", "digits"),
        ("cifar-10:/data", "cifar10"),
    ],
)
def test_a_path_or_misspelt_source_is_refused_with_the_right_name(source: str, meant: str) -> None:
    with pytest.raises(UnknownNameError, match=f"Did you mean {meant}"):
        open_dataset(source)


def test_options_are_added_to_the_name_of_a_csv_file() -> None:
    assert name_with_csv_options("t.csv", delimiter="") == "t.csv"
    found = name_with_csv_options("t.csv", delimiter=";", encoding="latin-1", decimal=",")
    assert found == "csv:t.csv?delimiter=%3B&encoding=latin-1&decimal=%2C"
    found = name_with_csv_options("csv:t?label=a", delimiter="\t")
    assert found == "csv:t?label=a&delimiter=%09"
    with pytest.raises(ConfigError, match="delimiter=; is an option of CSV files, and 'digits'"):
        name_with_csv_options("digits", delimiter=";")
