"""Training on a Ray cluster: several workers that Ray starts, and starts again when one is lost.

Needs `pip install "mirrored-keras[ray]"`. The names are loaded at first use: Ray asks for Keras 2 where it unpacks the
training function, and nothing of this package may load Keras there before `ray_trainer` has taken that back.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mirrored_keras.ray.callbacks import ray_callbacks
    from mirrored_keras.ray.trainer import ray_trainer

__all__ = ["ray_callbacks", "ray_trainer"]


def __getattr__(name: str) -> Any:
    import importlib

    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{name.removeprefix('ray_')}"), name)
