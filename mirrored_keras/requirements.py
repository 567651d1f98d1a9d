"""Refuses backends and versions that the package was not tested with, before anything is built on them."""

import os
from collections.abc import Mapping

from mirrored_keras.errors import SetupError, message

#: Oldest tested versions; `setup.cfg` names the same ones.
MINIMUM_TENSORFLOW = (2, 21)
MINIMUM_KERAS = (3, 12)


#: Newest versions that the tests ran with; newer ones are not refused.
NEWEST_TENSORFLOW = (2, 21)
NEWEST_KERAS = (3, 15)
#: Of Python and KerasTuner, oldest and newest.
TESTED_PYTHON = ((3, 10), (3, 13))
TESTED_KERAS_TUNER = ((1, 4), (1, 4))


def check() -> None:
    """Checks backend and versions; called before the first module that needs TensorFlow is imported.

    Raises:
        SetupError: Keras runs on another backend, legacy Keras is switched on, or a version is too old.
    """
    backend = os.environ.get("KERAS_BACKEND", "tensorflow")
    if backend == "tensorflow":
        import keras

        backend = keras.config.backend()
    check_variables({**os.environ, "KERAS_BACKEND": backend})
    import keras
    import tensorflow as tf

    check_version("tensorflow", tf.__version__, MINIMUM_TENSORFLOW)
    check_version("keras", keras.__version__, MINIMUM_KERAS)


def check_variables(environment: Mapping[str, str]) -> None:
    """Checks what environment variables say about Keras, importing nothing.

    Args:
        environment: `os.environ`, or what stands for it.

    Raises:
        SetupError: Keras runs on another backend, or legacy Keras is switched on.
    """
    backend = environment.get("KERAS_BACKEND", "tensorflow")
    if backend != "tensorflow":
        raise SetupError(
            message(
                "mirrored_keras needs Keras 3 on the TensorFlow backend.",
                f"KERAS_BACKEND={backend!r}",
                'os.environ["KERAS_BACKEND"] = "tensorflow"   # before the first `import keras`',
            )
        )
    legacy = environment.get("TF_USE_LEGACY_KERAS", "0")
    if legacy.lower() in ("1", "true"):
        raise SetupError(
            message(
                "mirrored_keras needs Keras 3; `tf.keras` is Keras 2 while TF_USE_LEGACY_KERAS is set.",
                f"TF_USE_LEGACY_KERAS={legacy!r}",
                'os.environ.pop("TF_USE_LEGACY_KERAS", None)   # before the first `import tensorflow`',
            )
        )


def check_version(package: str, version: str, minimum: tuple[int, int]) -> None:
    """Compares a version with the oldest tested one.

    Args:
        package: The package's name.
        version: What is installed.
        minimum: Major and minor number.

    Raises:
        SetupError: `version` is older.
    """
    if tuple(int(part) for part in version.split(".")[:2]) < minimum:
        oldest = ".".join(map(str, minimum))
        raise SetupError(
            message(
                f"mirrored_keras is tested with {package} {oldest} and newer, and relies on what came with it.",
                f"{package}={version}",
                f'pip install --upgrade "{package}>={oldest}"',
            )
        )
