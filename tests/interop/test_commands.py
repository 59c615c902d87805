import io
import json
import shutil

import golden
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from flax_pos import cli
from flax_pos.interop import CheckpointError
from flax_pos.interop.commands import speed, text_of
from flax_pos.interop.safetensors_files import SafetensorsFiles
from flax_pos.interop.tokenizer import end_tokens


@pytest.fixture
def model(tmp_path):
    """The golden GPT-2 with words w0 .. w96 as its tokens."""
    path = shutil.copytree(golden.DIRECTORY / "gpt2", tmp_path / "model")
    tokenizer = Tokenizer(models.WordLevel({f"w{i}": i for i in range(97)}, "w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(path / "tokenizer.json"))
    return path


def words(ids) -> str:
    return " ".join(f"w{i}" for i in ids)


def test_generate_streams_what_the_model_says(model, capsys):
    ids = golden.io("gpt2")["generated_ids"][0]
    argv = ["generate", str(model), words(ids[:12]), "--max-new-tokens", "12"]
    assert cli.main(argv) == 0
    out = capsys.readouterr()
    assert out.out == words(ids) + "\n"
    assert "12 + 12 tokens" in out.err
    assert "tokens/s" in out.err


def test_generate_reads_standard_input_and_stops_at_the_end(model, capsys, monkeypatch):
    ids = golden.io("gpt2")["generated_ids"][0]
    (model / "generation_config.json").write_text(json.dumps({"eos_token_id": [int(ids[14])]}))
    assert end_tokens(model) == (ids[14],)
    monkeypatch.setattr("sys.stdin", io.StringIO(words(ids[:12])))
    assert cli.main(["generate", str(model), "--max-new-tokens", "12"]) == 0
    new = list(ids[12:]).index(ids[14])
    assert capsys.readouterr().out == words(ids[: 12 + new]) + "\n"


def test_chat_answers_through_the_template(model, capsys):
    pytest.importorskip("jinja2", reason="the extra flax-pos[weights] is not installed")
    ids = golden.io("gpt2")["generated_ids"][0]
    template = (
        "{{ messages[0].content }} {{ messages[1].content }}{{ ' w%d' if add_generation_prompt }}"
    )
    config = {"chat_template": template.replace("%d", str(ids[11]))}
    (model / "tokenizer_config.json").write_text(json.dumps(config))
    argv = ["generate", str(model), words(ids[4:11]), "--system", words(ids[:4]), "--chat"]
    assert cli.main([*argv, "--max-new-tokens", "12"]) == 0
    assert capsys.readouterr().out.split() == words(ids[12:]).split()


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["{model}", ""], "the prompt holds no token"),
        (["{model}", "w1", "--max-new-tokens", "0"], "at least 1, got 0"),
        (["{model}", "w1", "--temperature", "-1"], "temperature must be 0"),
        (["{model}", "w1", "--top-k", "3"], "top_k has no effect at temperature=0"),
        (["{model}", "w1", "--max-new-tokens", "64"], "0 .. 63 only"),
        (["{model}/nowhere", "w1"], "nowhere has no tokenizer"),
        (["{model}", "w1", "--chat"], "has no chat template"),
        (["{model}", "w1", "--system", "w2"], "--system needs --chat"),
    ],
)
def test_bad_input_is_one_line(model, capsys, argv, message):
    assert cli.main(["generate", *(arg.format(model=model) for arg in argv)]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # qwix calls what flax has deprecated
@pytest.mark.parametrize("options", [[], ["--quantize", "int8"]])
def test_export(tmp_path, capsys, options):
    if options:
        pytest.importorskip("qwix", reason="the extra flax-pos[quantize] is not installed")
    source, target = golden.DIRECTORY / "llama_yarn", tmp_path / "out"
    assert cli.main(["export", str(source), str(target), "--platforms", "cpu", *options]) == 0
    assert "equal to its source at 32 positions from 0 to 63" in capsys.readouterr().out
    assert (target / "prefill.jaxexport").exists()
    kinds = {info.dtype for info in SafetensorsFiles(target).info.values()}
    assert kinds == ({"F32", "I8"} if options else {"F32"})


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["generate"], "Missing"),
        (["generate", "{gpt2}", "x", "--nonsense"], "--nonsense"),
        (["generate", "{gpt2}", "x", "--temperature", "hot"], "--temperature"),
        (["extend", "{gpt2}"], "Missing"),
        (["export", "{gpt2}"], "Missing"),
        (["export", "{gpt2}", "{tmp}/x", "--platforms", "abacus"], "'abacus' is none of cpu"),
        (["export", "{tmp}/nowhere", "{tmp}/x"], "cannot read"),
        (["export", "{gpt2}", "{tmp}/x", "--quantize", "int3"], "int3"),
        (["export", "{gpt2}", "{tmp}/x", "--group", "8"], "--group needs --quantize"),
        (["export", "{gpt2}", "{tmp}/x", "--quantize", "int8", "--group", "7"], "must divide"),
        (["export", "{gpt2}", "{gpt2}/config.json"], "is no directory"),
    ],
)
def test_bad_options_are_one_line(tmp_path, capsys, argv, message):
    places = {"gpt2": golden.DIRECTORY / "gpt2", "tmp": tmp_path}
    assert cli.main([part.format(**places) for part in argv]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_no_half_characters():
    """A character of several tokens appears when its last one is there."""

    class Bytes:
        def decode(self, ids):
            return bytes(ids).decode(errors="replace")

    text = "aé€z"
    pieces = list(text_of(Bytes(), b"", iter(text.encode())))
    assert "".join(pieces) == text
    assert all("\ufffd" not in piece for piece in pieces)
    assert list(text_of(Bytes(), b"x", iter(b"ab\0c"), ends=(0,))) == ["a", "b", ""]


def test_speed_leaves_out_what_compiles():
    line = speed(5, [0.0, 10.0, 20.0, 20.5, 21.0])
    assert line == "5 + 4 tokens, 2.0 tokens/s after 20.0 s for loading programs"
    assert speed(5, [0.0, 10.0]) == "5 + 1 tokens"


@pytest.mark.parametrize("bad", ["x", -1, [1, None], True])
def test_end_tokens_must_be_ids(tmp_path, bad):
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": bad}))
    with pytest.raises(CheckpointError, match="is no token id"):
        end_tokens(tmp_path)
