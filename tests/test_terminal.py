"""What models say does not steer the terminal."""

from types import SimpleNamespace

import pytest
from flax import nnx

from flax_pos import cli, get_scheme
from flax_pos.interop import commands
from flax_pos.lab import run
from flax_pos.nnx import CausalLM, ModelConfig
from flax_pos.terminal import printable


def test_control_characters_are_written_out():
    """All that Unicode calls control characters, but for newline and tab, and lone surrogates."""
    text = "".join(map(chr, range(0x20))) + "\x7f\x80\x9b\x9f\ud800"
    shown = printable(text)
    assert [c for c in shown if not c.isprintable()] == ["\t", "\n"]
    assert r"\x00\x01" in shown
    assert r"\x1b" in shown
    assert printable("é ü 漢 \N{ZERO WIDTH JOINER}\n\t") == "é ü 漢 \N{ZERO WIDTH JOINER}\n\t"


class Ids(list):
    ids = property(lambda self: self)


class Rude:
    """Every token clears the screen."""

    def encode(self, text):
        return Ids(1 for _ in text)

    def decode(self, ids):
        return "é\t\x1b[2J\r\n" * len(ids)


@pytest.fixture
def rude(monkeypatch):
    """A model of a run and a pretrained one, with that tokenizer."""
    config = ModelConfig(vocab_size=4, width=8, layers=1, heads=2, max_len=16)
    model = CausalLM(config, get_scheme("none")(), rngs=nnx.Rngs(0))
    loaded = SimpleNamespace(tokenizer=Rude())
    monkeypatch.setattr(run, "load_model", lambda *_: (model, loaded))
    monkeypatch.setattr(commands, "load_pretrained", lambda *_, **__: model)
    monkeypatch.setattr(commands, "load_tokenizer", lambda *_: Rude())
    monkeypatch.setattr(commands, "end_tokens", lambda *_: ())


@pytest.mark.parametrize(
    ("argv", "prompt"),
    [
        (["generate", "x", "\x1b[31m", "--max-new-tokens", "3"], "\\x1b[31m"),
        (["sample", "x", "--prompt", "y", "--tokens", "3"], "é\t\\x1b[2J\\r\n"),
    ],
)
def test_commands_write_them_out(rude, capsys, argv, prompt):
    assert cli.main(argv) == 0
    assert capsys.readouterr().out == prompt + 3 * "é\t\\x1b[2J\\r\n" + "\n"
