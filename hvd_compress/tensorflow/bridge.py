"""Python functions of arrays as operations of a graph.

The state of a compressor, its steps and budgets live in Python, so nothing is captured by a graph, created in a trace
or left out of a saved model. Arrays in a host's memory are handed to NumPy without a copy. Where there is a GPU, the
function gets TensorFlow's own eager tensors and nothing leaves the device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from hvd_compress.ops.denormals import host_thread
from hvd_compress.ops.graphs import uses_numpy

__all__ = ["call"]


def call(
    function: Callable[..., Sequence[Any]],
    arguments: Sequence[tf.Tensor],
    dtypes: Sequence[str],
    in_order: bool = True,
) -> list[tf.Tensor]:
    """Call a function of arrays that returns arrays: now, or when the graph runs.

    Errors come as they are where nothing is traced; a graph's own error holds the message.

    Parameters
    ----------
    in_order : bool
        Whether a graph makes its calls in the order of the program, as the ranks must where something is sent.
        Otherwise a call waits for its arguments alone, and there is none if nothing needs its results.
    """
    # A caller that AutoGraph has converted would have it convert, in every step, all that the function calls.
    function = tf.autograph.experimental.do_not_convert(function)
    if uses_numpy():
        if tf.executing_eagerly():
            results = _on_host(function, [argument.numpy() for argument in arguments])
            return [tf.constant(result, dtype) for result, dtype in zip(results, dtypes, strict=True)]
        on_host = tf.numpy_function(lambda *arrays: _on_host(function, arrays), arguments, list(dtypes), in_order)
        return _listed(on_host)
    if tf.executing_eagerly():
        return list(function(*arguments))
    return _listed(tf.py_function(lambda *arrays: list(_untaped(function, arrays)), arguments, list(dtypes)))


def _on_host(function: Callable[..., Sequence[Any]], arrays: Sequence[Any]) -> list[Any]:
    return list(host_thread().submit(function, *arrays).result())


def _untaped(function: Callable[..., Sequence[Any]], arrays: Sequence[Any]) -> Sequence[Any]:
    # TensorFlow watches what it hands over and would keep every intermediate result.
    return function(*(tf.stop_gradient(array) for array in arrays))


def _listed(results: Any) -> list[tf.Tensor]:
    return list(results) if isinstance(results, list | tuple) else [results]
