"""The tiny model: the same bytes every time, made once."""

from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest

from kvferry.integrations.sglang.local.model import TinyModel, cached_model, make_model

pytest.importorskip("tokenizers", reason="comes with SGLang's CPU stack (make setup)")
pytest.importorskip("safetensors", reason="comes with SGLang's CPU stack (make setup)")

SMALL = TinyModel(vocab=512, layers=1, hidden=32, heads=2, kv_heads=1, head_dim=16, feed_forward=64)


def digest(folder: Path) -> dict[str, str]:
    return {path.name: sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def test_two_makes_give_the_same_bytes_and_another_seed_other_weights(tmp_path: Path) -> None:
    other = TinyModel(
        vocab=512, layers=1, hidden=32, heads=2, kv_heads=1, head_dim=16, feed_forward=64, seed=1
    )
    for name, shape in (("a", SMALL), ("b", SMALL), ("c", other)):
        (tmp_path / name).mkdir()
        make_model(tmp_path / name, shape)
    assert digest(tmp_path / "a") == digest(tmp_path / "b")
    assert digest(tmp_path / "a")["model.safetensors"] != digest(tmp_path / "c")["model.safetensors"]


def test_the_checkpoint_is_made_once_and_leaves_no_draft(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = cached_model(SMALL)
    before = (folder / "model.safetensors").stat().st_mtime_ns
    assert cached_model(SMALL) == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == before
    assert [path.name for path in folder.parent.iterdir()] == [SMALL.name]
    assert cached_model(replace(SMALL, vocab=300)) != folder


def test_a_failed_make_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(folder: Path, shape: TinyModel) -> None:
        (folder / "config.json").write_text("{")
        raise OSError("disk full")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("kvferry.integrations.sglang.local.model.make_model", fail)
    with pytest.raises(OSError, match="disk full"):
        cached_model(SMALL)
    assert list((tmp_path / "kvferry" / "models").iterdir()) == []


def test_one_byte_is_one_token(tmp_path: Path) -> None:
    from tokenizers import Tokenizer

    make_model(tmp_path, SMALL)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    text = "Where is my KV cache?"
    ids = tokenizer.encode(text).ids
    assert len(ids) == len(text)
    assert tokenizer.decode(ids) == text
