"""A run that goes on after it was cut off, residuals included."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import horovod.tensorflow as hvd
import keras
import numpy as np

from hvd_compress.tensorflow.saving import dumps, loads

__all__ = ["BackupAndRestore"]


class BackupAndRestore(keras.callbacks.Callback):  # type: ignore[misc]
    """Save each rank's training at the end of every epoch, and go on from there when ``fit`` is called again.

    Weights, the optimizer's state and the compressor's are kept, one folder for each rank. All ranks go on from the
    last epoch that every one of them has saved. The folders are removed when training is over.

    Parameters
    ----------
    directory : str or path
        On a disk that outlives the run; ranks on several machines may each have their own.
    compressor : hvd_compress.tensorflow.Compressor, optional
        The one that the optimizer has.
    process_set : horovod.tensorflow.ProcessSet
        The ranks that train together.
    """

    def __init__(
        self, directory: str | os.PathLike[str], compressor: Any = None, process_set: Any = hvd.global_process_set
    ) -> None:
        super().__init__()
        self._folder = Path(directory) / f"rank-{process_set.rank()}"
        self._compressor = compressor
        self._process_set = process_set

    def on_train_begin(self, logs: Any = None) -> None:
        """Go on from a backup, if there is one on every rank.

        Raises
        ------
        ValueError
            If it is of a model with other shapes; the message names the variable.
        """
        everyone = hvd.allgather_object(self._epochs(), process_set=self._process_set)
        common = set.intersection(*map(set, everyone))
        if not common:
            return
        epoch = max(common)
        if not self.model.optimizer.built:
            self.model.optimizer.build(self.model.trainable_variables)
        with np.load(self._folder / f"{epoch}.npz", allow_pickle=False) as saved:
            self._restore(saved)
        # What Keras' own callback of that name sets.
        self.model._initial_epoch = epoch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Save."""
        self._folder.mkdir(parents=True, exist_ok=True)
        arrays: dict[str, Any] = {f"{i}": np.asarray(variable) for i, variable in enumerate(self._variables())}
        if self._compressor is not None:
            arrays["compressor"] = np.frombuffer(dumps(self._compressor.state_dict()), np.uint8)
        unfinished = self._folder / "unfinished"
        with unfinished.open("wb") as file:
            np.savez(file, **arrays)
        unfinished.replace(self._folder / f"{epoch + 1}.npz")
        # Another rank may not be as far yet.
        for old in self._epochs()[:-2]:
            (self._folder / f"{old}.npz").unlink()

    def on_train_end(self, logs: Any = None) -> None:
        """Remove the backups."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _variables(self) -> list[Any]:
        return [*self.model.variables, *self.model.optimizer.variables]

    def _epochs(self) -> list[int]:
        return sorted(int(file.stem) for file in self._folder.glob("*.npz"))

    def _restore(self, saved: Any) -> None:
        variables = self._variables()
        for i, variable in enumerate(variables):
            theirs, ours = saved[str(i)].shape if str(i) in saved else None, tuple(variable.shape)
            if theirs != ours:
                raise ValueError(f"{variable.path}: the backup in {self._folder} has shape {theirs}, this model {ours}")
        for i, variable in enumerate(variables):
            variable.assign(saved[str(i)])
        if self._compressor is not None:
            if "compressor" not in saved:
                raise ValueError(f"compressor: the backup in {self._folder} is of a run without compression")
            self._compressor.load_state_dict(loads(saved["compressor"].tobytes()))
