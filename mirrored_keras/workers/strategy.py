import tensorflow as tf
from mirrored_keras.replica import watchdog


def multi_worker_strategy(*, timeout_seconds: float = 600.0):
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    watchdog.set_limit(strategy, timeout_seconds)
    return strategy
