"""Training on a Ray cluster: several workers that Ray starts, and starts again when one is lost.

Needs `pip install "mirrored-keras[ray]"`.
"""

from mirrored_keras.ray.callbacks import ray_callbacks
from mirrored_keras.ray.trainer import ray_trainer

__all__ = ["ray_callbacks", "ray_trainer"]
