"""A training run that takes seconds, for the tests of the main job."""

from __future__ import annotations

from pathlib import Path

from hvd_compress.study.config import TrainConfig
from hvd_compress.study.data import read_lines

VERSES = 80

LIMIT_SECONDS = 300.0
"""How long a launch of a few runs may take; less than 20 on an idle machine, but a test suite may not have one."""


def short_run(folder: Path) -> TrainConfig:
    """Settings of 20 steps on a text, written into the folder, of which these see more than one epoch."""
    text = folder / "verses.txt"
    text.write_text("\n".join(read_lines()[:VERSES]), encoding="utf-8")
    return TrainConfig(data=text, steps=20, batch_size=8, sequence_length=12, dropout=0.2, evaluate_every=5)
