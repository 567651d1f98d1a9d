"""The rim: everything that talks to `tf.distribute` or to private names of Keras and TensorFlow."""
