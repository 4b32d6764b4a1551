from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ByteSize, Field

from docs.make.configuration import markdown_tables
from lipt.common.config.knobs import example_toml, option_help
from lipt.common.config.run_config import Precision


class Oven(BaseModel):
    """How the soup is
    kept warm.

    No part of the files.
    """

    watts: float = Field(default=0.5, gt=0.0, le=2.0, description="Power, theta*.")
    label: str = Field(default="on", max_length=80, description="Is `*on*`, or_off|broken.")


class Kitchen(BaseModel):
    cooks: int = Field(default=3, ge=1, le=10_000, description="How many cooks there are.")
    oven: Oven = Oven()
    spare: Oven = Field(default=Oven(), description="For when it breaks.")
    salt: Literal["sea", "rock"] = Field(default="sea", description="Kind of salt.")
    precision: Precision = Field(default=Precision.AUTO, description="Of the scales.")
    seed: int = Field(default=2**32, ge=0, lt=2**63, description="A pinch.")
    open_late: bool = Field(default=False, description="Whether it closes after midnight.")
    guests: tuple[str, ...] = Field(default=(), description="Who comes.")
    bell: Path | None = Field(default=None, description="To ring.", examples=["/dev/bell"])
    larder: ByteSize = Field(default=ByteSize(2**31), description="What fits in.")
    door: Path = Field(default_factory=Path.home, description="To shut.", examples=["/door"])
    owner: str = Field(description='Who "pays".', examples=['the "boss"'])


TOML = """\
# kitchen --config kitchen.toml
#
# All of it.

# How many cooks there are.
cooks = 3  # 1 to 10000

# Kind of salt.
salt = "sea"  # sea or rock

# Of the scales.
precision = "auto"  # auto, float32 or bfloat16

# A pinch.
seed = 4_294_967_296  # at least 0, below 2^63

# Whether it closes after midnight.
open_late = false

# Who comes.
guests = []

# To ring.
# bell = "/dev/bell"

# What fits in.
larder = "2GiB"

# To shut.
# door = "/door"

# Who "pays".
owner = "the \\"boss\\""

# How the soup is kept warm.
[oven]

# Power, theta*.
watts = 0.5  # above 0, at most 2

# Is `*on*`, or_off|broken.
label = "on"  # at most 80 characters

# For when it breaks.
[spare]

# Power, theta*.
watts = 0.5  # above 0, at most 2

# Is `*on*`, or_off|broken.
label = "on"  # at most 80 characters
"""


OVEN_TABLE = r"""
| setting | default | allowed | what it does |
|---|---|---|---|
| `watts` | `0.5` | above 0, at most 2 | Power, theta\*. |
| `label` | `"on"` | at most 80 characters | Is `*on*`, or\_off\|broken. |
""".strip()


def test_example_has_every_setting_with_its_description_its_default_and_what_is_allowed() -> None:
    assert example_toml(Kitchen, "kitchen --config kitchen.toml\n\nAll of it.") == TOML


def test_tables_escape_what_markdown_takes_for_its_own_outside_of_code() -> None:
    assert markdown_tables(Kitchen, level=3).split("\n\n")[1:4] == [
        "### `[oven]`",
        "How the soup is kept warm.",
        OVEN_TABLE,
    ]


def test_flag_says_what_its_setting_does_allows_and_defaults_to() -> None:
    names = ("cooks", "precision", "open_late", "spare.watts")
    assert [option_help(Kitchen, name) for name in names] == [
        "How many cooks there are. [1 to 10000; default: 3]",
        "Of the scales. [auto, float32 or bfloat16; default: auto]",
        "Whether it closes after midnight.",
        "Power, theta*. [above 0, at most 2; default: 0.5]",
    ]
    text = option_help(Kitchen, "cooks", note="Repeatable.", show_default=False)
    assert text == "How many cooks there are. Repeatable. [1 to 10000]"
