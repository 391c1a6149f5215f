"""Show every codec: parameters, defaults, allowed values, how payloads are combined, where it was published."""

from __future__ import annotations

import argparse
import inspect
import json
from dataclasses import MISSING
from typing import TYPE_CHECKING, Any

from hvd_compress.cli.output import add_json_option, console, print_json
from hvd_compress.codec import Codec
from hvd_compress.codecs.none import Dense
from hvd_compress.parameters import Parameter, parameters_of
from hvd_compress.policy import wrapper_defaults, wrapper_parameters
from hvd_compress.registry import codec_class, codec_names

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["add_arguments", "describe", "run"]

FEEDBACK = {"refused": "refused", "optional": "off by default", "usual": "on by default", "required": "always on"}
_NOTE = (
    "Reduction, payload size, bias and error feedback are those of the default parameters; others may differ. "
    "For hvd_compress.torch.Compression, none and fp16 are Horovod's own."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``list``."""
    add_json_option(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the listing."""
    facts = describe()
    if arguments.json:
        print_json(facts)
    else:
        _print(facts)
    return 0


def describe() -> dict[str, Any]:
    """Describe the registered codecs, and the parameters that every one of them takes beside its own.

    Returns
    -------
    dict
        ``codecs`` and ``wrappers``, JSON-ready. The wrappers' `error_feedback` has the default None: each codec has its
        own, among its ``with_defaults``.
    """
    classes = [codec_class(name) for name in codec_names()]
    return {
        "codecs": [_codec(cls) for cls in classes if not cls.wrapper],
        "wrappers": _wrappers({cls.name: cls for cls in classes if cls.wrapper}),
    }


def _codec(cls: type[Codec]) -> dict[str, Any]:
    codec = cls()
    return {
        "name": cls.name,
        "summary": _summary(cls),
        "paper": cls.paper,
        "with_defaults": {
            "reduction": codec.reduction.name.lower(),
            "fixed_size": codec.fixed_size,
            "unbiased": codec.unbiased,
            "error_feedback": codec.feedback.name.lower(),
        },
        "parameters": [
            _parameter(name, parameter, declared.default) for name, (parameter, declared) in parameters_of(cls).items()
        ],
    }


def _wrappers(classes: dict[str, type[Codec]]) -> list[dict[str, Any]]:
    # Whether there is error feedback by default is the codec's choice.
    defaults = {**wrapper_defaults(Dense()), "error_feedback": None}
    return [
        {
            **_parameter(name, parameter, defaults[name]),
            "paper": classes[name].paper if name in classes else None,
        }
        for name, parameter in wrapper_parameters().items()
    ]


def _parameter(name: str, parameter: Parameter, default: Any) -> dict[str, Any]:
    return {
        "name": name,
        "kind": parameter.kind,
        "default": None if default is MISSING else default,
        "allowed": parameter.allowed,
        "meaning": parameter.meaning,
    }


def _summary(cls: type[Codec]) -> str:
    return (inspect.getdoc(cls) or "").partition("\n")[0]


def _print(facts: dict[str, Any]) -> None:
    out = console()
    out.print(_codec_table(facts["codecs"]))
    out.print(_NOTE, end="\n\n")
    for codec in facts["codecs"]:
        out.print(f"{codec['name']}: {codec['summary']}")
        out.print(f"Published: {codec['paper']}.")
        out.print(_parameter_table(codec["parameters"]) if codec["parameters"] else "No parameters of its own.")
        out.print()
    out.print("Every codec also takes the parameters of the wrappers around it:")
    out.print(_parameter_table(facts["wrappers"], unset="by codec"))
    for wrapper in facts["wrappers"]:
        if wrapper["paper"]:
            out.print(f"Published: {wrapper['name']}: {wrapper['paper']}.")


def _codec_table(codecs: list[dict[str, Any]]) -> Table:
    table = _table("codec", "reduction", "payload size", "unbiased", "error feedback")
    for codec in codecs:
        traits = codec["with_defaults"]
        size = "fixed" if traits["fixed_size"] else "varies"
        unbiased = "yes" if traits["unbiased"] else "no"
        feedback = FEEDBACK[traits["error_feedback"]]
        table.add_row(codec["name"], traits["reduction"], size, unbiased, feedback)
    return table


def _parameter_table(parameters: list[dict[str, Any]], unset: str = "null") -> Table:
    table = _table("parameter", "default", "allowed", "meaning")
    for parameter in parameters:
        default = unset if parameter["default"] is None else json.dumps(parameter["default"])
        table.add_row(parameter["name"], default, parameter["allowed"], parameter["meaning"])
    return table


def _table(*columns: str) -> Table:
    from rich import box
    from rich.table import Table

    # ASCII, so that it can be read wherever a pipe ends.
    table = Table(box=box.ASCII2, show_lines=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table
