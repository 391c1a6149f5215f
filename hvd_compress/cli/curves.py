"""A plot of what codecs lose against the size of their payloads."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from pathlib import Path

from hvd_compress.cli.comparison import Choice
from hvd_compress.cli.tensors import CommandFailed, naming

__all__ = ["check_plot", "draw_curves"]

_MARKERS = "os^vDP*X<>ph"


def check_plot(path: Path) -> None:
    """Raise `CommandFailed` if no plot can be drawn into such a file: before the work that it is to show."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
    except ModuleNotFoundError as error:
        raise CommandFailed("plots need matplotlib: pip install matplotlib") from error
    known = FigureCanvasAgg.get_supported_filetypes()
    if path.suffix[1:] not in known:
        raise CommandFailed(f"--plot: {path} must end in one of .{', .'.join(sorted(known))}", status=2)
    with naming(path):
        missing = not path.exists()
        path.open("ab").close()
        if missing:
            path.unlink()


def draw_curves(path: Path, choices: Sequence[Choice], title: str) -> None:
    """Draw relative error against bytes, a line for each method through all its choices; equal ones share it."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    lines: dict[frozenset[str], list[str]] = {}
    points: dict[str, list[tuple[int, float]]] = {}
    for method in dict.fromkeys(choice.method for choice in choices):
        points[method] = sorted({(c.measured.nbytes, c.measured.relative_error) for c in choices if c.method == method})
        lines.setdefault(frozenset(f"{x:.2g} {y:.2g}" for x, y in points[method]), []).append(method)
    for methods, marker in zip(lines.values(), cycle(_MARKERS), strict=False):
        axes.plot(*zip(*points[methods[0]], strict=True), marker=marker, label="\n".join(methods), markersize=5)
    axes.set_xscale("log")
    # Linear near zero, where what is sent whole belongs.
    axes.set_yscale("symlog", linthresh=1e-4)
    axes.set_ylim(bottom=0)
    axes.set(xlabel="payload, bytes", ylabel="relative error, ||x - C(x)||² / ||x||²", title=title)
    axes.grid(True, alpha=0.3)
    figure.legend(loc="outside right center", fontsize="small")
    with naming(path):
        figure.savefig(path, dpi=120)
