"""Cases of the table on several workers against one replica; `test_features.py` has 2 workers, and 2 replicas each.

With MIRRORED_KERAS_ALL_WORKER_CASES=1: all cases on 2 and 3 workers and on 2 with 2 replicas, and some on 8.
"""

import os

import pytest

from workers import group

#: (workers, replicas per worker) -> names; without any, all of the table
NAMES: dict[tuple[int, int], tuple[str, ...]] = {
    (3, 1): (
        "two outputs, two steps per execution",
        "4 micro-batches, tokens-huber-lengths-mean-short-rows",
        "SGD accumulating 2, EMA overwritten",
    ),
}
if os.environ.get("MIRRORED_KERAS_ALL_WORKER_CASES"):
    NAMES = {(2, 1): (), (3, 1): (), (2, 2): (), (8, 1): ("Adam global_clipnorm", "SGD momentum")}


@pytest.mark.parametrize(("workers", "replicas"), list(NAMES), ids=lambda number: str(number))
def test_several_workers_are_one_replica(workers, replicas):
    names = NAMES[workers, replicas]
    ended = group.run(workers, "invariance_cases.py", replicas, *names, timeout=300 if names else 7200)
    for worker in ended:
        assert not [line for line in worker.lines if "error" in line], worker.lines
        assert len(worker.lines) >= len(names)
