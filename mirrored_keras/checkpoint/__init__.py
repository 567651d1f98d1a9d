"""Files that are whole or absent: saving, loading, checkpoints during `fit`, exact resume."""
