"""Order and memory where torch tensors of a GPU meet several streams.

A gradient is encoded on the stream that made it, Horovod sends the payload on a stream of its own, and what comes back
is decoded on the stream of whoever waits for it. Horovod reads a tensor after all that was on the current stream when
it got it. PyTorch hands the memory of a tensor that nobody holds any more to the next one of the stream that it was
made on, unless it was told of the others. In a host's memory nothing of this is needed, and nothing is done.
"""

from __future__ import annotations

import torch

__all__ = ["arrived", "continue_after", "mark", "used_here"]


def mark(tensor: torch.Tensor) -> torch.cuda.Event | None:
    """Event after which all that the current stream has for this tensor is done."""
    if not tensor.is_cuda:
        return None
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(tensor.device))
    return event


def continue_after(event: torch.cuda.Event | None, tensor: torch.Tensor) -> None:
    """Have the current stream go on after an event of `mark`; it may be another stream than then, of another thread."""
    if event is not None:
        torch.cuda.current_stream(tensor.device).wait_event(event)


def used_here(*tensors: torch.Tensor) -> None:
    """Keep the memory of tensors that were made on other streams until the current one is done with them."""
    for tensor in tensors:
        if tensor.is_cuda:
            tensor.record_stream(torch.cuda.current_stream(tensor.device))


def arrived(tensor: torch.Tensor) -> None:
    """Have the current stream take over what Horovod has filled, or will have filled.

    Horovod makes room for it on the default stream. With HOROVOD_ENABLE_ASYNC_COMPLETION it does not wait until it is
    filled, but has the default stream wait.
    """
    if not tensor.is_cuda:
        return
    current, default = torch.cuda.current_stream(tensor.device), torch.cuda.default_stream(tensor.device)
    if current != default:
        current.wait_stream(default)
    tensor.record_stream(current)
