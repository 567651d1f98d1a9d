"""Real handwritten digits that ship with the package, read from TFRecord shards.

The pictures are the 1,797 digits of 8 x 8 pixels known from scikit-learn's `load_digits`; `digits/SOURCE.txt`
names their origin and licence. A record holds the 64 pixels as bytes of value 0 to 16 (`image`), the digit 0 to 9
(`label`) and the row of the picture in the source (`source_row`). Every fifth picture of each digit is held out.

Shapes: G is the number of rows in the global batch; the last batch may be shorter.
"""

from __future__ import annotations

import pathlib
from typing import TYPE_CHECKING, Literal

from mirrored_keras.errors import BatchError, message

if TYPE_CHECKING:
    import tensorflow as tf

DIRECTORY = pathlib.Path(__file__).parent / "digits"
ROWS = {"train": 1433, "test": 364}
IMAGE_SHAPE = (8, 8, 1)
# The largest value of a pixel in the source: pixels count the inked dots in a block of 4 x 4.
WHITE = 16


def digits_dataset(
    split: Literal["train", "test"],
    *,
    global_batch_size: int,
    shuffle_seed: int | None = None,
) -> tf.data.Dataset:
    """Reads the training or the held-out digits as global batches.

    Every pass over the dataset gives the same batches in the same order, also when Keras opens an iterator more on
    the way, so runs with different numbers of replicas can be compared. For another order make a dataset with another
    seed. No row is dropped: the last batch has `rows % global_batch_size` rows where that does not divide evenly.

    Args:
        split: `"train"` (1,433 rows) or `"test"` (364 rows).
        global_batch_size: Rows in a batch, over all replicas together.
        shuffle_seed: Seed of the order of the rows. `None` keeps the order of the source. Defaults to `None`.

    Returns:
        A `tf.data.Dataset` of known length that yields `(image, label)`: `image` is float32 in 0 to 1 of shape
        `(G, 8, 8, 1)`, `label` is int32 of shape `(G,)`.

    Raises:
        BatchError: `split` is no part of the digits, or `global_batch_size` is not a positive integer.

    Example:
        >>> from mirrored_keras.data import digits_dataset
        >>> train = digits_dataset("train", global_batch_size=100, shuffle_seed=1)
        >>> int(train.cardinality())
        15
    """
    _check(split, global_batch_size)
    import tensorflow as tf

    # One shard after the other: parallel reads would make the order depend on timing.
    shards = sorted(str(path) for path in DIRECTORY.glob(f"{split}-*.tfrecord"))
    dataset = tf.data.TFRecordDataset(shards)
    # A record file does not say how many records it holds. Trainers need the number: with an unknown length Keras runs
    # one optimizer step without data at the end of every epoch.
    dataset = dataset.apply(tf.data.experimental.assert_cardinality(ROWS[split]))
    if shuffle_seed is not None:
        dataset = dataset.shuffle(ROWS[split], seed=shuffle_seed, reshuffle_each_iteration=False)
    options = tf.data.Options()
    # Several workers share the rows, not the files: there are fewer files than workers may be.
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return dataset.batch(global_batch_size).map(_decode).prefetch(tf.data.AUTOTUNE).with_options(options)


def _check(split: str, global_batch_size: int) -> None:
    """Refuses arguments that name no dataset."""
    if split not in ROWS:
        raise BatchError(
            message(
                "`split` must name a part of the digits.",
                f"split={split!r}",
                'digits_dataset("train", global_batch_size=100) or digits_dataset("test", global_batch_size=100)',
            )
        )
    if isinstance(global_batch_size, bool) or not isinstance(global_batch_size, int) or global_batch_size < 1:
        raise BatchError(
            message(
                "`global_batch_size` must be a positive integer: the rows of a batch over all replicas together.",
                f"global_batch_size={global_batch_size!r}",
                f"digits_dataset({split!r}, global_batch_size=100)",
            )
        )


def _decode(records: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Turns G serialized records into images in 0 to 1 and labels."""
    import tensorflow as tf

    features = tf.io.parse_example(
        records,
        {
            "image": tf.io.FixedLenFeature([], tf.string),
            "label": tf.io.FixedLenFeature([], tf.int64),
        },
    )
    pixels = tf.io.decode_raw(features["image"], tf.uint8)
    images = tf.reshape(tf.cast(pixels, tf.float32) / WHITE, (-1, *IMAGE_SHAPE))
    return images, tf.cast(features["label"], tf.int32)
