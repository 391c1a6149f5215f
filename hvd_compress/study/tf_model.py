"""The language model in Keras 3 on TensorFlow."""

from __future__ import annotations

import keras
import tensorflow as tf

from hvd_compress.study.models import LAYERS, hidden_size

State = list[tuple[tf.Tensor, tf.Tensor]]


class LSTMLanguageModel(keras.Model):  # type: ignore[misc]
    """Two LSTM layers between an embedding and an output layer that share one matrix.

    With v words and h hidden units it has v·h + 2(8h² + 4h) parameters: the output layer has no bias, and Keras's LSTM
    has one bias where PyTorch's has two.

    Parameters
    ----------
    vocabulary_size : int
        Number of words, v.
    hidden_size : int
        Width of embedding and layers, h.
    dropout : float
        Share of units left out after the embedding, between the layers and before the output, in [0, 1).
    dropout_seed : int
        Of what is left out.
    """

    def __init__(self, vocabulary_size: int, hidden_size: int, dropout: float = 0.0, dropout_seed: int = 0) -> None:
        super().__init__()
        self.hidden_size = hidden_size
        self.dropout = keras.layers.Dropout(dropout, seed=dropout_seed)
        uniform = keras.initializers.RandomUniform(-0.1, 0.1)
        self.embedding = keras.layers.Embedding(vocabulary_size, hidden_size, embeddings_initializer=uniform)
        self.lstms = [keras.layers.LSTM(hidden_size, return_sequences=True, return_state=True) for _ in range(LAYERS)]

    def call(self, words: tf.Tensor, state: State, training: bool = False) -> tuple[tf.Tensor, State]:
        """Scores of the next word and the state to carry on.

        Parameters
        ----------
        words : tf.Tensor
            Word numbers, int64, shape (batch, length).
        state : list of tuple of tf.Tensor
            Hidden and cell state of each layer, of shape (batch, hidden).
        training : bool
            Whether units are left out.

        Returns
        -------
        tuple
            Scores of shape (batch, length, vocabulary), and the new state.
        """
        hidden, carried = self.embedding(words), []
        for lstm, before in zip(self.lstms, state, strict=True):
            hidden, *after = lstm(self.dropout(hidden, training=training), initial_state=before, training=training)
            carried.append(tuple(after))
        hidden = self.dropout(hidden, training=training)
        return tf.matmul(hidden, self.embedding.embeddings, transpose_b=True), carried

    def initial_state(self, batch: int) -> State:
        """Zeros for ``batch`` columns."""
        zeros = tf.zeros((batch, self.hidden_size))
        return [(zeros, zeros) for _ in range(LAYERS)]


def build_model(size: str, vocabulary_size: int, dropout: float = 0.0, dropout_seed: int = 0) -> LSTMLanguageModel:
    """The language model called ``small``, ``medium`` or ``large``, with its variables.

    Raises
    ------
    UsageError
        No such size.
    """
    model = LSTMLanguageModel(vocabulary_size, hidden_size(size), dropout, dropout_seed)
    model(tf.zeros((1, 1), tf.int64), model.initial_state(1))
    return model
