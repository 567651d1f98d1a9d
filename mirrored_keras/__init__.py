"""N replicas train as one."""
from mirrored_keras.global_batch import GlobalBatch
from mirrored_keras.model import DistributedModel
