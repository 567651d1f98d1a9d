"""Cases of the table on 2 and 3 workers, and on 2 workers with 2 replicas each, against one replica."""

import os

import pytest

from workers import group

#: (workers, replicas per worker) -> names; all names of the table with MIRRORED_KERAS_ALL_WORKER_CASES=1
NAMES = {
    (2, 2): ("Adam global_clipnorm", "recurrent, masked"),
    (3, 1): (
        "two outputs, two steps per execution",
        "4 micro-batches, tokens-huber-lengths-mean-short-rows",
        "SGD accumulating 2, EMA overwritten",
        "run eagerly",
    ),
}


@pytest.mark.parametrize(("workers", "replicas"), list(NAMES), ids=lambda number: str(number))
def test_several_workers_are_one_replica(workers, replicas):
    several = os.environ.get("MIRRORED_KERAS_ALL_WORKER_CASES")
    names = () if several else NAMES[workers, replicas]
    ended = group.run(workers, "invariance_cases.py", replicas, *names, timeout=7200 if several else 300)
    for worker in ended:
        assert not [line for line in worker.lines if "error" in line], worker.lines
        assert len(worker.lines) >= len(names)
