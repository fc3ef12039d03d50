"""JSON data is built into annotated types, or refused with the place and what was wrong there."""

import json
from dataclasses import dataclass
from typing import Any

import pytest

from mcfsim.storage.sealed import build, parse


@dataclass(frozen=True)
class Inner:
    number: int
    share: float | None


@dataclass(frozen=True)
class Outer:
    name: str
    flag: bool
    inner: Inner
    several: tuple[Inner, ...]
    pair: tuple[str, int]
    words: dict[str, str]
    anything: Any

    def __post_init__(self):
        if self.name == "refused":
            raise ValueError("a name like this")


SOUND = {
    "name": "n",
    "flag": True,
    "inner": {"number": 3, "share": None},
    "several": [{"number": 2**70, "share": 1}, {"number": -1, "share": 0.5}],
    "pair": ["a", 1],
    "words": {"a": "b"},
    "anything": [None, {}],
}


def test_what_is_sound_is_built():
    assert build(Outer, SOUND, "") == Outer(
        "n", True, Inner(3, None), (Inner(2**70, 1), Inner(-1, 0.5)), ("a", 1), {"a": "b"}, [None, {}]
    )


@pytest.mark.parametrize(
    ("way", "value", "problem"),
    [
        (["name"], 3, "name must be of type str, not 3"),
        (["name"], "refused", "a name like this"),
        (["flag"], 1, "flag must be of type bool, not 1"),
        (["inner"], [], r"inner must be an object, not \[\]"),
        (["inner", "number"], True, "inner.number must be of type int, not True"),
        (["inner", "number"], 3.0, "inner.number must be of type int, not 3.0"),
        (["inner", "share"], "1", "inner.share must be a finite number, not '1'"),
        (["inner", "share"], False, "inner.share must be a finite number, not False"),
        (["inner", "share"], float("nan"), "inner.share must be a finite number, not nan"),
        (["inner", "share"], 10**400, "inner.share must be a finite number, not 1000"),
        (["inner", "more"], 1, "'more' is not known in inner"),
        (["more"], 1, "^'more' is not known$"),
        (["several"], {}, "several must be a list, not {}"),
        (["several", 1], None, r"several\[1\] must be an object, not None"),
        (["pair"], ["a"], r"pair must be a list of 2, not \['a'\]"),
        (["pair"], [1, "a"], r"pair\[0\] must be of type str"),
        (["words"], {"a": 1}, "words.a must be of type str"),
        (["words"], [], "words must be an object"),
    ],
)
def test_what_is_not_is_refused(way, value, problem):
    data = json.loads(json.dumps(SOUND))
    inner = data
    for key in way[:-1]:
        inner = inner[key]
    inner[way[-1]] = value
    with pytest.raises(ValueError, match=problem):
        build(Outer, data, "")


@pytest.mark.parametrize("name", SOUND)
def test_what_is_missing_is_named(name):
    with pytest.raises(ValueError, match=f"^'{name}' is missing$"):
        build(Outer, {key: item for key, item in SOUND.items() if key != name}, "")


def test_a_problem_of_any_size_is_told_in_few_words():
    with pytest.raises(ValueError) as error:
        build(Outer, SOUND | {"name": ["x" * 10**6] * 1000}, "")
    assert len(str(error.value)) < 300


def test_json_is_parsed_as_python_writes_it_and_what_is_none_is_a_value_error():
    data = {"a": [1, 2.5, None, True, "é", float("inf")], "b": {}}
    assert parse(json.dumps(data)) == data
    for text in ("", "{", "[" * 10**6, '{"a": ' * 10**5, "9" * 5000, '{"a": 1, "a": 1}', "nul"):
        with pytest.raises(ValueError):
            parse(text)
