"""The options of `tfrecord_dataset` that can be wrong by themselves, and a worker's share of a batch."""

from typing import Any, NamedTuple

from mirrored_keras.data.batch_sizes import check_rows
from mirrored_keras.errors import BatchError, message


class Share(NamedTuple):
    """What a worker reads: of all rows each `workers`-th from `worker` on, in batches of `rows`."""

    worker: int
    workers: int
    rows: int


def share_of(global_batch_size: int, shard: Any, input_context: Any) -> Share:
    """Returns the share of a worker.

    Args:
        global_batch_size: Rows of a batch of all workers.
        shard: `(i, n)` or `None`.
        input_context: A `tf.distribute.InputContext` or `None`.

    Raises:
        BatchError: Both are given, one cannot be, or the batch does not divide evenly.
    """
    if shard is not None and input_context is not None:
        raise BatchError(message("A share is named once.", f"shard={shard!r} and input_context", "one of the two"))
    if input_context is not None:
        worker, workers = input_context.input_pipeline_id, input_context.num_input_pipelines
        parts = input_context.num_replicas_in_sync
    else:
        worker, workers = (0, 1) if shard is None else _checked_shard(shard)
        parts = workers
    if global_batch_size % parts:
        raise BatchError(
            message(
                "Workers and replicas that read by themselves need equal parts of the global batch.",
                f"global_batch_size={global_batch_size}, parts={parts}",
                f"global_batch_size={-(-global_batch_size // parts) * parts}, or pass the whole dataset to `fit`",
            )
        )
    return Share(worker, workers, global_batch_size // parts)


def _checked_shard(shard):
    whole = isinstance(shard, (tuple, list)) and len(shard) == 2 and all(type(number) is int for number in shard)
    if not whole or not 0 <= shard[0] < shard[1]:
        raise BatchError(message("`shard` is `(i, n)`: worker i of n, from 0 on.", f"shard={shard!r}", "shard=(0, 2)"))
    return shard


def check_arguments(**options: Any) -> None:
    """Refuses options that cannot be.

    Args:
        **options: Those of `tfrecord_dataset`.

    Raises:
        BatchError: One of them is wrong.
    """
    check_rows("global_batch_size", options["global_batch_size"])
    allowed = {
        "shuffle": isinstance(options["shuffle"], bool) or _is_positive(options["shuffle"]),
        "repeat": isinstance(options["repeat"], bool) or _is_positive(options["repeat"]),
        "seed": type(options["seed"]) is int,
        "tail": options["tail"] in ("keep", "drop", "pad"),
        "errors": options["errors"] in ("raise", "skip"),
        "parallel_calls": options["parallel_calls"] is None or _is_positive(options["parallel_calls"]),
    }
    wrong = [name for name, is_allowed in allowed.items() if not is_allowed]
    if wrong:
        raise BatchError(
            message(
                "`shuffle` and `repeat` are booleans or positive integers, `seed` is an integer, `parallel_calls` a "
                'positive one, `tail` is "keep", "drop" or "pad", `errors` is "raise" or "skip".',
                ", ".join(f"{name}={options[name]!r}" for name in wrong),
                'tfrecord_dataset(files, global_batch_size=64, shuffle=True, seed=1, tail="keep")',
            )
        )


def _is_positive(value):
    return type(value) is int and value > 0
