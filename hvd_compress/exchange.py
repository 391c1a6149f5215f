"""One gradient's way through the network: the framework skins call `send` and `receive` and know no codec."""

from __future__ import annotations

from typing import Any, NamedTuple

from hvd_compress.codec import Array, Codec, Reduction, State
from hvd_compress.collective import Collective
from hvd_compress.generator import Site
from hvd_compress.ops.kernels import Kernels
from hvd_compress.payload import FLOAT_DTYPES, NORMAL, Payload, TensorSpec
from hvd_compress.relay import Relay, poisoned
from hvd_compress.wire import add_payload, layout_of, open_usual, seal, sections_of, split_rows, tag_of, unpack, unseal

__all__ = ["Collective", "Pending", "receive", "send", "spec_of"]


class Pending(NamedTuple):
    """What stays on this rank between `send` and `receive`; `entries` of the gradient were sent.

    A 0-d array says how many where only the device knows. `handle` is that of the gather, a `Relay` of two phases, or
    None where a stock allreduce carries the payload; then `source` is what else `decode` needs.
    """

    codec: Codec
    spec: TensorSpec
    site: Site
    handle: Any
    tag: int
    magnitudes: Array = None
    entries: Any = 0
    source: Array = None


def spec_of(ops: Kernels, x: Array) -> TensorSpec:
    """Spec of a gradient.

    Raises
    ------
    TypeError
        If it is no floating-point array.
    """
    spec = TensorSpec(ops.shape(x), ops.dtype(x))
    if spec.dtype not in FLOAT_DTYPES:
        raise TypeError(f"gradient's dtype must be one of {', '.join(FLOAT_DTYPES)}, got {spec.dtype}")
    return spec


def send(
    codec: Codec,
    ops: Kernels,
    x: Array,
    state: State,
    site: Site,
    collective: Collective,
    out: State | None = None,
) -> tuple[Array, Pending, State]:
    """Encode one gradient and start its exchange.

    Returns
    -------
    array
        What the caller must have reduced by a stock allreduce: the SUM payload, or one float32 1.0 that comes back
        with the scaling of the reduction (1 for an average, W for a sum, times the user's factors).
    pending : Pending
        For `receive`.
    state : mapping
        The codec's new state.
    """
    spec, codec = spec_of(ops, x), codec.at_step(site.step)
    with ops.quiet():
        payload, state = codec.encode(ops, ops.flatten(x), state, site, out)
    tag = tag_of(codec, site)
    reduced, handle = ops.constant((1.0,), "float32"), None
    if codec.reduction is Reduction.SUM:
        reduced = poisoned(ops, payload.parts[0], payload.flag)
    elif codec.reduction is Reduction.TWO_PHASE:
        handle = Relay(codec, ops, payload, spec, site, collective)
    else:
        row = seal(ops, sections_of(ops, payload), tag, codec.fixed_size)
        handle = collective.allgather(row, site.name)
    entries = payload.kept_entries(ops, spec.numel)
    source = payload.source if handle is None else None
    return reduced, Pending(codec, spec, site, handle, tag, payload.magnitudes, entries, source), state


def receive(
    ops: Kernels, reduced: Array, pending: Pending, state: State, collective: Collective, into: Array | None = None
) -> tuple[Array, State]:
    """Finish the exchange of one gradient.

    Parameters
    ----------
    reduced : array
        What the stock allreduce made of the array that `send` returned.
    state : mapping
        The tensor's state, from `send`.
    into : array, optional
        Array of the gradient's size that may be overwritten with the result.

    Returns
    -------
    array
        The combined gradient in the shape and dtype of the original. Not finite if any rank's was not.
    state : mapping
        The tensor's new state.

    Raises
    ------
    ValueError
        If a payload was damaged or belongs elsewhere.
    """
    codec, spec, site, handle, *_ = pending
    with ops.quiet():
        if handle is None:
            payload = Payload((ops.flatten(reduced),), source=pending.source)
            result = codec.decode_into(ops, payload, spec, site, None if into is None else ops.flatten(into))
        elif codec.reduction is Reduction.TWO_PHASE:
            payload = handle.finish()
            mean = codec.decode_into(ops, payload, spec, site, None if into is None else ops.flatten(into))
            state = codec.conclude(ops, payload._replace(kept=mean), state, spec, site)
            result = ops.scale(mean, ops.float32(ops.flatten(reduced)), mean)
        else:
            factor = ops.divide(ops.float32(ops.flatten(reduced)), site.world_size)
            result = _combine_rows(ops, collective.wait(handle), pending, factor, into)
        result, state = codec.absorb(ops, result, state, site)
        return ops.cast(ops.reshape(result, spec.shape), spec.dtype), state


def _combine_rows(ops: Kernels, gathered: Array, pending: Pending, factor: Array, into: Array | None) -> Array:
    codec, spec, site, _, tag, *_ = pending
    total = ops.zeros(spec.numel) if into is None else ops.flatten(into)

    def if_usual(ops: Kernels) -> Array | None:
        opened = open_usual(ops, gathered, layout_of(codec, spec), site.world_size, tag)
        return None if opened is None else codec.combine(ops, opened, spec, site, factor, total)

    result = ops.attempt(if_usual) if codec.fixed_size else None
    if result is not None:
        return result
    rows = split_rows(ops, gathered, codec, spec, site.world_size)
    payloads = [unpack(ops, unseal(ops, row, codec, spec, tag), codec, spec) for row in rows]

    def by_flags() -> Array:
        summed = ops.fill_zero(total)
        for payload in payloads:
            summed = add_payload(ops, codec, summed, payload, spec, site)
        return ops.scale(summed, factor, summed)

    flags = ops.concat([ops.reshape(payload.flag, (1,)) for payload in payloads])
    usual = ops.all(ops.equal(flags, NORMAL))
    return ops.branch(usual, lambda: codec.combine(ops, payloads, spec, site, factor, total), by_flags)
