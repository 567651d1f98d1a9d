"""What a search needs, checked before the first trial and not in each of them."""

import importlib.util

from mirrored_keras.errors import SetupError, message

#: Module -> name of its package. KerasTuner imports the others in every trial, or in Bayesian search, undeclared.
NEEDED = {
    "keras_tuner": "keras-tuner",
    "tensorboard": "tensorboard",
    "scipy": "scipy",
    "sklearn": "scikit-learn",
}


def check() -> None:
    """Refuses to start without a package that a search needs.

    Raises:
        SetupError: One is not installed; the message has the command that installs it.
    """
    missing = [package for module, package in NEEDED.items() if importlib.util.find_spec(module) is None]
    if missing:
        raise SetupError(
            message(
                "A search needs keras-tuner, and what that imports without declaring it.",
                f"not installed: {', '.join(missing)}",
                f"pip install {' '.join(missing)}",
            )
        )
