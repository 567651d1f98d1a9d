"""What `fit`, `evaluate` and `predict` can be given on several workers; all of it in one life of a group."""

from workers import group


def test_two_workers():
    ended = group.run(2, "features.py", 1, timeout=600)
    for worker in ended:
        assert len(worker.lines) == 16
        assert not [line for line in worker.lines if "failed" in line], worker.lines


def test_two_workers_with_two_replicas():
    """Where a worker's first replica, or all of them, have no rows."""
    names = ("short_and_empty", "dropout")
    ended = group.run(2, "features.py", 2, *names, timeout=600)
    for worker in ended:
        assert len(worker.lines) == len(names)
