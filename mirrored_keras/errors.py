"""Errors that say who must act. Every message: the rule, what was received, what to do as code."""


class MirroredKerasError(Exception):
    """Base of all errors that this package raises on purpose."""


class SetupError(MirroredKerasError, RuntimeError):
    """The program is put together wrongly: scope, strategy, devices, versions, backend.

    Who must act: the author of the script, before training can start.
    """


class BatchError(MirroredKerasError, ValueError):
    """The data cannot be split into global batches: rank, rows, structure, batch size.

    Who must act: whoever makes the dataset.
    """


class CollectiveError(MirroredKerasError, RuntimeError):
    """Replicas cannot sum: the engine is wrong, or another worker has gone or does something else.

    Who must act: whoever chose `cross_device_ops`, or runs the workers.
    """


class CheckpointError(MirroredKerasError, ValueError):
    """A file cannot be written, read or restored as asked: damaged, foreign, unsafe, or of another model.

    Who must act: whoever keeps the files. Nothing has been changed, neither in a file nor in a model.
    """


class DataError(MirroredKerasError, ValueError):
    """Files of data cannot be written or read as asked: damaged, foreign, or with other features than declared.

    Who must act: whoever keeps the data. The message names the file, the record and the feature.
    """


class TuningError(MirroredKerasError, RuntimeError):
    """A hyperparameter search has no result, or cannot go on: its trials failed, or its worker processes ended.

    Who must act: the author of the hypermodel; the message shows the first traceback.
    """


def message(rule: str, received: str, fix: str) -> str:
    """Returns the one shape that all messages of this package have.

    Args:
        rule: What must hold, one or two sentences.
        received: `name=value` of what was found instead.
        fix: What to do, as code or a command.

    Returns:
        The three parts, each on its own line.

    Example:
        >>> print(message("`devices` must be positive.", "devices=0", "mirrored_strategy(2)"))
        `devices` must be positive.
        Received: devices=0
        What to do: mirrored_strategy(2)
    """
    return f"{rule}\nReceived: {received}\nWhat to do: {fix}"
