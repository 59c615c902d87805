import pytest

from flax_pos.interop.errors import CheckpointError, require
from flax_pos.interop.jsonfile import parse_json, read_json, write_json


def test_what_is_written_is_read(tmp_path):
    value = {"a": [1, 2.5, None, True], "b": {"ü": "x"}}
    write_json(tmp_path / "x.json", value)
    assert read_json(tmp_path / "x.json") == value
    assert [p.name for p in tmp_path.iterdir()] == ["x.json"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "not valid JSON"),
        (b"\xff{}", "not valid JSON"),
        (b'{"a": 1, "a": 2}', "'a' occurs twice"),
        (b"[1]", "must hold a JSON object, got list"),
        (b"[" * 200_000, "not valid JSON"),
        (b'{"a": ' + b"9" * 10_000 + b"}", "not valid JSON"),
    ],
)
def test_bad_json_is_one_kind_of_error(text, message):
    with pytest.raises(CheckpointError, match=message):
        parse_json(text, "x.json")


def test_size_is_bounded_and_missing_files_are_named(tmp_path):
    (tmp_path / "x.json").write_text('{"a": 1}')
    with pytest.raises(CheckpointError, match="more than 4 bytes"):
        read_json(tmp_path / "x.json", limit=4)
    with pytest.raises(CheckpointError, match=r"cannot read .*missing.json"):
        read_json(tmp_path / "missing.json")


def test_a_missing_package_is_named_with_the_extra():
    with pytest.raises(ImportError, match=r"'no_such_package'.*flax-pos\[weights\]"):
        require("no_such_package.part", "reading")
