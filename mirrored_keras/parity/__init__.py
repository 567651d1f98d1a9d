"""Proofs that N replicas train as one: an oracle that shares no code with the step.

`reference` is a training loop written from the formula, for one device. Import it by its full
name: `from mirrored_keras.parity import reference`.
"""
