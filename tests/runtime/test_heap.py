"""What a worker process has loaded is not searched for garbage again."""

from __future__ import annotations

import subprocess
import sys

FROZEN = """
import gc
import penstock.runtime.worker
from penstock.runtime import heap
assert gc.get_freeze_count() == 0
alive = len(gc.get_objects())
heap.settle()
assert gc.get_freeze_count() > alive * 0.8
assert len(gc.get_objects()) < alive * 0.2
"""


def test_settled_objects_are_left_out_of_collections() -> None:
    subprocess.run([sys.executable, "-c", FROZEN], check=True, timeout=60)
