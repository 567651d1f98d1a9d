"""The command `mirrored-keras`.

A module here imports TensorFlow only inside the function that needs it, so that asking for help is fast.
"""
