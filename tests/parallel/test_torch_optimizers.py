"""Whose state is whose: several optimizers, optimizers wrapped anew, calls without an optimizer."""

from __future__ import annotations

import gc
import time
from typing import Any

import pytest
import torch

from tests.parallel.models import (
    Gather,
    Tensors,
    assert_in_sync,
    bits,
    compressor,
    every_codec,
    everything,
    ledger_gap,
    network,
    noise,
    parameters_of,
    residuals,
    states,
    train,
    without_advice,
    wrap,
)

pytestmark = [pytest.mark.launches(("mpi", 2)), *without_advice]

TOPK = "topk:density=0.1"


def test_two_optimizers_with_the_same_names_keep_their_residuals_apart(hvd: Any, rank: int, gather: Gather) -> None:
    """F043."""
    compression = compressor(TOPK)
    models = {"": Tensors({"w": (40, 40), "b": (40,)}), "1/": Tensors({"w": (40, 40), "b": (40,)})}
    optimizers = {key: wrap(hvd, model, compression) for key, model in models.items()}
    before: dict[str, Any] = {}
    for step in range(20):
        key = ("", "1/")[step % 2]
        model, optimizer = models[key], optimizers[key]
        optimizer.zero_grad()
        pushed = {"w": noise((40, 40), step, rank), "b": noise((40,), step, rank)}
        model.push(pushed)
        optimizer.synchronize()
        after = residuals(compression)
        assert ledger_gap(gather, pushed["w"], before.get(f"{key}w"), after[f"{key}w"], model.w.grad) <= 1e-6
        other = f"{'1/' if key == '' else ''}w"
        assert other not in before or torch.equal(after[other], before[other])
        before = after
        with optimizer.skip_synchronize():
            optimizer.step()
    assert set(before) == {"w", "1/w"}
    assert_in_sync(gather, *models.values())


def test_optimizers_that_share_budgets_at_the_same_time_do_not_clash(hvd: Any, rank: int, gather: Gather) -> None:
    compression = compressor("topk:density=0.1,scope=model,rebudget_steps=1")
    models = [Tensors({"v": (40, 40)}), Tensors({"w": (40, 40)})]
    optimizers = [wrap(hvd, model, compression) for model in models]
    for step in range(3):
        for model in models:
            model.push({name: noise((40, 40), step, rank) for name, _ in model.named_parameters()})
        if rank:
            # The other rank starts what both optimizers share while this one has started neither.
            time.sleep(0.5)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    assert_in_sync(gather, *models)


@pytest.mark.parametrize("config", [TOPK, "topk:density=0.1,scope=model,rebudget_steps=1"], ids=["tensor", "model"])
def test_optimizers_over_disjoint_parameters_step_at_their_own_pace(
    hvd: Any, rank: int, gather: Gather, config: str
) -> None:
    """F044."""
    compression = compressor(config)
    model = Tensors({"p1": (40, 40), "p2": (40, 40), "p3": (40, 40)})
    optimizers = {
        pace: hvd.DistributedOptimizer(
            torch.optim.SGD([getattr(model, f"p{pace}")], lr=0.1),
            named_parameters=[(f"p{pace}", getattr(model, f"p{pace}"))],
            compression=compression,
            backward_passes_per_step=pace,
        )
        for pace in (1, 2, 3)
    }
    for iteration in range(1, 13):
        model.push({name: noise((40, 40), iteration, rank, i) for i, name in enumerate(("p1", "p2", "p3"))})
        for pace, optimizer in optimizers.items():
            if iteration % pace == 0:
                before = residuals(compression)
                optimizer.step()
                optimizer.zero_grad()
                after = residuals(compression)
                touched = {name for name in before if not torch.equal(before[name], after[name])}
                # A residual changes in the backward pass, when the gradient is sent, and in no step.
                assert touched == set()
    stats = compression.stats()
    assert {name: counts.dense_bytes for name, counts in stats.tensors.items()} == {
        name: exchanges * 1600 * 4 for name, exchanges in (("p1", 12), ("p2", 6), ("p3", 4))
    }
    assert_in_sync(gather, model)


def test_two_compressors_in_one_process_keep_their_own_settings(hvd: Any, rank: int) -> None:
    """F005."""
    sent = {}
    for density in (0.01, 0.1):
        compression = compressor(f"topk:density={density},index_codec=u32")
        model = Tensors({"w": (100, 100)})
        optimizer = wrap(hvd, model, compression)
        model.push({"w": noise((100, 100), rank)})
        optimizer.step()
        sent[density] = compression.stats().step.sent_bytes
    # Header, k values, k indices, seal, Horovod's own one-element reduction.
    assert sent == {0.01: 8 + 8 * 100 + 8 + 4, 0.1: 8 + 8 * 1000 + 8 + 4}


def test_parameters_without_names_get_their_own_gradients_and_stable_keys(hvd: Any, rank: int) -> None:
    """F046."""
    keys = []
    for _ in range(2):
        compression = compressor(TOPK)
        model = Tensors({f"p{i}": (40, 40) for i in range(6)})
        parameters = list(model.parameters())
        groups = [{"params": parameters[i : i + 2]} for i in (0, 2, 4)]
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(groups, lr=0.1), compression=compression)
        model.push({f"p{i}": torch.full((40, 40), 1.0 + i) for i in range(6)})
        optimizer.synchronize()
        assert [parameter.grad.unique().tolist() for parameter in parameters] == [[0.0, 1.0 + i] for i in range(6)]
        keys.append(sorted(residuals(compression)))
    assert keys[0] == keys[1]
    assert len(keys[0]) == 6


def test_names_can_be_given_to_the_compressor(hvd: Any, rank: int) -> None:
    model = Tensors({"w": (40, 40)})
    compression = compressor(TOPK, named_parameters=[("mine", model.w)])
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), compression=compression)
    model.push({"w": noise((40, 40), rank)})
    optimizer.step()
    assert set(residuals(compression)) == {"mine"}


def test_optimizer_that_is_wrapped_anew_goes_on_with_its_residuals(hvd: Any, rank: int, gather: Gather) -> None:
    runs = []
    for anew in (False, True):
        compression = compressor(TOPK)
        model = network()
        optimizer = wrap(hvd, model, compression)
        train(model, optimizer, rank, range(4))
        if anew:
            # Horovod's hooks live as long as the optimizer that set them.
            del optimizer
            gc.collect()
            optimizer = wrap(hvd, model, compression)
        train(model, optimizer, rank, range(4, 8))
        runs.append((parameters_of(model), states(compression)))
        assert_in_sync(gather, model)
    assert runs[0] == runs[1]


def test_layer_may_be_frozen_for_a_while(hvd: Any, rank: int, gather: Gather) -> None:
    runs = []
    for compression in (compressor(everything("topk:density=1.0")), hvd.Compression.none, compressor(TOPK)):
        model = network()
        optimizer = wrap(hvd, model, compression)
        for step in range(9):
            model[0].requires_grad_(not 3 <= step < 6)
            train(model, optimizer, rank, [step])
        runs.append(parameters_of(model))
        assert_in_sync(gather, model)
    assert runs[0] == runs[1]
    assert runs[2] != runs[1]


def test_layer_that_was_frozen_when_wrapped_trains_after_wrapping_anew(hvd: Any, rank: int, gather: Gather) -> None:
    compression = compressor(TOPK)
    model = network()
    model[0].requires_grad_(False)
    optimizer = wrap(hvd, model, compression)
    train(model, optimizer, rank, range(3))
    assert set(residuals(compression)) == {"2.weight"}
    before = residuals(compression)["2.weight"]
    del optimizer
    gc.collect()
    model[0].requires_grad_(True)
    optimizer = wrap(hvd, model, compression)
    assert torch.equal(residuals(compression)["2.weight"], before)
    train(model, optimizer, rank, range(3, 6))
    assert set(residuals(compression)) == {"0.weight", "2.weight"}
    assert_in_sync(gather, model)


@pytest.mark.parametrize(
    "settings",
    [{}, {"op": "Sum"}, {"prescale_factor": 0.5, "postscale_factor": 4.0}, {"average": False}],
    ids=["average", "sum", "factors", "old-style"],
)
@pytest.mark.filterwarnings("ignore:.*average:DeprecationWarning")
def test_allreduce_of_a_tensor_can_be_compressed(hvd: Any, rank: int, settings: dict[str, Any]) -> None:
    own = {key: getattr(hvd, value) if key == "op" else value for key, value in settings.items()}
    x, y = noise((40, 40), rank), noise((3,), rank)
    kept = [x.clone(), y.clone()]
    for tensor in (x, y):
        ours = hvd.allreduce(tensor, name="tests.one", compression=compressor("topk:density=1.0"), **own)
        assert torch.equal(ours, hvd.allreduce(tensor, name="tests.dense", **own))
    compression = compressor(everything("topk:density=1.0"))
    grouped = hvd.grouped_allreduce([x, y], name="tests.group", compression=compression, **own)
    plain = hvd.grouped_allreduce([x, y], name="tests.plain", **own)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(grouped, plain, strict=True))
    assert torch.equal(x, kept[0])
    assert torch.equal(y, kept[1])


def test_residual_of_a_named_allreduce_comes_with_its_next_call(hvd: Any, rank: int, gather: Gather) -> None:
    compression = compressor(TOPK)
    before: dict[str, Any] = {}
    for step in range(5):
        for name in ("one", "two"):
            x = noise((40, 40), step, rank, len(name))
            result = hvd.allreduce(x, name=f"tests.{name}", compression=compression)
            key = f"call/tests.{name}"
            after = residuals(compression)[key]
            assert ledger_gap(gather, x, before.get(key), after, result) <= 1e-6
            before[key] = after


@pytest.mark.parametrize("call", ["allreduce", "grouped_allreduce"])
def test_allreduce_without_a_name_is_refused(hvd: Any, call: str) -> None:
    x = torch.ones(40, 40)
    with pytest.raises(ValueError, match=f"hvd.{call}: name must be given"):
        getattr(hvd, call)([x] if call.startswith("grouped") else x, compression=compressor(TOPK))


def test_compress_is_for_horovod_to_call() -> None:
    with pytest.raises(ValueError, match="compress must be called by Horovod"):
        compressor(TOPK).compress(torch.ones(40, 40))


@pytest.mark.parametrize("op", ["Adasum", "Max", "Min", "Product"])
def test_optimizer_with_another_reduction_is_refused_on_every_rank(hvd: Any, rank: int, op: str) -> None:
    """F076."""
    model = network()
    optimizer = wrap(hvd, model, compressor(TOPK), op=getattr(hvd, op))
    with pytest.raises(ValueError, match=f"op must be hvd.Average or hvd.Sum with compression, got hvd.{op}"):
        train(model, optimizer, rank, [0])


@pytest.mark.parametrize(
    ("kind", "settings", "says"),
    [("SGD", {"lr": 0.1, "momentum": 0.9}, "momentum=0.9"), ("Adam", {}, r"betas=\(0.9, 0.999\)")],
)
def test_momentum_in_codec_and_optimizer_is_refused(
    hvd: Any, rank: int, kind: str, settings: dict[str, float], says: str
) -> None:
    """F025."""
    model = network()
    optimizer = hvd.DistributedOptimizer(
        getattr(torch.optim, kind)(model.parameters(), **settings),
        named_parameters=model.named_parameters(),
        compression=compressor("dgc:density=0.1"),
    )
    with pytest.raises(ValueError, match=f"DGC applies momentum itself: .*{says}"):
        train(model, optimizer, rank, [0])


@every_codec
def test_adasum_is_refused_with_every_codec(hvd: Any, rank: int, config: str) -> None:
    """F076."""
    with pytest.raises(ValueError, match=r"got hvd\.Adasum"):
        hvd.allreduce(torch.ones(40, 40), name="tests.adasum", op=hvd.Adasum, compression=compressor(config))


@pytest.mark.parametrize("op", ["Max", "Min", "Product"])
def test_allreduce_with_another_reduction_is_refused(hvd: Any, op: str) -> None:
    with pytest.raises(ValueError, match=f"got hvd.{op}"):
        hvd.allreduce(torch.ones(40, 40), name="tests.op", op=getattr(hvd, op), compression=compressor(TOPK))


def test_reducescatter_is_refused(hvd: Any) -> None:
    with pytest.raises(ValueError, match=r"hvd\.reducescatter cannot be compressed; allowed: hvd\.allreduce"):
        hvd.reducescatter(torch.ones(40, 40), name="tests.scatter", compression=compressor(TOPK))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_integers_pass_untouched(hvd: Any, rank: int, dtype: torch.dtype) -> None:
    """F058."""
    x = torch.tensor([[1, 0], [1, 0]]).to(dtype).repeat(40, 40)
    compression = compressor(everything(TOPK))
    result = hvd.allreduce(x, name="tests.integers", op=hvd.Sum, compression=compression)
    assert result.dtype == dtype
    assert torch.equal(result, hvd.allreduce(x, name="tests.integers.dense", op=hvd.Sum))
    assert compression.stats().tensors == {}


def test_complex_gradients_are_refused_by_dtype_and_name(hvd: Any) -> None:
    """F058."""
    x = torch.ones(40, 40, dtype=torch.complex64)
    with pytest.raises(Exception, match=r"tests\.complex.*complex64"):
        hvd.allreduce(x, name="tests.complex", compression=compressor(TOPK))


@pytest.mark.parametrize("kind", ["SGD", "Adam", "AdamW"])
def test_parameters_and_optimizer_state_can_be_broadcast(hvd: Any, rank: int, gather: Gather, kind: str) -> None:
    """F120."""
    compression = compressor(TOPK)
    model = network()
    own = {"lr": 0.01 * (1 + rank)} | ({"momentum": 0.9} if kind == "SGD" else {})
    optimizer = hvd.DistributedOptimizer(
        getattr(torch.optim, kind)(model.parameters(), **own),
        named_parameters=model.named_parameters(),
        compression=compression,
    )
    train(model, optimizer, rank, range(3))
    kept = states(compression)
    with torch.no_grad():
        model[0].bias.add_(rank)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    assert optimizer.param_groups[0]["lr"] == 0.01
    assert set(optimizer.state_dict()) == {"state", "param_groups"}
    assert {key for state in optimizer.state.values() for key in state} <= {
        "momentum_buffer",
        "step",
        "exp_avg",
        "exp_avg_sq",
    }
    assert states(compression) == kept
    optimizer.load_state_dict(optimizer.state_dict())
    assert states(compression) == kept
    train(model, optimizer, rank, range(3, 6))
    assert_in_sync(gather, model)
    assert states(compression) != kept


def test_state_does_not_grow_with_gradients_made_anew_at_every_step(hvd: Any, rank: int, gather: Gather) -> None:
    """F018."""
    compression = compressor(TOPK)
    model = Tensors({"v": (40, 40), "w": (50, 50), "b": (50,)})
    optimizer = wrap(hvd, model, compression)
    sizes = []
    before: dict[str, Any] = {}
    for step in range(200):
        for parameter in model.parameters():
            parameter.grad = None
        pushed = {name: noise(parameter.shape, step, rank) for name, parameter in model.named_parameters()}
        model.push(pushed)
        optimizer.synchronize()
        after = residuals(compression)
        sizes.append({name: residual.numel() for name, residual in after.items()})
        if step % 50 == 49:
            for name in ("v", "w"):
                gap = ledger_gap(gather, pushed[name], before[name], after[name], getattr(model, name).grad)
                assert gap <= 1e-6
        before = after
        with optimizer.skip_synchronize():
            optimizer.step()
    assert sizes == [{"v": 1600, "w": 2500}] * 200
    assert_in_sync(gather, model)


def test_gradients_may_be_none_between_steps(hvd: Any, rank: int, gather: Gather) -> None:
    """F020."""
    runs = []
    for way in ("zeroed in place", "none"):
        compression = compressor(TOPK)
        model = Tensors({"v": (40, 40), "w": (40, 40)})
        optimizer = wrap(hvd, model, compression)
        for step in range(8):
            if way == "zeroed in place":
                for parameter in model.parameters():
                    parameter.grad = torch.zeros_like(parameter)
            elif step % 2:
                for parameter in model.parameters():
                    parameter.grad = None
            else:
                optimizer.zero_grad()
            pushed = {"v": noise((40, 40), step, rank), "w": noise((40, 40), step, rank, 1)}
            model.push({"v": pushed["v"]} if 3 <= step <= 5 else pushed)
            optimizer.step()
        runs.append((parameters_of(model), states(compression)))
        assert_in_sync(gather, model)
    assert runs[0] == runs[1]


def test_gradient_that_is_synchronized_and_thrown_away_counts_as_delivered(hvd: Any, rank: int, gather: Gather) -> None:
    """F022."""
    compression = compressor(TOPK)
    model = Tensors({"w": (40, 40)})
    optimizer = wrap(hvd, model, compression)
    before = None
    for step in range(10):
        optimizer.zero_grad()
        parameters = parameters_of(model)
        gradient = noise((40, 40), step, rank)
        model.push({"w": gradient})
        optimizer.synchronize()
        after = residuals(compression)["w"]
        assert ledger_gap(gather, gradient, before, after, model.w.grad) <= 1e-6
        before = after
        if step != 5:
            with optimizer.skip_synchronize():
                optimizer.step()
        assert (parameters_of(model) == parameters) == (step == 5)
    assert_in_sync(gather, model)


@pytest.mark.parametrize("reentrant", [False, True])
def test_tied_weights_and_checkpointed_activations_end_as_without_compression(
    hvd: Any, rank: int, gather: Gather, reentrant: bool
) -> None:
    """F119."""
    from torch.utils.checkpoint import checkpoint

    outcomes = []
    for compression in (hvd.Compression.none, compressor("topk:density=1.0")):
        table = Tensors({"table": (50, 40)})
        with torch.no_grad():
            table.table.copy_(noise((50, 40)))
        optimizer = wrap(hvd, table, compression)
        try:
            for step in range(3):
                optimizer.zero_grad()
                inputs = torch.nn.functional.embedding(torch.tensor([step, 7 + rank]), table.table)
                hidden = checkpoint(
                    lambda x, w: torch.tanh(x @ w.t()) @ w, inputs, table.table, use_reentrant=reentrant
                )
                hidden.square().mean().backward()
                optimizer.step()
            outcomes.append(bits(table.table))
        except AssertionError as error:
            outcomes.append(str(error).encode())
            # What is in flight must be over before the next optimizer uses the same names.
            optimizer.synchronize()
    assert outcomes[0] == outcomes[1]
