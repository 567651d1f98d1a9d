"""How much of the large tables runs: a fixed part by default, everything with MIRRORED_KERAS_TESTS=all."""

import os
import zlib

EVERYTHING = os.environ.get("MIRRORED_KERAS_TESTS") == "all"


def is_one_in(count: int, name: str) -> bool:
    """Returns whether a name belongs to the part that always runs: one in `count`, the same ones every time."""
    return EVERYTHING or zlib.crc32(name.encode()) % count == 0
