"""`python -m mirrored_keras` is the command `mirrored-keras`."""

from mirrored_keras.cli.__main__ import main

if __name__ == "__main__":
    raise SystemExit(main())
