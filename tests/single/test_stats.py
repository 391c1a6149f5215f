"""What is counted of a tensor, on one rank."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest

from hvd_compress import QSGD, Codec, ErrorFeedback, JointSQ, RandomK, TopK
from hvd_compress.chunks import Chunked
from hvd_compress.policy import BySize, compose_config
from hvd_compress.stats import Counts
from tests.cases import OneRank, codecs

ENTRIES = 40 * 50


def gradient(step: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """A gradient without zeros."""
    return np.random.default_rng(step).standard_normal((40, 50)).astype(np.float32)


@pytest.mark.parametrize(
    ("config", "kept"),
    [
        ("none", 2000),
        ("cast", 2000),
        ("qsgd", 2000),
        ("qsgd:error_feedback=true", 2000),
        ("topk:density=0.1", 200),
        ("topk_qsgd:density=0.05", 100),
        ("randomk:density=0.3", 600),
        ("dgc:density=0.01", 20),
    ],
)
def test_kept_entries_are_counted(config: str, kept: int) -> None:
    """F097."""
    rank = OneRank(compose_config(config))
    for step in range(3):
        rank.step({"w": gradient(step), "bias": np.ones(7, np.float32)})
        assert rank.stats.step.kept_entries == kept + 7
    assert rank.stats.tensors["w"].kept_entries == 3 * kept
    assert rank.stats.tensors["bias"].kept_entries == 3 * 7


def test_kept_entries_of_a_codec_that_decides_itself_how_many() -> None:
    """F097."""
    rank = OneRank(BySize(JointSQ(bits_per_entry=1.0)))
    for step in range(3):
        result = rank.step({"w": gradient(step)})["w"]
        kept = rank.stats.step.kept_entries
        assert 0 < kept == np.count_nonzero(result) < ENTRIES / 2


# Of six pieces of 333 entries 33 each, of one of 2 entries 1.
@pytest.mark.parametrize(
    ("codec", "kept"), [(ErrorFeedback(TopK(density=0.1)), 199), (RandomK(density=0.1), 199), (QSGD(), 2000)]
)
def test_kept_entries_of_the_pieces_of_a_large_tensor_add_up(codec: Codec, kept: int) -> None:
    rank = OneRank(BySize(Chunked(codec, size=333)))
    rank.step({"w": gradient(0)})
    assert rank.stats.step.kept_entries == kept


@pytest.mark.filterwarnings("ignore:.*whose size varies with the data:UserWarning")
@codecs
def test_totals_are_the_sums_of_the_parts(codec: Codec) -> None:
    """F097."""
    rank = OneRank(BySize(codec))
    steps = []
    for step in range(3):
        rank.step({"w": gradient(step), "v": gradient(-step + 9), "bias": np.ones(7, np.float32)})
        steps.append(rank.stats.step)
    for declared in fields(Counts):
        total = getattr(rank.stats.total, declared.name)
        assert total > 0
        for parts in (steps, rank.stats.tensors.values()):
            assert total == pytest.approx(sum(getattr(counts, declared.name) for counts in parts), rel=1e-9)
    assert rank.stats.tensors["bias"].kept_entries == rank.stats.tensors["bias"].dense_bytes // 4 == 3 * 7


def test_scalars_of_the_last_step_go_to_a_writer() -> None:
    written = {}

    class Writer:
        def add_scalar(self, tag: str, value: float, step: int) -> None:
            written[tag] = value, step

    rank = OneRank(compose_config("topk:density=0.1"))
    for step in range(2):
        rank.step({"w": gradient(step)})
    rank.stats.write_scalars(Writer(), 7)
    assert written["compression/dense_bytes"] == (4 * ENTRIES, 7)
    assert written["compression/kept_entries"] == (200, 7)
    assert written["compression/compression_ratio"] == (rank.stats.step.compression_ratio, 7)
    assert written["compression/state_nbytes"] == (4 * ENTRIES, 7)
    assert {tag.rpartition("/")[2] for tag in written} == {*rank.stats.step.as_dict(), "state_nbytes"}
