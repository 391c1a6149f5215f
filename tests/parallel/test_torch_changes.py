"""Settings that ranks must share, and that change while a model is trained."""

from __future__ import annotations

from time import monotonic
from typing import Any

import pytest
import torch

from hvd_compress.torch import Compression
from tests.parallel import own_launch
from tests.parallel.models import (
    Gather,
    Tensors,
    assert_in_sync,
    compressor,
    network,
    noise,
    residuals,
    train,
    without_advice,
    wrap,
)

pytestmark = [pytest.mark.launches(("mpi", 2), ("gloo", 2)), *without_advice]

SHAPES = {"w": (40, 50), "b": (50,)}


def step(optimizer: Any, model: Tensors, rank: int, number: int, loss_scale: float = 1.0) -> dict[str, torch.Tensor]:
    """Make one step; return what this rank put in."""
    given = {name: noise(p.shape, number, rank) for name, p in model.named_parameters()}
    optimizer.zero_grad()
    model.push(given, loss_scale)
    optimizer.step()
    return given


class Ledger:
    """What all ranks gave and what the model got, with a learning rate of 1."""

    def __init__(self, hvd: Any, config: Any, gather: Gather, rank: int, **settings: Any) -> None:
        self.compression = Compression.from_config(config) if config != "none" else compressor(config)
        self.model, self.gather, self.rank = Tensors(SHAPES), gather, rank
        self.optimizer = wrap(hvd, self.model, self.compression, lr=1.0, **settings)
        self.given = torch.zeros(SHAPES["w"])
        self.steps = 0

    def step(self) -> None:
        mine = step(self.optimizer, self.model, self.rank, self.steps)
        self.steps += 1
        self.given += torch.stack(self.gather(mine["w"])).mean(0)

    @property
    def unsent(self) -> torch.Tensor:
        """Mean over the ranks of what they have not sent."""
        mine = residuals(self.compression).get("w", torch.zeros(SHAPES["w"])).reshape(SHAPES["w"])
        return torch.stack(self.gather(mine)).mean(0)

    def check(self) -> None:
        torch.testing.assert_close(-self.model.w.detach() + self.unsent, self.given, atol=1e-4, rtol=0)
        assert_in_sync(self.gather, self.model)


CHANGES = [
    ("topk:density=0.05", "qsgd:bits=4,error_feedback=true"),
    ("topk:density=0.05", "topk:density=0.2"),
    ("jointsq:bits_per_entry=1.0", "none"),
    ("none", "topk:density=0.05"),
    ("topk:density=0.05", "powersgd:rank=2"),
    ("powersgd:rank=2", "powersgd:rank=4"),
    ("powersgd:rank=2", "none"),
    ("topk:density=0.05", {"rules": [{"name": "w", "codec": "topk_qsgd:density=0.1"}], "default": "none"}),
]


@pytest.mark.parametrize(("before", "after"), CHANGES)
def test_reconfigure_loses_nothing(hvd: Any, rank: int, gather: Gather, before: Any, after: Any) -> None:
    """F006, F007."""
    ledger = Ledger(hvd, before, gather, rank)
    for _ in range(3):
        ledger.step()
        ledger.check()
    ledger.compression.reconfigure(after)
    for _ in range(3):
        ledger.step()
        ledger.check()
    ledger.compression.flush()
    ledger.step()
    torch.testing.assert_close(-ledger.model.w.detach(), ledger.given, atol=1e-4, rtol=0)
    ledger.step()
    ledger.check()


def test_codecs_by_step_lose_nothing(hvd: Any, rank: int, gather: Gather) -> None:
    ledger = Ledger(hvd, {"steps": [[0, "none"], [2, "topk:density=0.1"], [4, "qsgd"], [6, "none"]]}, gather, rank)
    sent = []
    for _ in range(4):
        ledger.step()
        ledger.check()
        sent.append(ledger.compression.stats().step.sent_bytes)
    assert sent[0] == sent[1] > 4 * sent[2]
    assert sent[2] == sent[3]
    # qsgd without feedback has no place for what topk left: it is delivered first.
    ledger.step()
    assert ledger.compression.stats().step.sent_bytes == sent[0]
    torch.testing.assert_close(-ledger.model.w.detach(), ledger.given, atol=1e-4, rtol=0)


def test_reconfigured_training_learns(hvd: Any, rank: int, gather: Gather) -> None:
    compression, model = compressor("topk:density=0.1"), network()
    optimizer = wrap(hvd, model, compression)
    losses = train(model, optimizer, rank, range(40))
    compression.reconfigure("qsgd:bits=4")
    losses += train(model, optimizer, rank, range(40, 80))
    compression.reconfigure("none")
    losses += train(model, optimizer, rank, range(80, 120))
    assert_in_sync(gather, model)
    assert sum(losses[-10:]) < 0.7 * sum(losses[:10])


@pytest.mark.parametrize(
    ("ours", "theirs", "shown"),
    [
        ("topk:density=0.1", "topk:density=0.2", ["rank 0 has", "0.1", "rank 1 has", "0.2"]),
        ("topk:density=0.1", "qsgd", ["topk", "qsgd"]),
        ("randomk:seed=1", "randomk:seed=2", ['"seed": 1', '"seed": 2']),
    ],
)
def test_different_settings_stop_every_rank(hvd: Any, rank: int, ours: str, theirs: str, shown: list[str]) -> None:
    model = Tensors(SHAPES)
    optimizer = wrap(hvd, model, compressor(theirs if rank else ours))
    with pytest.raises(ValueError, match="the ranks' settings differ: compression: rank 0 has") as caught:
        step(optimizer, model, rank, 0)
    assert all(words in str(caught.value) for words in shown)


def test_different_models_stop_every_rank(hvd: Any, rank: int) -> None:
    model = Tensors({"w": (40, 50 + 10 * rank)})
    optimizer = wrap(hvd, model, compressor("topk:density=0.1"))
    message = r'settings differ: tensors: rank 0 has \["w", \[40, 50\], .* rank 1 has \["w", \[40, 60\]'
    with pytest.raises(ValueError, match=message):
        step(optimizer, model, rank, 0)


def test_changes_that_the_ranks_do_not_share_are_refused(hvd: Any, rank: int, gather: Gather) -> None:
    ledger = Ledger(hvd, "topk:density=0.1", gather, rank)
    ledger.step()
    with pytest.raises(ValueError, match=r"settings differ: compression: rank 0 has .*0\.2.*, rank 1 has .*0\.3"):
        ledger.compression.reconfigure(f"topk:density=0.{2 + rank}")
    # Nothing has changed.
    ledger.step()
    ledger.check()


@pytest.mark.parametrize(
    ("config", "error", "message"),
    [
        ("tokp", ValueError, "tokp"),
        ("topk:density=2", ValueError, "density must be"),
        ("dgc", ValueError, "must both apply momentum or both leave it to the optimizer"),
        (3, TypeError, "config must be"),
    ],
)
def test_wrong_changes_are_refused(hvd: Any, config: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        compressor("topk").reconfigure(config)


def test_rules_know_parameters_by_their_names(hvd: Any, rank: int, gather: Gather) -> None:
    """F105."""
    rules = [{"name": "0.*", "codec": "none"}, {"name": "2.weight", "codec": "topk:density=0.01"}]
    compression, model = Compression.by_rule(rules, default="qsgd"), network()
    train(model, wrap(hvd, model, compression), rank, range(3))
    assert_in_sync(gather, model)
    tensors = compression.stats().tensors
    assert tensors["0.weight"].sent_bytes == tensors["0.weight"].dense_bytes
    assert tensors["2.weight"].kept_entries == 3 * 20
    assert set(residuals(compression)) == {"2.weight"}


@pytest.mark.parametrize("config", ["topk:density=0.1", "randomk:density=0.1", "qsgd"])
@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.filterwarnings("ignore:optimizer.step.. called without:UserWarning")
def test_a_second_synchronize_does_not_compress_again(
    hvd: Any, rank: int, gather: Gather, config: str, clip: bool
) -> None:
    """F023."""
    once, twice = [Tensors(SHAPES) for _ in range(2)]
    compressions = compressor(config), compressor(config)
    optimizers = [wrap(hvd, m, c) for m, c in zip((once, twice), compressions, strict=True)]
    for number in range(4):
        for model, optimizer in zip((once, twice), optimizers, strict=True):
            optimizer.zero_grad()
            model.push({name: noise(p.shape, number, rank) for name, p in model.named_parameters()})
            optimizer.synchronize()
            if clip:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            if model is once:
                with optimizer.skip_synchronize():
                    optimizer.step()
            else:
                optimizer.synchronize()
                optimizer.step()
    torch.testing.assert_close(twice.w, once.w)
    assert_in_sync(gather, once, twice)
    for ours, theirs in zip(*(residuals(c).values() for c in compressions), strict=True):
        torch.testing.assert_close(ours, theirs)
    assert compressions[1].stats().steps == 4


def test_a_flush_with_a_loss_scaler_waits_for_a_step_that_counts(hvd: Any, rank: int, gather: Gather) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=1000)
    model, compression = Tensors(SHAPES), compressor("topk:density=0.1", grad_scaler=scaler)
    optimizer = wrap(hvd, model, compression)

    def scaled(number: int, bad: bool = False) -> None:
        optimizer.zero_grad()
        given = {name: noise(p.shape, number, rank) for name, p in model.named_parameters()}
        if bad and rank == 1:
            given["w"][3, 4] = float("inf")
        model.push(given, float(scaler.scale(torch.ones(()))))
        optimizer.synchronize()
        scaler.unscale_(optimizer)
        with optimizer.skip_synchronize():
            scaler.step(optimizer)
        scaler.update()

    scaled(0)
    before = residuals(compression)["w"] / scaler.get_scale()
    compression.flush()
    scaled(1, bad=True)
    torch.testing.assert_close(residuals(compression)["w"] / 4.0, before)
    scaled(2)
    scaled(3)
    assert_in_sync(gather, model)
    assert compression.stats().tensors["w"].kept_entries == 2000 * 2 + 200 * 2


def join_early(config: str) -> str:
    """Rank 1 runs out of data after two steps, rank 0 goes on."""
    import horovod.torch as hvd

    hvd.init()
    model = Tensors(SHAPES)
    optimizer = wrap(hvd, model, compressor(config))
    for number in range(2 if hvd.rank() else 4):
        step(optimizer, model, hvd.rank(), number)
    hvd.join()
    return "joined"


@pytest.mark.own_launch
@pytest.mark.parametrize("launcher", ["mpi", "gloo"])
def test_join_works_with_codecs_that_are_summed(launcher: Any) -> None:
    """F067."""
    assert own_launch.run(join_early, "randomk:density=0.1", launcher=launcher) == ["joined"] * 2


@pytest.mark.own_launch
@pytest.mark.parametrize("launcher", ["mpi", "gloo"])
def test_join_with_a_codec_that_gathers_ends_all_ranks_in_our_words(launcher: Any) -> None:
    """F067."""
    start = monotonic()
    with pytest.raises(
        own_launch.LaunchFailed, match=r"a rank has called hvd.join\(\), during which Horovod cannot gather"
    ):
        own_launch.run(join_early, "topk:density=0.1", launcher=launcher)
    assert monotonic() - start < 60
