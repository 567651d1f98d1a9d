"""Datasets that ship with the package.

Importing this package is cheap: TensorFlow is loaded only when a dataset is made.
"""

from mirrored_keras.data.digits import digits_dataset as digits_dataset
