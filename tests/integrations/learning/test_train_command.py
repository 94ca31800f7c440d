"""`kvferry train` and `kvferry evaluate` as they are called."""

import json
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from learnedrecords import decided, ended

from kvferry.integrations.cli.models_table import SHOWN_METRICS
from kvferry.integrations.log.record import DecisionRecord
from kvferry.models.residual.artifact import Artifact

pytest.importorskip("torch")
pytest.importorskip("sklearn")


@pytest.fixture(scope="module", autouse=True)
def quick() -> Iterator[None]:
    """A tenth of the work: how good models get is the matter of other tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kvferry.models.training.network.MAX_EPOCHS", 15)
        patch.setattr("kvferry.models.training.forest.TREES", 8)
        yield


@pytest.fixture(scope="module")
def many() -> list[DecisionRecord]:
    return [decided(n) for n in range(900)]


@pytest.fixture(scope="module")
def model(many, quick, tmp_path_factory) -> Path:  # type: ignore[no-untyped-def]
    """Trained by the command, once for all tests."""
    from kvferry.integrations.cli.app import app
    from kvferry.integrations.cli.errors import run
    from kvferry.integrations.log.codec import write_record

    folder = tmp_path_factory.mktemp("model")
    (folder / "log.jsonl").write_bytes(b"".join(write_record(each) + b"\n" for each in many))
    assert run(app, ["train", "--from", str(folder), "--out", str(folder / "out"), "--json"]) == 0
    return folder / "out"


def test_training_says_what_it_read_how_good_it_is_and_which_version_it_made(
    call, many, written, tmp_path
) -> None:  # type: ignore[no-untyped-def]
    log = written([*many[:500], *(ended(many[n], status="failed") for n in range(500, 507))])
    out = tmp_path / "m"
    code, shown, _ = call("train", "--from", str(log), "--out", str(out))
    artifact = Artifact.load(out)
    *lines, last = shown.splitlines()
    assert code == 0
    assert max(map(len, lines)) <= 80
    assert last.startswith(f"{artifact.version} (")
    assert "read 507 records, 500 to learn from" in shown
    assert "7  failed" in shown
    assert artifact.manifest.rows == {"train": 350, "calibrate": 75, "test": 75}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log.jsonl", "m"]


def test_a_trained_model_beats_what_it_was_trained_to_correct(call, many, model, written) -> None:  # type: ignore[no-untyped-def]
    code, shown, _ = call("evaluate", "--from", str(written(many)), "--model", str(model), "--json")
    told = json.loads(shown)
    assert code == 0
    assert told["version"] == Artifact.load(model).version
    assert (told["in_sample"], told["rows"]) == (False, 135)
    for name in ("ttft", "prefill", "queue"):
        assert told["terms"][name]["mdape"] < 0.7 * told["structured"][name]["mdape"]
    assert set(told["baselines"]) == {"moving_average", "linear_fit", "catalogue"}
    assert set(told["terms"]["ttft"]) == {
        *("mdape", "mae_s", "coverage_p50", "coverage_p90", "coverage_p99", "n"),
    }


def test_evaluation_is_told_in_tables_and_a_picture(call, many, model, written, tmp_path) -> None:  # type: ignore[no-untyped-def]
    plot = tmp_path / "model.png"
    code, shown, err = call(
        "evaluate", "--from", str(written(many)), "--model", str(model), "--plot", str(plot)
    )
    *lines, last = shown.splitlines()
    assert (code, err, last) == (0, "", f"plot written to {plot}")
    assert max(map(len, lines)) <= 80
    assert f"judged on: what came after {Artifact.load(model).version}'s training" in shown
    for word in ("median error", "live", "one line"[:3], "queue", "transfer", "under p50", "best baseline"):
        assert word in shown
    assert plot.read_bytes()[:4] == b"\x89PNG"


def test_a_log_that_the_model_has_seen_is_loudly_no_test(call, many, model, written) -> None:  # type: ignore[no-untyped-def]
    code, shown, _ = call("evaluate", "--from", str(written(many[:300])), "--model", str(model))
    assert code == 0
    assert "judged on: NOT held out: only 0 requests came after" in shown


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["train"], 2, "Missing option '--out'"),
        (["train", "--from", "{tmp}/nowhere", "--out", "{tmp}/m"], 1, "no such file or directory"),
        (["train", "--from", "{tmp}/few.jsonl", "--out", "{tmp}/m"], 1, "30 requests to learn from: 100 are"),
        (["train", "--from", "{tmp}/bad.jsonl", "--out", "{tmp}/m"], 1, "no readable record: 1 bad lines"),
        (["train", "--from", "{tmp}/empty.jsonl", "--out", "{tmp}/m"], 1, "the log is empty"),
        (["train", "--from", "{tmp}/old.jsonl", "--out", "{tmp}/m"], 1, "left out: 30 no_features"),
        (["train", "--from", "{tmp}/few.jsonl", "--out", "{tmp}"], 1, "holds other files (bad.jsonl)"),
        (["train", "--from", "{tmp}/few.jsonl", "--out", "{tmp}/few.jsonl"], 1, "it is a file"),
        (["evaluate", "--from", "{tmp}/old.jsonl"], 1, "only 0 requests can be judged"),
        (["evaluate", "--from", "{tmp}/few.jsonl", "--model", "m-1"], 2, "add --redis URL"),
        (["evaluate", "--from", "{tmp}/few.jsonl", "--model", "{tmp}"], 1, "model.json cannot be read"),
        (["evaluate", "--from", "{tmp}/few.jsonl", "--plot", "{tmp}/x.gif"], 2, "must end in .png"),
        (["evaluate", "--from", "{tmp}/few.jsonl", "--plot", "{tmp}/no/x.png"], 1, "is no folder"),
    ],
)
def test_what_goes_wrong_is_said_in_one_line(call, written, records, tmp_path, words, code, said) -> None:  # type: ignore[no-untyped-def]
    written(records[:30], "few.jsonl")
    written([msgspec.structs.replace(each, features=()) for each in records[:30]], "old.jsonl")
    (tmp_path / "bad.jsonl").write_text('{"schema":"other"}\n')
    (tmp_path / "empty.jsonl").touch()
    ended_with, out, err = call(*(word.format(tmp=tmp_path) for word in words))
    assert ended_with == code
    assert said in err
    assert err.count("\n") == 1
    assert len(out.splitlines()) <= 2
    assert not (tmp_path / "m").exists()


def test_only_a_model_is_ever_replaced_and_as_a_whole(call, many, written, tmp_path, model) -> None:  # type: ignore[no-untyped-def]
    out, log = tmp_path / "m", str(written(many[:200]))
    Artifact.load(model).save(out)
    before = (out / "model.json").read_bytes()
    (out / "model.json").write_bytes(before[:-40])
    code, _, err = call("train", "--from", log, "--out", str(out))
    assert code == 1
    assert "will not replace what is no model" in err
    (out / "model.json").write_bytes(before)
    (out / "notes.txt").write_text("mine")
    assert call("train", "--from", log, "--out", str(out))[0] == 1
    assert (out / "model.json").read_bytes() == before
    (out / "notes.txt").unlink()
    assert call("train", "--from", log, "--out", str(out))[0] == 0
    assert Artifact.load(out).version != Artifact.load(model).version
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log.jsonl", "m"]


def test_the_same_logs_and_seed_give_the_same_model_byte_for_byte(
    call, many, model, written, tmp_path
) -> None:  # type: ignore[no-untyped-def]
    first, second = written(many[:500], "b.jsonl"), written(many[400:][::-1], "a.jsonl")
    made = []
    for name, seed in (("same", "0"), ("other", "1")):
        words = ["--from", str(second), "--from", str(first), "--seed", seed, "--out", str(tmp_path / name)]
        assert call("train", *words)[0] == 0
        made.append({path.name: path.read_bytes() for path in (tmp_path / name).iterdir()})
    assert made[0] == {path.name: path.read_bytes() for path in model.iterdir()}
    assert made[1] != made[0]


def test_what_models_list_and_show_print_is_what_training_measures(model: Path) -> None:
    measured = Artifact.load(model).manifest.metrics["ttft"]
    assert set(SHOWN_METRICS) <= set(measured)


def test_a_version_is_looked_for_in_the_store_that_the_environment_names(call, written, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setenv("KVFERRY_REDIS", "redis://127.0.0.1:1")
    code, _, said = call("evaluate", "--from", str(written([])), "--model", "m-1")
    assert code == 1
    assert "127.0.0.1:1" in said
