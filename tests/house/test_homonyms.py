"""Whether a name that is given twice is found."""

import pytest

from tests.house.homonyms import CLASSES, FILES, PACKAGE, classes, homonyms


@pytest.mark.parametrize(
    ("second", "text", "found"),
    [
        ("b/other.py", "class Other: pass", []),
        ("b/one.py", "", ["file one.py is there 2 times"]),
        ("b/other.py", "def f():\n    class One: pass", ["class One is there 2 times"]),
        ("a/other.py", "class AdamW: pass\nclass AdamW: pass", []),
    ],
)
def test_a_second_file_or_class_of_a_name_is_found(second, text, found, tmp_path):
    for name, content in (("a/one.py", "class One: pass"), (second, text)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    assert [line.partition(":")[0] for line in homonyms(tmp_path.rglob("*.py"))] == found


def test_the_package_has_no_others_and_all_that_may_be():
    paths = [*PACKAGE.rglob("*.py")]
    assert [*homonyms(paths)] == []
    named = [name for path in paths for name in classes(path)]
    assert all(named.count(name) > 1 for name in CLASSES)
    assert all(sum(path.name == name for path in paths) > 1 for name in FILES)
