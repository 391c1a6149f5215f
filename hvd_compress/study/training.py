"""A whole training run on several Horovod workers: text in, result out."""

from __future__ import annotations

import time
from typing import Any

import horovod.torch as hvd

from hvd_compress.study import checkpoint
from hvd_compress.study.config import TrainConfig
from hvd_compress.study.data import Corpus, load_corpus
from hvd_compress.study.errors import UsageError
from hvd_compress.study.evaluation import perplexity
from hvd_compress.study.models import check_size, parameter_count
from hvd_compress.study.progress import headline, reporting, summary
from hvd_compress.study.results import RunResult
from hvd_compress.study.trainer import Trainer
from hvd_compress.study.workers import agree, parameter_crc32
from hvd_compress.torch import Compression


def train(config: TrainConfig) -> RunResult:
    """Train a language model under a compressor; every rank of the job calls it.

    Returns
    -------
    RunResult
        The same on all ranks, but for bytes and milliseconds, which are the rank's own.

    Raises
    ------
    UsageError
        Something that a person can correct; raised on all ranks alike, before any training.
    """
    hvd.init()
    began = time.monotonic()
    corpus, compression = _prepare(config)
    trainer = Trainer(config, corpus, compression)
    if config.resume:
        _resume(trainer)
    if hvd.rank() == 0:
        print(headline(config, parameter_count(trainer.model), hvd.size(), trainer.step), flush=True)
    _run(trainer)
    traffic, milliseconds = trainer.meter.means()
    result = RunResult(
        config=config.as_dict(),
        workers=hvd.size(),
        parameters=parameter_count(trainer.model),
        curve=tuple(trainer.curve),
        test_perplexity=perplexity(trainer.model, corpus.test),
        traffic=traffic,
        milliseconds=milliseconds,
        seconds=time.monotonic() - began,
        parameter_crc32=parameter_crc32(trainer.model),
    )
    if hvd.rank() == 0:
        print(summary(result), flush=True)
        if config.out:
            print(f"result: {result.save(config.out)}", flush=True)
    return result


def _prepare(config: TrainConfig) -> tuple[Corpus, Any]:
    """Text and compressor, or the same error on all ranks."""
    corpus, compression, error = None, None, None
    try:
        check_size(config.size)
        compression = _compression(config.compression)
        corpus = load_corpus(config.data)
        _check_shares(config, corpus)
        _make_folders(config)
    except UsageError as caught:
        error = str(caught)
    agree(error)
    assert corpus is not None
    return corpus, compression


def _compression(text: str) -> Any:
    try:
        return Compression.from_config(text)
    except (TypeError, ValueError) as error:
        raise UsageError(f"compression {text!r}: {error}") from error


def _check_shares(config: TrainConfig, corpus: Corpus) -> None:
    if config.batch_size % hvd.size():
        raise UsageError(
            f"batch_size must be a multiple of the number of workers, got {config.batch_size} for {hvd.size()} workers"
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


def _resume(trainer: Trainer) -> None:
    directory = trainer.config.checkpoint
    assert directory is not None
    saved = checkpoint.load(directory)
    now, then = trainer.trajectory, saved["trajectory"]
    differing = [name for name in now if now[name] != then.get(name)]
    agree(
        f"the checkpoint in {directory} was written with "
        + ", ".join(f"{name} {then.get(name)} (now {now[name]})" for name in differing)
        + "; resume with the same settings"
        if differing
        else None
    )
    trainer.load_state_dict(saved)


def _run(trainer: Trainer) -> None:
    config, silent = trainer.config, hvd.rank() != 0
    seen = ""
    with reporting(config.compression, config.steps, trainer.step, silent=silent) as reporter:
        while trainer.step < config.steps:
            loss = trainer.train_step()
            if trainer.step % config.evaluate_every == 0:
                seen = f", validation perplexity {trainer.look().validation_perplexity:.1f}"
            if config.checkpoint and (trainer.step % config.checkpoint_every == 0 or trainer.step == config.steps):
                checkpoint.save(config.checkpoint, trainer.step, trainer.state_dict())
            reporter.advance(trainer.step, f"loss {loss:.2f}{seen}")
    if trainer.loss_steps:
        trainer.look()
