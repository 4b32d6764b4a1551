from __future__ import annotations

from lipt.common.sizes import format_bytes


def test_sizes_have_decimal_units() -> None:
    sizes = (0, 999, 1000, 1_234_567, 5_000_000_000, 7_000_000_000_000)
    assert [format_bytes(size) for size in sizes] == [
        "0 B",
        "999 B",
        "1.0 kB",
        "1.2 MB",
        "5.0 GB",
        "7000.0 GB",
    ]
