"""A corpus: what is held out, its windows, and of which modules of the standard library it consists."""

import dataclasses
import hashlib
import sysconfig

import numpy as np
import pytest

from mcfsim.problems import Corpus


def test_the_last_tenth_is_held_out_and_windows_reach_both_ends_or_are_spread_evenly():
    corpus = Corpus.from_bytes(bytes(range(100)), "counting")
    assert corpus.training.tolist() == list(range(90))
    assert corpus.validation.tolist() == list(range(90, 100))
    windows = corpus.training_windows(2000, 5, step=0, seed=0)
    assert (np.diff(windows, axis=1) == 1).all()
    assert set(windows[:, 0]) == set(range(86))
    assert corpus.validation_windows(3, 2).tolist() == [[90, 91], [94, 95], [98, 99]]
    assert corpus.validation_windows(1, 10).tolist() == [list(range(90, 100))]


def test_standard_library_is_the_same_at_every_call():
    corpus, again = Corpus.from_standard_library(), Corpus.from_standard_library()
    text = np.concatenate([corpus.training, corpus.validation]).tobytes()
    assert corpus == again
    assert corpus.digest == hashlib.sha256(text).hexdigest()
    assert corpus.modules == 60
    assert len(text) > 500_000
    assert text.count(b"\ndef ") > 100
    assert Corpus.from_standard_library(modules=59) != corpus


def test_which_modules_are_read(tmp_path, monkeypatch):
    for name in ("b.py", "a.py", "d.py", "e.py", "_sysconfigdata_x.py", "notes.txt"):
        (tmp_path / name).write_text(f"{name}\n")
    (tmp_path / "c.py").mkdir()  # cannot be read as a file
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    corpus = Corpus.from_standard_library(modules=3)
    assert corpus == Corpus.from_bytes(b"a.py\nb.py\nd.py\n", "expected")
    assert corpus.description.startswith("3 modules of the standard library of Python 3.")


def test_no_sources_no_corpus(tmp_path, monkeypatch):
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    for modules, error, text in (
        (60, FileNotFoundError, "no sources"),
        (0, ValueError, "must be at least 1"),
    ):
        with pytest.raises(error, match=text):
            Corpus.from_standard_library(modules=modules)


def test_corpus_cannot_be_changed():
    corpus = Corpus.from_bytes(bytes(100), "zeros")
    with pytest.raises(dataclasses.FrozenInstanceError):
        corpus.digest = ""
    with pytest.raises(ValueError, match="read-only"):
        corpus.training[0] = 1
