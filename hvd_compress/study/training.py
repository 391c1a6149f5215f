"""A whole training run on several Horovod workers: text in, result out."""

from __future__ import annotations

import time
from typing import Any

from hvd_compress.study.checkpoint import Checkpoints
from hvd_compress.study.config import TrainConfig
from hvd_compress.study.data import Corpus, load_corpus
from hvd_compress.study.errors import UsageError
from hvd_compress.study.evaluation import perplexity
from hvd_compress.study.learner import Learner
from hvd_compress.study.models import hidden_size
from hvd_compress.study.progress import headline, reporting, summary
from hvd_compress.study.results import RunResult
from hvd_compress.study.trainer import Trainer
from hvd_compress.study.workers import Workers


def train(config: TrainConfig, kind: type[Learner]) -> RunResult:
    """Train a language model under a compressor; every rank of the job calls it.

    Parameters
    ----------
    config : TrainConfig
        The same on every rank.
    kind : type of Learner
        The framework, from :func:`hvd_compress.study.frameworks.learner_of`.

    Returns
    -------
    RunResult
        The same on all ranks, but for bytes and milliseconds, which are the rank's own.

    Raises
    ------
    UsageError
        Something that a person can correct; raised on all ranks alike, before any training.
    """
    workers = Workers(kind.horovod)
    began = time.monotonic()
    corpus, compression = _prepare(config, kind, workers)
    trainer = Trainer(config, corpus, compression, kind, workers)
    checkpoints = Checkpoints(config.checkpoint, workers, kind) if config.checkpoint else None
    if checkpoints and config.resume:
        _resume(trainer, checkpoints)
    if workers.rank == 0:
        print(headline(config, trainer.learner.parameter_count(), workers.size, trainer.step), flush=True)
    _run(trainer, checkpoints)
    result = _result(trainer, began)
    if workers.rank == 0:
        print(summary(result), flush=True)
        if config.out:
            print(f"result: {result.save(config.out)}", flush=True)
    return result


def _result(trainer: Trainer, began: float) -> RunResult:
    learner, workers = trainer.learner, trainer.workers
    traffic, milliseconds = trainer.meter.means()
    return RunResult(
        config=trainer.config.as_dict(),
        workers=workers.size,
        parameters=learner.parameter_count(),
        curve=tuple(trainer.curve),
        test_perplexity=perplexity(learner, workers, trainer.corpus.test),
        traffic=traffic,
        milliseconds=milliseconds,
        seconds=time.monotonic() - began,
        parameter_crc32=tuple(workers.gather(learner.crc32(), "crc32")),
    )


def _prepare(config: TrainConfig, kind: type[Learner], workers: Workers) -> tuple[Corpus, Any]:
    """Text and compressor, or the same error on all ranks."""
    corpus, compression, error = None, None, None
    try:
        hidden_size(config.size)
        compression = _compression(config.compression, kind)
        corpus = load_corpus(config.data)
        _check_shares(config, corpus, workers.size)
        _make_folders(config)
    except UsageError as caught:
        error = str(caught)
    workers.agree(error)
    assert corpus is not None
    return corpus, compression


def _compression(text: str, kind: type[Learner]) -> Any:
    try:
        return kind.compressions.from_config(text)
    except (TypeError, ValueError) as error:
        raise UsageError(f"compression {text!r}: {error}") from error


def _check_shares(config: TrainConfig, corpus: Corpus, workers: int) -> None:
    if config.batch_size % workers:
        raise UsageError(
            f"batch_size must be a multiple of the number of workers, got {config.batch_size} for {workers} workers"
        )
    needed = config.batch_size * (config.sequence_length + 1)
    if len(corpus.train) < needed:
        raise UsageError(
            f"the text has {len(corpus.train)} words to train on and a step needs {needed}; "
            "take a longer text, a smaller batch_size or a smaller sequence_length"
        )


def _make_folders(config: TrainConfig) -> None:
    """Find out before the training, not after, that its results cannot be written."""
    for folder in (config.out, config.checkpoint):
        try:
            if folder:
                folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"cannot make the folder {folder}: {error.strerror}; choose another") from error


def _resume(trainer: Trainer, checkpoints: Checkpoints) -> None:
    saved = checkpoints.load()
    now, then = trainer.trajectory, saved["trajectory"]
    differing = [name for name in now if now[name] != then.get(name)]
    trainer.workers.agree(
        f"the checkpoint in {trainer.config.checkpoint} was written with "
        + ", ".join(f"{name} {then.get(name)} (now {now[name]})" for name in differing)
        + "; resume with the same settings"
        if differing
        else None
    )
    trainer.load_state_dict(saved)


def _run(trainer: Trainer, checkpoints: Checkpoints | None) -> None:
    config, silent = trainer.config, trainer.workers.rank != 0
    seen = ""
    with reporting(config.compression, config.steps, trainer.step, silent=silent) as reporter:
        while trainer.step < config.steps:
            loss = trainer.train_step()
            if trainer.step % config.evaluate_every == 0:
                seen = f", validation perplexity {trainer.look().validation_perplexity:.1f}"
            if checkpoints and (trainer.step % config.checkpoint_every == 0 or trainer.step == config.steps):
                checkpoints.save(trainer.step, trainer.state_dict())
            reporter.advance(trainer.step, f"loss {loss:.2f}{seen}")
    if trainer.loss_steps:
        trainer.look()
