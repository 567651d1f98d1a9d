"""Several processes, or several machines, that train one model as one replica."""

from mirrored_keras.workers.strategy import multi_worker_strategy

__all__ = ["multi_worker_strategy"]
