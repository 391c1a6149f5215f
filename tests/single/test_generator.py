"""The counter-based generator: the published vectors, and its statistics."""

from __future__ import annotations

import numpy as np
import pytest

from hvd_compress.generator import ROUNDING, SHARED_SELECTION, Key, Site, generator_key, mix
from tests.cases import backends, ops_of, to_numpy

SITE = Site("fc.weight", step=7)


def test_mix_of_known_words() -> None:
    words = [0, 1, 2, 0xFFFFFFFF, 0x12345678]
    assert [mix(word) for word in words] == [0, 0x688990C0, 0xD1132181, 0x6768824A, 0xF5E71C96]


@pytest.mark.parametrize(
    ("seed", "site", "stream", "key"),
    [
        (1234, SITE, ROUNDING, (0x0080CC42, 0x20B88581)),
        (1234, SITE._replace(rank=1), ROUNDING, (0x0689AB23, 0x0B6A9788)),
        (1234, SITE, SHARED_SELECTION, (0x461B961C, 0x24313D5D)),
        (0, Site("", step=0), ROUNDING, (0x29BA95A7, 0xD94ABCCD)),
    ],
)
def test_known_keys(seed: int, site: Site, stream: int, key: tuple[int, int]) -> None:
    assert generator_key(seed, site, stream) == key


def test_ranks_share_the_stream_of_shared_selections_and_no_other() -> None:
    other = SITE._replace(rank=3)
    assert generator_key(1, SITE, SHARED_SELECTION) == generator_key(1, other, SHARED_SELECTION)
    assert generator_key(1, SITE, ROUNDING) != generator_key(1, other, ROUNDING)


def test_high_words_of_seed_and_step_count() -> None:
    keys = {
        generator_key(seed, SITE._replace(step=step), ROUNDING)
        for seed in (5, 5 + (1 << 32))
        for step in (9, 9 + (1 << 32))
    }
    assert len(keys) == 4


@pytest.mark.parametrize(
    ("seed", "site", "what"),
    [
        (-1, SITE, "seed"),
        (1 << 64, SITE, "seed"),
        (0, SITE._replace(step=-1), "step"),
        (0, SITE._replace(rank=1 << 32), "rank"),
    ],
)
def test_out_of_range_is_refused(seed: int, site: Site, what: str) -> None:
    with pytest.raises(ValueError, match=rf"{what} must be in \[0, 2\*\*\d+\), got"):
        generator_key(seed, site, ROUNDING)


@backends
def test_known_draws(backend: str) -> None:
    ops = ops_of(backend)
    key = generator_key(1234, SITE, ROUNDING)
    bits = to_numpy(ops.random_bits(ops.arange(8), key))
    words = " ".join(f"{word:08x}" for word in bits.tolist())
    assert words == "978bb5bc bd7a0b5c a57048cc 7cfc3293 4aa7f4b5 c9e11b39 d3be7e90 e3850750"
    uniform = to_numpy(ops.uniform(ops.arange(8), key))
    assert uniform.dtype == np.float32
    assert uniform.tolist() == [
        0.5919755101203918,
        0.7401434779167175,
        0.6462445259094238,
        0.48822319507598877,
        0.2916252613067627,
        0.7885910868644714,
        0.8271254301071167,
        0.8887485861778259,
    ]


@backends
def test_draws_are_the_mixer_of_the_index(backend: str) -> None:
    ops, key = ops_of(backend), Key(0xFFFFFFFF, 0x9E3779B9)
    indices = [0, 1, 255, 65536, 2**31 - 1, 2**31, 2**32 - 1]
    expected = [mix((mix(index ^ key.k0) + key.k1) & 0xFFFFFFFF) for index in indices]
    assert to_numpy(ops.random_bits(ops.constant(indices, "int64"), key)).tolist() == expected


def test_draws_are_uniform_and_uncorrelated_across_steps_ranks_and_names() -> None:
    ops, n = ops_of("numpy"), 1 << 20
    draws = [
        ops.uniform(ops.arange(n), generator_key(0, site, ROUNDING)).astype(np.float64) - 0.5
        for site in (Site("a", 0), Site("a", 1), Site("a", 0, rank=1), Site("b", 0))
    ]
    for draw in draws:
        assert abs(draw.mean()) < 6 / np.sqrt(12 * n)
        assert abs(12 * draw.var() - 1) < 0.01
        assert abs(12 * np.mean(draw[1:] * draw[:-1])) < 6 / np.sqrt(n)
    for other in draws[1:]:
        assert abs(12 * np.mean(draws[0] * other)) < 6 / np.sqrt(n)
