"""Several processes, or several machines, that train one model as one replica."""

from mirrored_keras.workers.strategy import is_chief, multi_worker_strategy

__all__ = ["is_chief", "multi_worker_strategy"]
