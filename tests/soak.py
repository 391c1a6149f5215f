"""A long training in which whatever may change does: ``mpirun -np 2 python -m tests.soak --steps 20000 --seed 1``.

From one seed come codecs and their parameters, gradients that are missing on some ranks, overflows on one of them under
a loss scaler, and flushes. Every now and then, and at the end, all ranks must have the same parameters, bit for bit.
The last line is JSON.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import math
import os
import re
import sys
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import horovod.torch as hvd
import torch

from hvd_compress.parameters import parameters_of
from hvd_compress.registry import codec_class, codec_names
from hvd_compress.rules import policy_of
from hvd_compress.torch import Compressor
from tests.parallel.models import Tensors, wrap
from tests.parallel.models import parameters_of as bytes_of

SHAPES = {"first": (40, 50), "first_bias": (50,), "second": (64, 33), "second_bias": (7, 2), "third": (3, 17, 21)}

RECONFIGURE, FLUSH, RESCALE = 0.03, 0.02, 0.005
"""How often all ranks do something, by step."""

MISSING, OVERFLOW = 0.1, 0.01
"""How often one rank does, by step: for each tensor, and for one of them."""

SCALES = range(4, 17)
"""Exponents of the loss scale."""


WARM_UP = 500
"""Steps before memory is first looked at."""


class Configs:
    """Random configs of every registered codec that leaves momentum to the optimizer and goes with a loss scaler.

    Parameters
    ----------
    random : random.Random
        The same on every rank.

    Attributes
    ----------
    drawn : set of str
        Codecs that were drawn so far.
    """

    def __init__(self, random: Random) -> None:
        self._random = random
        self.drawn: set[str] = set()
        codecs = {name: codec_class(name)() for name in codec_names() if not codec_class(name).wrapper}
        self._names = [name for name, codec in codecs.items() if codec.keeps_scale and not codec.has_momentum]

    def draw(self) -> dict[str, Any]:
        """Return one config for all tensors, or one for some and one for the others."""
        if self._random.random() < 0.8:
            return self._codec()
        return {
            "rules": [{"name": self._random.choice(list(SHAPES)), "codec": self._codec()}],
            "default": self._codec(),
        }

    def _codec(self) -> dict[str, Any]:
        while True:
            config = {"name": self._random.choice(self._names)}
            for key, (parameter, declared) in parameters_of(codec_class(config["name"])).items():
                config[key] = self._value(key, parameter, declared.default)
            config |= {"min_elements": self._random.choice([0, 1024]), "min_ndim": self._random.choice([0, 2])}
            if self._random.random() < 0.8:
                config["error_feedback"] = self._random.random() < 0.5
            try:
                policy_of(config)
            except ValueError:
                # Not all parameters go together.
                continue
            self.drawn.add(config["name"])
            return config

    def _value(self, key: str, parameter: Any, default: Any) -> Any:
        if parameter.kind == "boolean":
            return self._random.random() < 0.5
        if parameter.kind == "string":
            return self._random.choice(re.findall("'([^']+)'", parameter.allowed))
        if key in ("density", "bits_per_entry"):
            return 10 ** self._random.uniform(-1.5, 0)
        if key in ("bits", "rebudget_steps"):
            return self._random.randint(2, 5)
        return default


class Soak:
    """The training on one rank.

    Parameters
    ----------
    seed : int
        The same on every rank.
    """

    def __init__(self, seed: int) -> None:
        self._shared, self._own = Random(seed), Random(f"{seed} {hvd.rank()}")
        self._noise = torch.Generator().manual_seed(self._own.getrandbits(60))
        self.configs = Configs(self._shared)
        self.config = self.configs.draw()
        self._scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=20)
        self._compression = Compressor(policy_of(self.config), grad_scaler=self._scaler)
        self._model = Tensors(SHAPES)
        self._optimizer = wrap(hvd, self._model, self._compression, lr=0.05)
        self.shared_counts = Counter(steps=0, reconfigurations=0, flushes=0, skipped_steps=0)
        self.own_counts = Counter(overflows=0, missing_gradients=0)

    def step(self) -> None:
        """Make one step, after whatever comes before it."""
        if self._shared.random() < RECONFIGURE:
            self.config = self.configs.draw()
            self._compression.reconfigure(self.config)
            self.shared_counts["reconfigurations"] += 1
        if self._shared.random() < FLUSH:
            self._compression.flush()
            self.shared_counts["flushes"] += 1
        self._optimizer.zero_grad()
        # The scaler's own multiplication, which also makes it ready for unscale_.
        scale = self._scaler.scale(torch.ones(())).item()
        self._model.push(self._gradients(), scale)
        self._optimizer.synchronize()
        self._scaler.unscale_(self._optimizer)
        with self._optimizer.skip_synchronize():
            self._scaler.step(self._optimizer)
        self._scaler.update()
        self.shared_counts["skipped_steps"] += self._scaler.get_scale() < scale
        if self._shared.random() < RESCALE:
            self._scaler.update(2.0 ** self._shared.choice(SCALES))
        self.shared_counts["steps"] += 1

    def _gradients(self) -> dict[str, torch.Tensor]:
        """Noise, and what draws the parameters to zero; of some tensors nothing at all."""
        gradients = {
            name: parameter.detach() * 0.1 + torch.randn(parameter.shape, generator=self._noise)
            for name, parameter in self._model.named_parameters()
            if self._own.random() >= MISSING
        }
        self.own_counts["missing_gradients"] += len(SHAPES) - len(gradients)
        if not gradients:
            return {"first": torch.zeros(SHAPES["first"])}
        if self._own.random() < OVERFLOW:
            values = self._own.choice(list(gradients.values())).view(-1)
            values[self._own.randrange(values.numel())] = self._own.choice([math.inf, -math.inf, math.nan])
            self.own_counts["overflows"] += 1
        return gradients

    def digest(self) -> str:
        """What must be the same on every rank; empty if a parameter is not finite."""
        if not all(bool(parameter.isfinite().all()) for parameter in self._model.parameters()):
            return ""
        content = (bytes_of(self._model), self._scaler.get_scale(), self._compression.stats().steps)
        return hashlib.sha256(repr(content).encode()).hexdigest()


def resources() -> dict[str, float]:
    """What this process holds: memory, open files and threads; the names have a place for when."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {
        "rss_{}_mib": round(pages * os.sysconf("SC_PAGE_SIZE") / 2**20, 1),
        "files_{}": len(os.listdir("/proc/self/fd")),
        "threads_{}": len(os.listdir("/proc/self/task")),
    }


def train(steps: int, seconds: float, seed: int, every: int) -> dict[str, Any]:
    """Train, and return what came of it, the same on every rank; resources are those of the rank that grew most."""
    soak, began, differences, start = Soak(seed), time.monotonic(), 0, resources()
    while True:
        soak.step()
        done = soak.shared_counts["steps"]
        if done == min(WARM_UP, steps // 2):
            start = resources()
        if done % every and done < steps:
            continue
        over = done >= steps or time.monotonic() - began > seconds
        digests = gathered((soak.digest(), over))
        if len({digest for digest, _ in digests}) > 1 or not digests[0][0]:
            differences += 1
            print(f"step {done}: ranks differ or are not finite, with {soak.config}", file=sys.stderr)
        # Only one rank's clock counts.
        if digests[0][1]:
            break
    end = resources()
    grown = max(gathered((start, end)), key=lambda pair: pair[1]["rss_{}_mib"] - pair[0]["rss_{}_mib"])
    counts = sum(gathered(soak.own_counts), Counter())
    held = [{key.format(when): pair[key] for key in pair} for when, pair in zip(("start", "end"), grown, strict=True)]
    return {
        **soak.shared_counts,
        **{name: counts[name] for name in soak.own_counts},
        "differences": differences,
        **held[0],
        **held[1],
        "seconds": round(time.monotonic() - began, 1),
        "codecs": sorted(soak.configs.drawn),
    }


def gathered(value: Any) -> list[Any]:
    """Every rank's value."""
    return list(hvd.allgather_object(value, name="tests.soak"))


def main(arguments: Sequence[str] | None = None) -> int:
    """Train on this rank; rank 0 prints. The status is 1 if ranks have differed."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=20_000, help="most steps to make (%(default)s)")
    parser.add_argument("--seconds", type=float, default=math.inf, help="most seconds to take (no limit)")
    parser.add_argument("--seed", type=int, default=1, help="of all that is random (%(default)s)")
    parser.add_argument("--every", type=int, default=100, help="steps between comparisons (%(default)s)")
    options = parser.parse_args(arguments)
    if options.steps < 1 or options.every < 1:
        parser.error("--steps and --every must be at least 1")
    # Codecs are drawn whether they pay for such small tensors or not.
    warnings.filterwarnings("ignore", ".*(than no compression would|whose size varies with the data)", UserWarning)
    hvd.init()
    result = train(options.steps, options.seconds, options.seed, options.every)
    if hvd.rank() == 0:
        print(json.dumps(result), flush=True)
    return int(result["differences"] > 0)


if __name__ == "__main__":
    sys.exit(main())
