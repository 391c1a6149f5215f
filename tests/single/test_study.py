"""Data, model, results and reports of the main job, without a launcher."""

from __future__ import annotations

import io
import itertools
import json
import math
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

from hvd_compress.study.config import TrainConfig
from hvd_compress.study.data import END, UNKNOWN, Vocabulary, columns, load_corpus, read_lines, words_of
from hvd_compress.study.errors import UsageError
from hvd_compress.study.progress import reporting
from hvd_compress.study.quickstart import main
from hvd_compress.study.quickstart_report import network_note, picture, table
from hvd_compress.study.results import CurvePoint, RunResult, StepTime, Traffic
from hvd_compress.study.torch_model import build_model


def test_words_are_lower_case_without_punctuation_and_end_with_eos() -> None:
    assert words_of("Know't, we: the LORD'S well-beloved (Selah)!") == [
        "know't", "we", "the", "lord's", "well-beloved", "selah", END,
    ]  # fmt: skip


def test_line_without_words_leaves_no_eos() -> None:
    assert words_of(" -- ... !") == []


def test_king_james_text_has_31103_lines_from_genesis_to_revelation() -> None:
    lines = read_lines()
    assert len(lines) == 31_103
    assert lines[0] == "In the beginning God created the heaven and the earth."
    assert lines[-1] == "The grace of our Lord Jesus Christ be with you all. Amen."


def test_corpus_is_split_90_5_5_by_position_with_a_vocabulary_of_10000_words() -> None:
    corpus = load_corpus()
    ends = [int((part == 1).sum()) for part in (corpus.train, corpus.validation, corpus.test)]
    assert ends == [27_991, 1_555, 1_556]
    assert len(corpus.vocabulary) == 10_000
    assert int(corpus.train.max()) == 9_999
    first = [corpus.vocabulary.words[i] for i in corpus.train[:4]]
    assert first == ["in", "the", "beginning", "god"]


def test_vocabulary_keeps_the_most_frequent_words_and_the_alphabet_breaks_ties() -> None:
    lines = [["b", "c", "a", END], ["c", END]]
    vocabulary = Vocabulary.of(lines, size=4)
    assert vocabulary.words == (UNKNOWN, END, "c", "a")
    assert vocabulary.encode(lines).tolist() == [0, 2, 3, 1, 2, 1]


def test_vocabulary_does_not_see_validation_and_test(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("one two\n" * 18 + "three\nfour\n", encoding="utf-8")
    corpus = load_corpus(path)
    assert corpus.vocabulary.words == (UNKNOWN, END, "one", "two")
    assert (corpus.validation.tolist(), corpus.test.tolist()) == ([0, 1], [0, 1])


@pytest.mark.parametrize(
    ("content", "says"),
    [(None, "cannot read the data file"), (b"\xff\xfe\x00", "is not UTF-8 text"), (b"a\nb\n", "only 2 lines")],
)
def test_unusable_data_file_is_named_in_one_sentence(tmp_path: Path, content: bytes | None, says: str) -> None:
    path = tmp_path / "text.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError, match=says) as caught:
        load_corpus(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_columns_of_all_ranks_side_by_side_are_the_columns_of_one_rank(workers: int) -> None:
    tokens = np.arange(103)
    shares = [columns(tokens, 8, rank=rank, workers=workers) for rank in range(workers)]
    np.testing.assert_array_equal(np.concatenate(shares, axis=1), columns(tokens, 8))
    assert columns(tokens, 8)[:, 1].tolist() == list(range(12, 24))


@pytest.mark.parametrize(("size", "count"), [("small", 1_161_600), ("medium", 4_444_800), ("large", 9_008_000)])
def test_model_has_the_parameters_of_the_reference_study(size: str, count: int) -> None:
    assert sum(p.numel() for p in build_model(size, 10_000).parameters()) == count


def test_model_carries_its_state_over_a_cut() -> None:
    torch.manual_seed(0)
    model = build_model("small", 50)
    words = torch.randint(50, (6, 3))
    whole, _ = model(words, model.initial_state(3))
    first, state = model(words[:4], model.initial_state(3))
    second, _ = model(words[4:], state)
    torch.testing.assert_close(torch.cat([first, second]), whole)


def test_unknown_size_names_the_sizes() -> None:
    with pytest.raises(UsageError, match="small, medium, large, got 'huge'"):
        build_model("huge", 10)


@pytest.mark.parametrize(
    "wrong",
    [
        {"steps": 0},
        {"batch_size": 0},
        {"learning_rate": 0.0},
        {"clip": math.inf},
        {"dropout": 1.0},
        {"decay": 1.5},
        {"resume": True},
    ],
)
def test_setting_out_of_range_is_refused_by_name(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError, match=next(iter(wrong))):
        TrainConfig(**wrong)  # type: ignore[arg-type]


def test_learning_rate_falls_to_zero_over_the_last_share_of_the_steps() -> None:
    config = TrainConfig(steps=8, learning_rate=4.0, decay=0.5)
    assert [config.learning_rate_of(step) for step in range(8)] == [4.0, 4.0, 4.0, 4.0, 4.0, 3.0, 2.0, 1.0]
    assert replace(config, decay=0.0).learning_rate_of(7) == 4.0


def test_steps_belong_to_the_trajectory_only_where_the_learning_rate_depends_on_them() -> None:
    for decay, same in ((0.5, False), (0.0, True)):
        config = TrainConfig(decay=decay)
        assert (replace(config, steps=9).trajectory() == config.trajectory()) is same


def test_trajectory_ignores_what_does_not_change_the_parameters() -> None:
    config = TrainConfig()
    assert replace(config, out=Path("x"), evaluate_every=3).trajectory() == config.trajectory()
    assert replace(config, seed=1).trajectory() != config.trajectory()


def result(sent: int, gathered: int, crc: tuple[int, ...] = (7, 7)) -> RunResult:
    return RunResult(
        config=TrainConfig(data=Path("a.txt")).as_dict(),
        workers=2,
        parameters=1000,
        curve=(CurvePoint(5, 5 * sent, 6.0, 300.0), CurvePoint(10, 10 * sent, 5.0, 200.0)),
        test_perplexity=190.5,
        traffic=Traffic(4000, sent, 3600, gathered, gathered),
        milliseconds=StepTime(step=80.0, encode=3.0, wait=20.0, decode=1.0),
        seconds=12.0,
        parameter_crc32=crc,
    )


def test_result_survives_json(tmp_path: Path) -> None:
    run = result(450, 50)
    path = run.save(tmp_path)
    assert RunResult.load(tmp_path) == run
    values = json.loads(path.read_text(encoding="utf-8"))
    assert values["traffic"]["compressed_ratio"] == 72.0
    assert values["parameters_equal"] is True
    assert [p.name for p in path.parent.iterdir()] == ["result.json"]


def test_one_differing_rank_is_reported() -> None:
    assert not result(450, 50, crc=(7, 7, 8)).parameters_equal


def test_wire_bytes_follow_ring_allreduce_and_allgather() -> None:
    traffic = Traffic(4000, 450, 3600, 50, 50)
    assert traffic.wire_bytes(2) == 400 + 50
    assert traffic.wire_bytes(4) == 1.5 * 400 + 3 * 50


def test_time_at_bandwidth_replaces_the_wait_by_the_transfer() -> None:
    assert StepTime(step=80.0, encode=3.0, wait=20.0, decode=1.0).at_bandwidth(1_000_000) == pytest.approx(68.0)


def test_table_has_a_column_for_each_method_and_fits_a_narrow_terminal() -> None:
    console = Console(width=80, file=io.StringIO(), record=True)
    console.print(table({"dense": result(4000, 0), "topk": result(450, 50)}))
    lines = console.export_text().splitlines()
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in lines if line.startswith("│")]
    assert cells == [
        ["parameters", "1,000", "1,000"],
        ["test perplexity", "190.50", "190.50"],
        ["bytes a step and worker", "4,000", "450"],
        ["compression ratio, all gradients", "1.0", "8.9"],
        ["compression ratio, compressed gradients", "1.0", "72.0"],
        ["encode ms", "3.0", "3.0"],
        ["wait ms", "20.0", "20.0"],
        ["decode ms", "1.0", "1.0"],
        ["step ms", "80.0", "80.0"],
    ]


def test_network_note_adds_the_transfer_at_one_gigabit_to_the_step_without_its_wait() -> None:
    # 125,000 bytes take a millisecond; two workers all-reduce a buffer by sending it once.
    results = {"dense": result(1_250_000, 0), "topk": result(125_000, 125_000)}
    assert "70 ms with dense, 61 ms with topk" in network_note(results)


def test_picture_is_written_as_png(tmp_path: Path) -> None:
    image = picture({"dense": result(4000, 0), "topk": result(450, 50)}, tmp_path / "picture.png").read_bytes()
    assert image.startswith(b"\x89PNG")


def test_run_without_compression_has_ratio_one() -> None:
    assert result(4000, 0).traffic.compressed_ratio == 1.0
    assert Traffic(0, 0, 0, 0, 0).compression_ratio == 1.0


def test_pipe_gets_a_line_now_and_then_and_no_bar(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = itertools.count(step=4.0)
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    with reporting("topk", total=12, done=2) as reporter:
        for step in range(3, 13):
            reporter.advance(step, f"loss {step}")
    assert capsys.readouterr().out.splitlines() == [
        "topk: step 5/12, 0:00:28 left, loss 5",
        "topk: step 8/12, 0:00:16 left, loss 8",
        "topk: step 11/12, 0:00:04 left, loss 11",
        "topk: step 12/12, 0:00:00 left, loss 12",
    ]


def test_ranks_that_are_to_be_silent_print_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with reporting("topk", total=1, silent=True) as reporter:
        reporter.advance(1, "loss 1")
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    "wrong",
    [
        ["--workers", "1"],
        ["--methods", "nosuch"],
        ["--steps", "0"],
        ["--steps", "many"],
        ["--framework", "jax"],
        ["--nosuch"],
    ],
)
def test_quickstart_ends_with_status_2_on_wrong_usage(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(Path("scripts"), wrong)
    assert ended.value.code == 2
    assert "error: " in capsys.readouterr().err


def test_quickstart_says_that_its_folder_cannot_be_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert main(Path("scripts"), ["--out", str(tmp_path / "file" / "deeper")]) == 2
    assert "cannot make the folder" in capsys.readouterr().err
