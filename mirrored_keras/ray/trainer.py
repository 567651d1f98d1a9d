"""A `TensorflowTrainer` of Ray Train, ready to start workers again."""

import os
import pickle
from collections.abc import Callable, Mapping
from typing import Any

from mirrored_keras.errors import SetupError, message

#: Where the workers find the states of `Resume`; set in their processes alone.
FOLDER = "MIRRORED_KERAS_RAY_FOLDER"


def ray_trainer(
    train: Callable[[dict[str, Any]], Any],
    *,
    storage_path: str | os.PathLike[str],
    name: str,
    workers: int = 2,
    config: Mapping[str, Any] | None = None,
    max_failures: int = 3,
    **options: Any,
) -> Any:
    """Makes a `ray.train.tensorflow.TensorflowTrainer` that runs a function on every worker.

    The function makes its strategy by `mirrored_keras.workers.multi_worker_strategy()`, and gives `ray_callbacks()` to
    `fit`: then a group that has lost a worker, which Ray starts again as a whole, goes on in the middle of its epoch.

    Args:
        train: Takes `config`; runs on every worker.
        storage_path: A folder that all machines see. The files of the training are in its folder `name`.
        name: Of the training. With the same name and folder, a training that has ended goes on too.
        workers: How many.
        config: For `train`.
        max_failures: How often Ray starts the group again.
        **options: `keep`, checkpoints that Ray keeps (2); `use_gpu` and `resources_per_worker` for Ray's
            `ScalingConfig`.

    Returns:
        The trainer; `trainer.fit()` runs it, and returns Ray's `Result` with the last metrics and checkpoint.

    Raises:
        SetupError: Ray is not installed, `storage_path` is no folder of a file system, or an option is unknown.
    """
    try:
        from ray.train import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
        from ray.train.tensorflow import TensorflowTrainer
    except ImportError as error:
        raise SetupError(
            message("`mirrored_keras.ray` needs Ray Train.", str(error), 'pip install "mirrored-keras[ray]"')
        ) from error
    folder = os.fspath(storage_path)
    unknown = sorted(set(options) - {"keep", "use_gpu", "resources_per_worker"})
    if "://" in folder or unknown:
        raise SetupError(
            message(
                "`storage_path` is a folder that all machines see as files; options are `keep`, `use_gpu` and "
                "`resources_per_worker`.",
                f"storage_path={folder!r}, unknown options={unknown}",
                'ray_trainer(train, storage_path="/shared/runs", name="digits", workers=2)',
            )
        )
    folder = os.path.abspath(folder)
    resources = {key: options[key] for key in ("use_gpu", "resources_per_worker") if key in options}
    return TensorflowTrainer(
        OnEveryWorker(train, os.path.join(folder, name, "resume")),
        train_loop_config=dict(config or {}),
        scaling_config=ScalingConfig(num_workers=workers, **resources),
        run_config=RunConfig(
            name=name,
            storage_path=folder,
            failure_config=FailureConfig(max_failures=max_failures),
            checkpoint_config=CheckpointConfig(num_to_keep=options.get("keep", 2)),
        ),
    )


class OnEveryWorker:
    """The user's function, with what it needs to know in the environment; Ray sends it to the workers.

    Args:
        train: The function.
        folder: Of the states of `Resume`.
    """

    def __init__(self, train: Callable[[dict[str, Any]], Any], folder: str):
        self._train = train
        self._folder = folder

    def __call__(self, config: dict[str, Any]) -> Any:
        os.environ[FOLDER] = self._folder
        return self._train(config)

    def __reduce__(self) -> tuple[Any, ...]:
        from ray import cloudpickle

        return _unpacked, (cloudpickle.dumps(self._train), self._folder)


def _unpacked(train, folder):
    # Ray asks for Keras 2, which this package is not, before it unpacks a function whose module may import it
    os.environ.pop("TF_USE_LEGACY_KERAS", None)
    return OnEveryWorker(pickle.loads(train), folder)
