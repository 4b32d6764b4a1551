"""Command: record the golden digests of this machine, `make golden`."""

import argparse
import tempfile
from pathlib import Path

from lipt.common.terminal import print_line
from tests.golden import record
from tests.golden.datasets import cifar10_folder
from tests.golden.machine import describe_machine, machine_key
from tests.golden.pipeline import CIFAR10, NAMES, parts


def main() -> None:
    parser = argparse.ArgumentParser(description="Record the golden digests of this machine.")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(NAMES)}")
    wanted = parser.parse_args().parts or NAMES
    if unknown := set(wanted) - set(NAMES):
        parser.error(f"there is no part {min(unknown)!r}. Choose of {', '.join(NAMES)}.")
    cifar10 = cifar10_folder()
    there = (cifar10 / "train.parquet").is_file()
    if not there and CIFAR10 in wanted:
        print_line(f"{CIFAR10}: not recorded, as there is no {cifar10 / 'train.parquet'}")
    known = parts(cifar10 if there else None)
    computed = {}
    for name in wanted:
        if name in known:
            print_line(f"{name}: computing")
            with tempfile.TemporaryDirectory(prefix="lipt-golden-") as folder:
                computed[name] = known[name](Path(folder))
    key = machine_key()
    record.save(record.update(record.load(), key, describe_machine(), computed))
    print_line(f"{record.FILE}: {key}; `git diff` shows what has changed")


if __name__ == "__main__":
    main()
