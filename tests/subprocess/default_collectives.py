"""Run by `test_default_collectives.py`: a few cases on R replicas, TensorFlow's own collectives.

python default_collectives.py R
"""

import sys

from devices import cpu_names, make_cpu_devices

REPLICAS = int(sys.argv[1])
make_cpu_devices(REPLICAS)

import tensorflow as tf

from invariance.case import train
from invariance.cases import ALL_CASES
from invariance.compare import assert_same
from mirrored_keras import DistributedModel

NAMES = (
    "SGD momentum",
    "Lion",
    "Adam global_clipnorm",
    "repeated ids, Adam",  # gathers, where dense gradients are summed
    "two outputs",
    "list of outputs, list of targets",
    "add_loss of a mean",
    "subclassed, odd",
)


def main():
    strategy = tf.distribute.MirroredStrategy(cpu_names(REPLICAS))
    cases = {case.name: case for case in ALL_CASES}
    for name in NAMES:
        assert_same(
            cases[name],
            train(cases[name], DistributedModel),
            train(cases[name], DistributedModel, strategy),
        )
        print("same:", name, flush=True)


if __name__ == "__main__":
    main()
