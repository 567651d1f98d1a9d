"""The other process: starts TensorFlow, makes a strategy, sums over its replicas, prints one line of JSON."""

import json
import os
import sys
from typing import Any

from mirrored_keras import requirements
from mirrored_keras.doctor.probing import MARK
from mirrored_keras.errors import MirroredKerasError


def examine(replicas: int) -> dict[str, Any]:
    """Tries the devices and collectives of this process, in which TensorFlow has not started yet.

    Args:
        replicas: How many; every GPU, or two CPU replicas, if 0.

    Returns:
        What `probing.findings_of` takes; an error of this package as the text `problem`.
    """
    import tensorflow as tf

    from mirrored_keras.replica import collective, gpu_choice, private
    from mirrored_keras.replica.devices import mirrored_strategy

    installed = gpu_choice.query_gpus() or []
    visible = gpu_choice.visible_gpus(os.environ, installed or None) or []
    answer: dict[str, Any] = {
        "installed": [str(gpu) for gpu in installed],
        "visible": [str(gpu) for gpu in visible],
        "free": [{"name": f"GPU {gpu.index}", "free": gpu.free} for gpu in visible],
        "gpus": [f"GPU:{index}" for index in range(len(tf.config.list_physical_devices("GPU")))],
        "cores": os.cpu_count(),
    }
    try:
        subject = "Keras backend"
        requirements.check()
        subject = "devices"
        strategy = mirrored_strategy(replicas or len(answer["gpus"]) or 2)
        answer["replicas"] = strategy.num_replicas_in_sync
        answer["devices"] = [":".join(name.rsplit(":", 2)[1:]) for name in strategy.extended.worker_devices]
        answer["engine"] = private.cross_device_ops_name(strategy)
        subject = "collectives"
        collective.check_collective(strategy)
        answer["sums"] = f"{2**strategy.num_replicas_in_sync - 1:,} from powers of 2, as they should"
    except MirroredKerasError as error:
        answer |= {"problem": str(error), "problem_subject": subject}
    answer["cpus"] = len(tf.config.list_logical_devices("CPU"))
    answer["inter_op_threads"] = tf.config.threading.get_inter_op_parallelism_threads()
    answer["memory_growth"] = [
        bool(tf.config.experimental.get_memory_growth(gpu)) for gpu in tf.config.get_visible_devices("GPU")
    ]
    return answer


if __name__ == "__main__":
    print(MARK + json.dumps(examine(int(sys.argv[1]))), flush=True)
