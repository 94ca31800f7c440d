"""`kvferry logs` as it is called."""

import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import typer

from kvferry.integrations.cli import logs
from kvferry.integrations.cli.errors import run
from kvferry.integrations.log.codec import read_record, write_record
from kvferry.integrations.log.record import DecisionRecord, Stages
from kvferry.policy.decision import Reason


@pytest.fixture
def call(capsys, monkeypatch, tmp_path):  # type: ignore[no-untyped-def]
    monkeypatch.setenv("KVFERRY_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("COLUMNS", "80")

    def invoke(*arguments: str) -> tuple[int, str, str]:
        app = typer.Typer()
        app.callback()(lambda: None)
        logs.register(app)
        code = run(app, ["logs", *arguments])
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return invoke


def test_tail_prints_a_line_per_request_in_80_columns(call, log_file, samples) -> None:
    code, out, err = call("tail", "--once", "-n", "7", "--from", str(log_file))
    lines = out.splitlines()
    assert (code, err) == (0, "")
    assert len(lines) == 8
    assert max(map(len, lines)) <= 80
    for line, record in zip(lines[1:], samples[-7:], strict=True):
        assert record.id[:8] in line
        assert f" {record.request.prompt_tokens} " in line
    assert "rescued" in out
    assert "failed" in out


def test_tail_json_is_one_object(call, log_file, samples) -> None:
    code, out, _ = call("tail", "--json", "-n", "3", "--from", str(log_file))
    records = json.loads(out)["records"]
    assert code == 0
    assert [read_record(json.dumps(record)) for record in records] == samples[-3:]


def test_explain_shows_every_candidate_term_reason_and_outcome(call, log_file, samples) -> None:
    record = next(r for r in samples if r.chosen.mode == "split" and r.outcome.status == "ok")
    code, out, _ = call("explain", record.id, "--from", str(log_file))
    flat = " ".join(out.split())
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80
    for term in (
        "queue",
        "prefill",
        "transfer",
        "repack",
        "admission",
        "TTFT",
        "ITL",
        "harm",
        "score",
        "moved",
    ):
        assert term in flat
    for plan, reason in record.reasons_against.items():
        assert plan in flat
        assert reason in flat
    assert record.reason in flat
    assert f"outcome {record.outcome.status}" in flat
    assert "predicted" in flat


def test_explain_sets_measured_stages_beside_predicted_ones(call, log_file, samples) -> None:
    record = next(r for r in samples if r.outcome.moved)
    code, out, _ = call("explain", record.id, "--from", str(log_file))
    rows = {words[0]: words for line in out.splitlines() if (words := line.split())}
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80
    assert {"predicted", "measured"} <= set(rows["stage"])
    # queue: bootstrap 3 ms and queue 11 ms; admission: alloc 1 ms and decode queue 0.5 ms
    assert "14.0ms bootstrap 3.0ms, queue 11.0ms" in " ".join(rows["queue"])
    assert "1.5ms alloc 1.0ms, decode queue 500us" in " ".join(rows["admission"])
    assert "100%" in rows["sum"]
    flat = " ".join(out.split())
    assert "mooncake: chunks 1, calls 1; waited 1.0ms" in flat
    assert "found by the request on the prefill worker: 2 waiting, 4096 used tokens" in flat
    assert "retractions: 1" in flat


def test_explain_says_what_was_not_measured_and_why(tmp_path, call, samples) -> None:
    record = next(r for r in samples if r.outcome.moved)
    p, d = record.chosen.prefill, record.chosen.decode
    bare = msgspec.structs.replace(
        record.outcome, stages=Stages(queue_s=0.01), moved_bytes=None, descriptors=None, moved=None,
        missing={p: "no_plugin", d: "no_record"},
    )  # fmt: skip
    path = tmp_path / "x.jsonl"
    path.write_bytes(write_record(msgspec.structs.replace(record, outcome=bare)))
    _, out, _ = call("explain", record.id, "--from", str(path))
    flat = " ".join(out.split())
    assert f"no plugin on {p}: bootstrap, prefill, transfer, bytes moved, descriptors not known" in flat
    assert f"no record came in time from {d}: alloc, decode queue, decode not known" in flat


def test_explain_of_a_rescued_request_compares_nothing(tmp_path, call, samples) -> None:
    rescued = samples[3]
    outcome = msgspec.structs.replace(rescued.outcome, stages=Stages(prefill_s=0.5))
    path = tmp_path / "x.jsonl"
    path.write_bytes(write_record(msgspec.structs.replace(rescued, outcome=outcome)))
    _, out, _ = call("explain", rescued.id, "--from", str(path))
    measured = out[out.index("predicted p50 / p90") :].splitlines()
    assert ["prefill", "500ms"] in [line.split() for line in measured]


def test_explain_names_a_decode_worker_that_prefills(tmp_path, call, samples) -> None:
    record = next(r for r in samples if r.chosen.mode == "colocated")
    chosen = msgspec.structs.replace(record.chosen, on_decode=True)
    path = tmp_path / "x.jsonl"
    path.write_bytes(write_record(msgspec.structs.replace(record, chosen=chosen)))
    _, out, _ = call("explain", record.id, "--from", str(path))
    assert f"colocated on decode worker {chosen.decode}" in " ".join(out.split())


def test_explain_takes_the_beginning_of_an_id_as_tail_prints_it(call, log_file, samples) -> None:
    code, out, _ = call("explain", samples[4].id[:8] + "…", "--from", str(log_file), "--json")
    assert code == 0
    assert read_record(out) == samples[4]


def test_explain_of_a_rescued_request_names_what_was_given_up(call, log_file, samples) -> None:
    record = samples[3]
    _, out, _ = call("explain", record.id, "--from", str(log_file))
    flat = " ".join(out.split())
    assert f"gave up {record.outcome.rescued_from[0]}" in flat
    assert f"served by {record.outcome.served_by}" in flat


def test_every_reason_has_words() -> None:
    from kvferry.integrations.log.meaning import against, chosen_for

    assert [reason for reason in Reason if not chosen_for(reason) or not against(reason)] == []
    assert chosen_for("of_the_future") == ""


def test_stats_and_its_json(call, log_file) -> None:
    code, out, _ = call("stats", "--from", str(log_file))
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80
    assert "small_prompt" in out
    code, out, _ = call("stats", "--json", "--from", str(log_file))
    assert set(json.loads(out)) == {
        "requests", "split_share", "reasons", "rescued", "failed", "ttft_error_median",
        "transfer_error_median", "coverage_p90", "by_policy",
    }  # fmt: skip
    assert json.loads(out)["requests"] == 40


def test_export_then_read_the_export(call, log_file, tmp_path) -> None:
    for name in ("x.parquet", "x.jsonl", "x.jsonl.gz"):
        code, out, _ = call("export", "--to", str(tmp_path / name), "--from", str(log_file), "--json")
        assert code == 0
        assert json.loads(out) == {"records": 40, "bad_lines": 0, "to": str(tmp_path / name)}
    _, from_log, _ = call("stats", "--json", "--from", str(log_file))
    _, from_parquet, _ = call("stats", "--json", "--from", str(tmp_path / "x.parquet"))
    assert from_log == from_parquet


def test_bad_lines_are_told_and_do_not_fail(call, log_file) -> None:
    log_file.write_bytes(b"{broken\n" + log_file.read_bytes())
    code, out, err = call("stats", "--json", "--from", str(log_file))
    assert code == 0
    assert json.loads(out)["requests"] == 40
    assert "skipped 1 bad lines" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("tail", "--once"), 1, "no request log at"),
        (("stats", "--from", "missing.jsonl"), 1, "no such file"),
        (("explain", "zzz", "--from", "LOG"), 1, "no request 'zzz'"),
        (("explain", "", "--from", "LOG"), 2, "several requests"),
        (("explain",), 2, "Missing argument"),
        (("stats", "--from", "notes.txt"), 2, "expected .jsonl"),
        (("stats", "--from", "empty.jsonl"), 1, "the log is empty"),
        (("stats", "--from", "broken.jsonl"), 1, "no readable record"),
        (("tail", "--once", "--from", "broken.parquet"), 1, "no readable record"),
        (("export", "--from", "LOG"), 2, "--to"),
        (("export", "--to", "x.csv", "--from", "LOG"), 2, "cannot write x.csv"),
        (("export", "--to", "x.parquet", "--from", "empty.jsonl"), 1, "the log is empty"),
        (("export", "--to", "notes.txt/x.jsonl", "--from", "LOG"), 1, "cannot write"),
        (("stats", "--from", "redis://u:hunter2@127.0.0.1:1"), 1, "does not answer"),
        (("stats", "--from", "http://u:hunter2@h"), 2, "cannot use store URL"),
        (("tail", "-n", "0"), 2, "-n"),
        (("tail", "--json", "--follow", "--from", "LOG"), 2, "--once"),
        (("tail", "--follow", "--from", "FOLDER"), 2, "cannot follow"),
        (("nonsense",), 2, "nonsense"),
    ],
)
def test_a_mistake_is_one_clear_line(call, log_file, tmp_path, monkeypatch, arguments, code, message) -> None:
    monkeypatch.chdir(tmp_path)
    Path("notes.txt").write_text("not a log")
    Path("empty.jsonl").touch()
    Path("broken.jsonl").write_text("{broken\n")
    Path("broken.parquet").write_text("PAR1 no")
    arguments = [{"LOG": str(log_file), "FOLDER": str(tmp_path)}.get(a, a) for a in arguments]
    got, _, err = call(*arguments)
    assert got == code
    assert message in err
    assert err.count("\n") == 1
    assert "Traceback" not in err
    assert "hunter2" not in err
    assert not Path("x.parquet").exists()


def test_help_has_an_example_each(call) -> None:
    for command in ("tail", "explain", "stats", "export"):
        code, out, _ = call(command, "--help")
        assert code == 0
        assert f"Example: kvferry logs {command}" in out


def test_parquet_without_pyarrow_names_the_extra(call, log_file, tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    code, _, err = call("export", "--to", str(tmp_path / "x.parquet"), "--from", str(log_file))
    assert code == 1
    assert "pip install 'kvferry[logs]'" in err


def test_reading_a_log_needs_no_pyarrow(log_file) -> None:
    script = (
        "import sys; sys.modules['pyarrow'] = None\n"
        "from kvferry.integrations.log.reader import read_log\n"
        f"print(sum(1 for _ in read_log({str(log_file)!r})))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "40"


def test_samples_are_varied(samples: list[DecisionRecord]) -> None:
    assert {record.chosen.mode for record in samples} == {"split", "colocated"}
