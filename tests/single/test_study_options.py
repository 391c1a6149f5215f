"""What a study consists of: methods, presets, options, and when its trials end."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest

from hvd_compress.cli.commands import main
from hvd_compress.payload import TensorSpec
from hvd_compress.policy import compose_config
from hvd_compress.registry import codec_class, codec_names
from hvd_compress.study import driver
from hvd_compress.study.cells import FINAL, SEARCH, Cell, Place
from hvd_compress.study.errors import UsageError
from hvd_compress.study.methods import EQUAL_BYTES, codec_of, compression_of, payload_nbytes, searches_momentum
from hvd_compress.study.options import Options
from hvd_compress.study.presets import MODELS, PRESETS
from hvd_compress.study.records import Record
from hvd_compress.study.schedule import search_space
from hvd_compress.study.stopping import EarlyStopping

SPECS = {
    name: TensorSpec(shape, "float32")
    for name, shape in {"embedding": (10_000, 100), "hidden": (400, 100), "bias": (400,), "small": (10, 10)}.items()
}
COMPRESSED = 4 * (1_000_000 + 40_000)
CODECS = [name for name in codec_names() if not codec_class(name).wrapper]
EVERYTHING = [(preset, task) for preset, tasks in PRESETS.items() for task in tasks]


def options(preset: str = "laptop", task: str = "lm", **asked: object) -> Options:
    return Options(task, preset, "sqlite:///study.db", **asked)  # type: ignore[arg-type]


@pytest.mark.parametrize("ratio", EQUAL_BYTES)
@pytest.mark.parametrize("method", ["topk", "dgc", "topk_qsgd", "jointsq"])
def test_methods_at_a_ratio_send_the_same_bytes(method: str, ratio: str) -> None:
    target = COMPRESSED / float(ratio[:-1])
    sent = payload_nbytes(compression_of(method, ratio, {"momentum": 0.5}, SPECS), SPECS)
    assert sent == pytest.approx(target, rel=0.01)
    assert sent <= target


def test_settings_of_qsgd_are_the_levels_that_were_counted_as_these_bits() -> None:
    above_zero = {
        bits: compose_config(compression_of("qsgd", bits, {}, {})).codec.s for bits in ("7bit", "5bit", "3bit")
    }
    assert above_zero == {"7bit": 64 - 1, "5bit": 16 - 1, "3bit": 4 - 1}
    smallest = payload_nbytes(compression_of("qsgd", "smallest", {}, {}), SPECS)
    assert COMPRESSED / smallest == pytest.approx(15.5, abs=0.05)


@pytest.mark.parametrize(("preset", "task"), EVERYTHING)
def test_every_cell_of_a_preset_can_be_trained(preset: str, task: str) -> None:
    study = options(preset, task)
    for workers in study.worker_counts():
        for cell in study.cells("data", workers):
            assert cell.model in MODELS[task]
            compression = compression_of(cell.method, cell.setting, {"momentum": 0.5}, SPECS)
            assert compression == "none" or compose_config(compression).codec is not None
    for name, value in study.plan.start.items():
        assert study.plan.space[name].low <= value <= study.plan.space[name].high


@pytest.mark.parametrize(("preset", "task"), EVERYTHING)
def test_every_model_of_a_preset_is_trained_without_compression_too(preset: str, task: str) -> None:
    study = options(preset, task)
    for workers in study.worker_counts():
        cells = study.cells("data", workers)
        assert len(set(cells)) == len(cells)
        dense = {cell.model for cell in cells if cell.method == "none"}
        assert dense == {cell.model for cell in cells}


def test_paper_is_the_grid_of_the_first_study() -> None:
    study = options("paper")
    pairs = {
        (cell.model, cell.workers)
        for workers in study.worker_counts()
        for cell in study.cells("ptb", workers)
        if (cell.method, cell.setting) == ("topk", "0.0001")
    }
    sizes = {("lstm-small", 1), ("lstm-small", 2), ("lstm-large", 1)}
    assert pairs == sizes | {("lstm-medium", workers) for workers in (1, 2, 4)}
    assert (study.plan.trials, study.plan.looks, study.plan.patience, study.plan.batch_size) == (60, 50, 10, 256)


@pytest.mark.parametrize(("preset", "task"), [pair for pair in EVERYTHING if pair[0] == "laptop"])
def test_laptop_compares_at_equal_bytes_with_three_seeds(preset: str, task: str) -> None:
    study = options(preset, task)
    assert study.plan.seeds == 3
    cells = study.cells("data", 2)
    for ratio in ("100x", "1000x"):
        compared = {cell.method for cell in cells if cell.setting == ratio}
        assert {"jointsq", "topk", "dgc", "topk_qsgd"} <= compared


def test_models_and_workers_replace_the_presets_and_methods_choose_among_them() -> None:
    study = options(models=("lstm-large",), workers=(5,), methods=("none", "dgc"))
    assert study.worker_counts() == [5]
    cells = study.cells("kjv", 5)
    assert {cell.model for cell in cells} == {"lstm-large"}
    assert {cell.method for cell in cells} == {"none", "dgc"}


CONFIGS = ("powersgd:rank=2,min_rate=1", "onebit", "topk:density=0.05", "dgc:momentum=0.9")


def test_configs_are_cells_where_the_first_methods_of_the_preset_are() -> None:
    study = options("smoke", methods=("none", "dgc", *CONFIGS))
    asked = [(cell.model, cell.method, cell.setting) for cell in study.cells("kjv", 2)]
    assert asked == [
        ("lstm-small", "none", ""),
        ("transformer", "none", ""),
        ("transformer", "dgc", "0.01"),
        ("lstm-small", "powersgd", "rank=2,min_rate=1"),
        ("lstm-small", "onebit", ""),
        ("lstm-small", "topk", "density=0.05"),
        ("lstm-small", "dgc", "momentum=0.9"),
    ]
    assert [(cell.model, cell.method) for cell in study.cells("kjv", 1)] == [("lstm-small", "none")]
    elsewhere = options("smoke", models=("lstm-large",), workers=(4,), methods=("onebit",)).cells("kjv", 4)
    assert [(cell.model, cell.workers, cell.method) for cell in elsewhere] == [("lstm-large", 4, "onebit")]


def test_a_config_is_trained_as_it_was_given() -> None:
    study = options("smoke", methods=CONFIGS)
    given = [compression_of(cell.method, cell.setting, {"momentum": 0.5}, SPECS) for cell in study.cells("kjv", 2)]
    assert tuple(given) == CONFIGS


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize(("preset", "task"), [("smoke", "vision"), ("laptop", "lm")])
def test_every_codec_can_be_studied_with_its_defaults(preset: str, task: str, name: str) -> None:
    study = options(preset, task, methods=(name,))
    cells = [cell for workers in study.worker_counts() for cell in study.cells("data", workers)]
    assert {cell.method for cell in cells} == {name}
    for cell in cells:
        momentum = {"momentum": 0.5} if searches_momentum(name, cell.setting) else {}
        compression = compression_of(name, cell.setting, momentum, SPECS)
        assert compose_config(compression).codec.has_momentum is codec_of(name, cell.setting).has_momentum


@pytest.mark.parametrize(
    ("method", "setting", "searched", "optimizers"),
    [
        ("dgc", "0.01", True, False),
        ("dgc", "", True, False),
        ("dgc", "density=0.01", True, False),
        ("dgc", "momentum=0.9", False, False),
        ("signsgd", "momentum=0.9", False, False),
        ("signsgd", "", False, True),
        ("topk", "feedback=ef21", False, True),
        ("none", "", False, True),
    ],
)
def test_momentum_is_the_codecs_or_the_optimizers(method: str, setting: str, searched: bool, optimizers: bool) -> None:
    plan = PRESETS["smoke"]["vision"]
    space = search_space(plan, Cell("smoke", "vision", "resnet20", "digits", 2, method, setting))
    assert ("momentum" in space) is searched is searches_momentum(method, setting)
    assert codec_of(method, setting).has_momentum is not optimizers


@pytest.mark.parametrize(("preset", "task"), EVERYTHING)
def test_learning_rates_suit_signs_which_are_clipped(preset: str, task: str) -> None:
    plan = PRESETS[preset][task]
    rates = search_space(plan, Cell(preset, task, "model", "data", 2, "signsgd", ""))["learning_rate"]
    smallest, largest = {"lm": (1e6, 1e7), "vision": (1e5, 1e6)}[task]
    # A step of the optimizer's momentum goes on in those that follow.
    each = plan.clip / (1 - plan.momentum)
    low, high = rates.low * each / math.sqrt(largest), rates.high * each / math.sqrt(smallest)
    assert low < 1e-3
    assert 1e-3 < high < 2e-2


@pytest.mark.parametrize("given", [CONFIGS, (",".join(CONFIGS),), (",".join(CONFIGS[:2]), *CONFIGS[2:])])
def test_methods_are_given_with_commas_or_spaces(
    given: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Options] = []

    def note(study: Options, out: Path) -> list[Record]:
        asked.append(study)
        return []

    monkeypatch.setattr(driver, "run_study", note)
    assert main(["study", "lm", "--methods", *given, "--preset", "smoke", "--out", str(tmp_path)]) == 0
    assert asked[0].methods == CONFIGS


def test_options_survive_json() -> None:
    study = options(models=("transformer",), workers=(1, 2), trials=3)
    assert Options.from_json(study.as_json()) == study


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"models": ("resnet20",)}, "models must be some of lstm-small, .* got 'resnet20'"),
        ({"methods": ("nosuch",)}, "methods must be some of none, .*or configs.*, powersgd, .*; got 'nosuch'"),
        ({"methods": ("none", "nosuch:rank=1")}, "methods must be some of .* got 'nosuch:rank=1'"),
        ({"methods": ("error_feedback",)}, "methods must be some of .* got 'error_feedback'"),
        ({"methods": ("topk:density=2",)}, r"methods: .*density must be a number in \(0, 1\], got 2"),
        ({"methods": ("powersgd:rnak=2",)}, "methods: .*no parameter 'rnak'.*allowed: rank"),
        ({"methods": ("topk:0.01",)}, "methods: .*got 'topk:0.01'"),
        ({"workers": (3,)}, "workers must divide the batch of 10, got 3"),
        ({"workers": (0,)}, "workers must be at least 1, got 0"),
        ({"trials": 0}, "trials must be at least 1, got 0"),
        ({"seeds": -1}, "seeds must be at least 0, got -1"),
    ],
)
def test_wrong_options_are_refused_by_name(wrong: dict[str, object], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        options(**wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        [],
        ["lm", "--preset", "huge", "--out", "{out}"],
        ["vision", "--preset", "smoke", "--out", "{out}", "--workers", "two"],
        ["vision", "--preset", "smoke", "--out", "{out}", "--models", "lstm-small"],
        ["vision", "--preset", "smoke", "--out", "{out}", "--data", "{out}/nosuch"],
        ["lm", "--preset", "smoke", "--out", "{out}", "--data", "{out}/nosuch"],
        ["lm", "--preset", "smoke", "--out", "{out}", "--methods", "none,nosuch"],
        ["lm", "--preset", "smoke", "--out", "{out}", "--storage", "nosuch://"],
        ["lm", "--preset", "smoke", "--out", "/dev/null/x"],
    ],
)
def test_wrong_usage_ends_with_status_2(wrong: list[str], tmp_path: object, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["study", *(word.format(out=tmp_path) for word in wrong)]
    try:
        status = main(arguments)
    except SystemExit as ended:
        status = int(ended.code or 0)
    assert status == 2
    said = capsys.readouterr().err
    assert "error: " in said
    assert "Traceback" not in said


def test_draws_are_the_same_for_all_methods_and_others_for_all_else() -> None:
    cell = Cell("laptop", "lm", "lstm-small", "kjv", 2, "topk", "0.01")
    place = Place(SEARCH, 3)
    assert place.draw_seed(cell) == place.draw_seed(dataclasses.replace(cell, method="dgc", setting="0.001"))
    others = [place.draw_seed(dataclasses.replace(cell, workers=1)), Place(SEARCH, 4).draw_seed(cell)]
    assert len({place.draw_seed(cell), *others}) == 3


def test_final_trials_have_seeds_that_the_search_has_not_seen() -> None:
    assert {Place(SEARCH, number).seed for number in range(5)} == {0}
    assert [Place(FINAL, number).seed for number in range(3)] == [1, 2, 3]


def test_early_stopping_counts_a_streak_and_not_all_looks_that_were_worse() -> None:
    stopping = EarlyStopping("maximize", patience=2)
    course = []
    for score in (0.5, 0.4, 0.6, 0.5, 0.7, 0.7, 0.1):
        stopping.improves(score)
        course.append(stopping.ended)
    assert course == [False] * 6 + [True]
    assert stopping.best == 0.7
    assert math.isnan(EarlyStopping("minimize", patience=1).best)


def test_learning_rate_is_a_tenth_after_each_milestone() -> None:
    plan = PRESETS["paper"]["vision"]
    shares = [plan.learning_rate_share(epoch / 100) for epoch in (0, 29, 30, 60, 99)]
    assert shares == pytest.approx([1, 1, 0.1, 0.01, 0.01])
