"""The commands of ``python -m hvd_compress``."""
