"""Which Keras there is."""

from __future__ import annotations

__all__ = ["require_keras_3"]


def require_keras_3() -> None:
    """Raise ``ImportError`` unless Keras is version 3 on TensorFlow: one sentence that says what to do."""
    try:
        import keras
    except ImportError as error:
        raise ImportError(f"hvd_compress.keras needs Keras 3 ({error}): pip install keras") from error
    if not keras.__version__.startswith("3."):
        raise ImportError(
            f"hvd_compress.keras is for Keras 3; with Keras {keras.__version__} use horovod.tensorflow.keras and "
            "hvd_compress.tensorflow.Compression"
        )
    if keras.backend.backend() != "tensorflow":
        raise ImportError(
            f"hvd_compress.keras needs Keras on TensorFlow, got {keras.backend.backend()}: set KERAS_BACKEND=tensorflow"
        )
