"""Mooncake and Azure traces from small files, and what is said of broken ones."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvferry.models.workload.azure import read_azure
from kvferry.models.workload.reader import form_of, read
from kvferry.models.workload.trace_file import TraceError, TraceFile

MOONCAKE = [
    {"timestamp": 27000, "input_length": 1024, "output_length": 5, "hash_ids": [0, 1]},
    {"timestamp": 27000, "input_length": 1300, "output_length": 52, "hash_ids": [0, 1, 2]},
    {"timestamp": 30000, "input_length": 100, "output_length": 1, "hash_ids": [3]},
]
AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    "2023-11-16 18:15:46.6805900,374,44\n"
    "2023-11-16 18:15:50.9951690,396,109\n"
    "2023-11-16 18:15:51.2224670,879,55\n"
)


def mooncake(folder: Path, lines: list[object], name: str = "trace.jsonl") -> Path:
    file = folder / name
    file.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return file


def steps(count: int, each: int, step_ms: int = 3000, jitter_ms: int = 0) -> list[object]:
    return [
        {
            "timestamp": step_ms * (row // each) - jitter_ms * ((row // each) % 2),
            "input_length": row + 1,
            "output_length": 1,
        }
        for row in range(count)
    ]


def test_mooncake_keeps_full_blocks_only_and_time_from_the_first(tmp_path: Path) -> None:
    workload = read(mooncake(tmp_path, MOONCAKE))
    assert workload.name == "trace"
    assert workload.arrival_s.tolist() == [0, 0, 3]
    assert workload.prompt_tokens.tolist() == [1024, 1300, 100]
    assert workload.output_tokens.tolist() == [5, 52, 1]
    assert len(set(workload.max_new_tokens.tolist())) == 1  # the trace does not say what clients asked for
    assert [workload.blocks_of(row) for row in range(3)] == [[0, 1], [0, 1], []]
    assert workload.block_tokens == 512


def test_mooncake_out_of_order_is_sorted_with_its_blocks(tmp_path: Path) -> None:
    workload = read(mooncake(tmp_path, MOONCAKE[::-1]))
    assert workload.arrival_s.tolist() == [0, 0, 3]
    assert workload.prompt_tokens.tolist() == [1300, 1024, 100]
    assert [workload.blocks_of(row) for row in range(3)] == [[0, 1], [0, 1], []]


def test_stamps_are_spread_inside_their_steps_in_order_and_by_seed(tmp_path: Path) -> None:
    file = mooncake(tmp_path, steps(200, 10, jitter_ms=1))
    stamped = read(file, spread_steps=False)
    spread = read(file, seed=1)
    late = spread.arrival_s - stamped.arrival_s
    assert late.min() >= -0.001
    assert late.max() <= 3.002
    assert late.std() > 0.5
    assert spread.prompt_tokens.tolist() == stamped.prompt_tokens.tolist()
    assert np.array_equal(read(file, seed=1).arrival_s, spread.arrival_s)
    assert not np.array_equal(read(file, seed=2).arrival_s, spread.arrival_s)


def test_stamps_of_no_step_stay(tmp_path: Path) -> None:
    lines = steps(50, 1, step_ms=137)
    assert np.allclose(read(mooncake(tmp_path, lines)).arrival_s, 0.137 * np.arange(50))


@pytest.mark.parametrize("packed", [False, True])
def test_azure(tmp_path: Path, packed: bool) -> None:
    file = tmp_path / "azure.csv"  # packed or not, whatever the name says
    file.write_bytes(gzip.compress(AZURE.encode()) if packed else AZURE.encode())
    workload = read(file)
    assert np.allclose(workload.arrival_s, [0, 4.314579, 4.541877], atol=1e-9)
    assert workload.prompt_tokens.tolist() == [374, 396, 879]
    assert workload.output_tokens.tolist() == [44, 109, 55]
    assert len(workload.block_ids) == 0


def test_azure_2024_has_zones_and_windows_has_line_ends(tmp_path: Path) -> None:
    file = tmp_path / "azure.csv"
    file.write_bytes(
        b"\xef\xbb\xbfTIMESTAMP,ContextTokens,GeneratedTokens\r\n"
        b"2024-05-10 00:00:00.5+00:00,2,3\r\n2024-05-10T00:00:00Z,4,5\r\n"
    )
    workload = read_azure(TraceFile(file))
    assert workload.arrival_s.tolist() == [0, 0.5]
    assert workload.prompt_tokens.tolist() == [4, 2]


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ({"timestamp": 1, "input_length": "9k", "output_length": 1}, "input_length = '9k'"),
        ({"timestamp": 1, "input_length": 0, "output_length": 1}, "input_length = 0"),
        ({"timestamp": -1, "input_length": 9, "output_length": 1}, "timestamp = -1"),
        ({"timestamp": 1, "input_length": 9}, "output_length = None: is missing"),
        (
            {"timestamp": 1, "input_length": 9, "output_length": 1, "hash_ids": [1, "x"]},
            "hash_ids[1] = 'x'",
        ),
        ({"timestamp": 1, "input_length": 9, "output_length": 1, "hash_ids": [2**63]}, "hash_ids"),
        ('{"timestamp": 1, "input_le', "no JSON object"),
        ("[1, 2]", "line = [1, 2]"),
        ("[" * 5000, "Expected `object`"),
        ('{"timestamp": ' + "[" * 5000, "Expected `float`"),
    ],
)
def test_a_bad_json_line_is_named_or_counted(tmp_path: Path, bad: object, said: str) -> None:
    file = mooncake(tmp_path, [MOONCAKE[0], bad, MOONCAKE[1]])
    with pytest.raises(TraceError) as failure:
        read(file)
    assert f"{file}, line 2: " in str(failure.value)
    assert said in str(failure.value)
    dropped: list[str] = []
    assert len(read(file, dropped=dropped)) == 2
    assert dropped == [str(failure.value)]


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ("yesterday,1,1", "TIMESTAMP = 'yesterday'"),
        ("NaT,1,1", "TIMESTAMP = 'NaT'"),
        ("2023-11-16 18:15:51+05:00,1,1", "is no time (UTC)"),
        ("2023-02-30 18:15:51,1,1", "is no such time"),
        ("2023-11-16 18:15:51,,1", "ContextTokens = ''"),
        ("2023-11-16 18:15:51,1,0", "GeneratedTokens = '0': must be from 1"),
        ("2023-11-16 18:15:51,1,1.5", "GeneratedTokens = '1.5': is no whole number"),
        ("2023-11-16 18:15:51,99999999999999999999,1", "ContextTokens = '99999999999999999999'"),
        ("2023-11-16 18:15:51,1", "2 columns where the header has 3"),
    ],
)
def test_a_bad_row_is_named_or_counted(tmp_path: Path, bad: str, said: str) -> None:
    file = tmp_path / "azure.csv"
    file.write_text(f"{AZURE}{bad}\n")
    with pytest.raises(TraceError) as failure:
        read(file)
    assert f"{file}, line 5: " in str(failure.value)
    assert said in str(failure.value)
    dropped: list[str] = []
    assert len(read(file, dropped=dropped)) == 3
    assert dropped == [str(failure.value)]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b"\n \n", "is empty"),
        (b"a,b,c\n1,2,3\n", "begins with 'a,b,c'"),
        (b'{"text": "hello"}\n', "begins with"),
        (b"TIMESTAMP,ContextTokens,GeneratedTokens\n", "has no request"),
        (gzip.compress(AZURE.encode())[:-20], "cannot read"),
        (b"\x1f\x8b nothing packed", "cannot read"),
        (bytes(range(128, 256)), "begins with"),
    ],
)
def test_what_is_no_trace_is_named(tmp_path: Path, content: bytes, said: str) -> None:
    file = tmp_path / "what.csv"
    file.write_bytes(content)
    with pytest.raises(TraceError) as failure:
        read(file)
    assert said in str(failure.value)
    assert str(file) in str(failure.value)


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="No such file"):
        read(tmp_path / "none.jsonl")
    with pytest.raises(TraceError, match=r"no built-in workload 'convresation' \(known: .*conversation"):
        read("convresation")
    with pytest.raises(TraceError, match="cannot read"):
        read(tmp_path)


@pytest.mark.parametrize(
    "options", [{"start_s": -1}, {"duration_s": 0}, {"rate_rps": 0}, {"block_tokens": 0}]
)
def test_senseless_options_are_refused(tmp_path: Path, options: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"no part|cannot be|blocks of"):
        read(mooncake(tmp_path, MOONCAKE), **options)  # type: ignore[arg-type]


def test_a_part_and_a_rate(tmp_path: Path) -> None:
    file = mooncake(tmp_path, steps(100, 1, step_ms=1000))
    assert read(file, start_s=10, duration_s=5).prompt_tokens.tolist() == [11, 12, 13, 14, 15]
    fast = read(file, start_s=10, duration_s=5, rate_rps=4)
    assert fast.prompt_tokens.tolist() == list(range(11, 31))
    assert fast.arrival_s.tolist() == pytest.approx([0.25 * row for row in range(20)])
    with pytest.raises(TraceError, match="no request in the part"):
        read(file, start_s=1000)


def test_forms_by_their_first_line(tmp_path: Path) -> None:
    for form, line in {
        "mooncake": json.dumps(MOONCAKE[0]),
        "azure": AZURE,
        "servegen": "client,t_start_s,rate_rps,iat_cv,iat_family,param1,param2",
        "decisions": '{"schema":"kvferry.decision.v1","id":"a","chosen":{}}',
    }.items():
        (tmp_path / "file").write_text(line)
        assert form_of(TraceFile(tmp_path / "file")) == form


RECORD = b'{"schema":"kvferry.decision.v1","id":"a","time":5,"chosen":{},"request":{"prompt_tokens":9}}\n'
SOUND = ("".join(f"{json.dumps(line)}\n" for line in MOONCAKE).encode(), AZURE.encode(), RECORD)


@settings(max_examples=150)
@given(
    st.sampled_from(SOUND),
    st.lists(
        st.tuples(st.integers(0, 200), st.integers(0, 3), st.binary(max_size=4)), min_size=1, max_size=4
    ),
    st.booleans(),
)
def test_damage_is_told_and_never_a_crash(
    tmp_path_factory: pytest.TempPathFactory,
    content: bytes,
    damage: list[tuple[int, int, bytes]],
    lenient: bool,
) -> None:
    for at, length, new in damage:
        content = content[:at] + new + content[at + length :]
    file = tmp_path_factory.getbasetemp() / "damaged"
    file.write_bytes(content)
    dropped: list[str] | None = [] if lenient else None
    lines = sum(bool(line.strip()) for line in content.split(b"\n"))
    try:
        workload = read(file, dropped=dropped)
    except TraceError as failure:
        told = str(failure)
    else:
        told = str(file)
        is_csv = not content.lstrip().startswith(b"{")
        assert len(workload) + len(dropped or ()) + is_csv == lines
    assert str(file) in told
