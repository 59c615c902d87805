import math

import golden
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from flax_pos import cli
from flax_pos.interop import load_pretrained
from flax_pos.interop.extension import SCALINGS, draw, extend, original_length, rescale

TEXT = np.random.default_rng(0).integers(1, 97, 300)


def load(name="llama_default"):
    return load_pretrained(golden.DIRECTORY / name, scan_layers=True)


@pytest.fixture(scope="module")
def model():
    return load()


@pytest.fixture(scope="module")
def found(model):
    return extend(model, TEXT, lengths=[32, 128], scalings=list(SCALINGS), windows=2)


def losses(model, ids) -> np.ndarray:
    logits = model(jnp.asarray(ids)[None, :-1])[0]
    log_p = jax.nn.log_softmax(logits, -1)
    return -np.asarray(log_p)[np.arange(len(ids) - 1), ids[1:]]


def test_every_scaling_at_every_length(found):
    assert [(one.length, one.scaling) for one in found] == [
        (length, name) for length in (32, 128) for name in SCALINGS
    ]
    for one in found:
        assert one.loss.shape == (one.length - 1,)
        assert np.isfinite(one.loss).all()
        assert one.windows == 2
        assert one.original == 64


def test_loss_is_that_of_the_model_itself(model, found):
    plain = next(one for one in found if one.scaling == "none" and one.length == 128)
    want = np.mean([losses(model, TEXT[at : at + 128]) for at in (0, 128)], axis=0)
    np.testing.assert_allclose(plain.loss, want, atol=1e-4)
    assert plain.mean == pytest.approx(want.mean(), abs=1e-4)
    assert plain.within == pytest.approx(want[:63].mean(), abs=1e-4)
    assert plain.beyond == pytest.approx(want[63:].mean(), abs=1e-4)


def test_within_the_original_length_a_factor_of_1_changes_nothing(found):
    short = {one.scaling: one for one in found if one.length == 32}
    for name in ("linear", "ntk", "dynamic", "yarn", "llama3", "rerope", "leaky_rerope"):
        np.testing.assert_allclose(short[name].loss, short["none"].loss, atol=2e-3)
        assert short[name].factor == 1
        assert math.isnan(short[name].beyond)
    assert np.abs(short["drop"].loss - short["none"].loss).max() > 0.1


def test_beyond_it_every_scaling_is_another_model(found):
    long = [one for one in found if one.length == 128]
    for i, one in enumerate(long):
        for other in long[:i]:
            assert np.abs(one.loss - other.loss).max() > 1e-3, (one.scaling, other.scaling)


@pytest.mark.parametrize(
    ("name", "scaling", "length"), [("llama_linear", "linear", 256), ("llama_yarn", "yarn", 64)]
)
def test_scaling_a_plain_model_is_loading_a_scaled_one(name, scaling, length):
    """The scaled golden models say their own scaling, which `none` keeps and rescaling replaces."""
    model = load(name)
    original = 64 if scaling == "linear" else 16
    assert original_length(model) == original
    same = rescale(model, scaling, length)
    run = jax.jit(lambda model, ids, scheme: model(ids, scheme=scheme), static_argnames="scheme")
    ids = jnp.asarray(golden.io(name)["long_input_ids"])
    np.testing.assert_allclose(run(model, ids, same), run(model, ids, None), atol=1e-5)
    np.testing.assert_allclose(
        run(model, ids, rescale(model, "none", length)), run(model, ids, None), atol=1e-5
    )


def test_layers_keep_their_windows_and_bases():
    model = load("gemma2")
    scheme = rescale(model, "yarn", 256)
    sliding, full = scheme.for_layer(0), scheme.for_layer(1)
    assert (sliding.window, full.window) == (8, None)
    assert sliding.inner.spec == full.spec
    assert full.spec.scaling.factor == 4


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: rescale(m, "magic", 128), "unknown scaling 'magic'; known: none, linear"),
        (lambda m: extend(m, TEXT, lengths=[301]), "300 tokens; a length of 301"),
        (lambda m: extend(m, TEXT, lengths=[1]), "lengths of at least 2"),
        (lambda m: extend(m, TEXT, lengths=[]), "lengths of at least 2"),
        (lambda m: rescale(load("gpt2"), "yarn", 128), "has no RoPE to scale"),
        (lambda m: rescale(load("llama_yarn"), "rerope", 128), "this model has 'yarn' ones"),
        (lambda m: rescale(load("gpt_neox"), "rerope", 128), "of a part of 0.25"),
    ],
)
def test_what_does_not_fit_is_named(model, call, message):
    with pytest.raises(ValueError, match=message):
        call(model)


def test_command(tmp_path, capsys, found):
    path = tmp_path / "model"
    path.mkdir()
    for name in ("config.json", "model.safetensors"):
        (path / name).symlink_to(golden.DIRECTORY / "llama_default" / name)
    tokenizer = Tokenizer(models.WordLevel({f"w{i}": i for i in range(97)}, "w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(path / "tokenizer.json"))
    text = tmp_path / "text"
    text.write_text(" ".join(f"w{i}" for i in TEXT))
    options = ["--lengths", "32,128", "--windows", "2", "--figure", str(tmp_path / "figure.png")]
    argv = ["extend", str(path), "--text", str(text), "--scaling", "none,yarn", *options]
    assert cli.main(argv) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    (row,) = (row for row in rows if row[:2] == ["128", "yarn"])
    want = next(one for one in found if one.scaling == "yarn" and one.length == 128)
    assert row[2:4] == ["2", "2"]
    np.testing.assert_allclose(
        [float(x) for x in row[4:]], [want.mean, want.within, want.beyond], atol=2e-4
    )
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"--lengths": "12,many"}, "--lengths must be whole numbers"),
        ({"--text": "{tmp}/nowhere"}, "cannot read"),
    ],
)
def test_bad_input_is_one_line(tmp_path, capsys, changes, message):
    options = {"--text": str(tmp_path / "text"), **changes}
    (tmp_path / "text").write_text("x")
    argv = [part.format(tmp=tmp_path) for pair in options.items() for part in pair]
    assert cli.main(["extend", str(golden.DIRECTORY / "gpt2"), *argv]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_a_figure_of_one_length(tmp_path, found):
    draw([one for one in found if one.length == 32], tmp_path / "one.svg")
    assert "<svg" in (tmp_path / "one.svg").read_text()
