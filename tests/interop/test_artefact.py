import builtins
import json
import os
import subprocess
import sys
from dataclasses import replace

import golden
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_pos import get_scheme
from flax_pos.functional.rope import Default
from flax_pos.interop import load_pretrained
from flax_pos.interop.artefact import export_model, load_artefact
from flax_pos.interop.export_check import _Rounded, check_export, faults, spread
from flax_pos.interop.quantize import quantize_weights
from flax_pos.interop.safetensors_files import SafetensorsFiles
from flax_pos.interop.surgery import params_of
from flax_pos.nnx import CausalLM, ModelConfig, generate
from flax_pos.schemes.rope import Rope

YARN = golden.DIRECTORY / "llama_yarn"
NEEDED = ("jax", "jaxlib", "numpy", "ml_dtypes", "opt_einsum", "scipy", "flatbuffers")


@pytest.fixture(scope="module")
def model():
    return load_pretrained(YARN)


@pytest.fixture(scope="module")
def directory(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("artefact")
    export_model(model, path, platforms=["cpu"])
    return path


@pytest.fixture(scope="module")
def artefact(directory):
    return load_artefact(directory)


def test_logits_at_symbolic_sizes(artefact):
    want = golden.io("llama_yarn")
    np.testing.assert_allclose(artefact(want["long_input_ids"]), want["long_logits"], atol=1e-4)
    one = artefact(want["long_input_ids"][:1, :3])
    np.testing.assert_allclose(one, want["long_logits"][:1, :3], atol=1e-4)


@pytest.mark.slow
def test_pieces_of_a_prompt_and_single_tokens(artefact, model):
    ids = jnp.asarray(golden.io("llama_yarn")["long_input_ids"][:, :9])
    cache = artefact.empty_cache(2, 16)  # as many slots as generation takes: fewer programs
    whole, _ = artefact.read(ids, cache)
    first, cache = artefact.read(ids[:, :4], cache)
    second, cache = artefact.read(ids[:, 4:8], cache, 4)
    third, _ = artefact.read(ids[:, 8:], cache, 8)
    pieces = jnp.concatenate([first, second, third], axis=1)
    np.testing.assert_allclose(pieces, whole, atol=1e-5)
    new = generate(model, ids, max_new_tokens=7)[:, 9:]
    np.testing.assert_array_equal(artefact.generate(ids, 7), new)


def test_padding_through_the_mask(artefact, model):
    want = golden.io("llama_yarn")
    ids, mask = jnp.asarray(want["input_ids"]), golden.mask_of(want)
    at = jnp.asarray(want["position_ids"], jnp.int32)
    logits, _ = artefact.step(ids, at, mask, artefact.empty_cache(*ids.shape))
    seen = np.asarray(mask)
    expected = want["logits_with_position_ids"][seen]
    np.testing.assert_allclose(np.asarray(logits)[seen], expected, atol=1e-4)


def run_bare(directory, ids, at, tmp_path):
    """Logits of an artefact in a bare process: of what is installed it sees jax and what jax itself
    needs, nothing more."""
    site = tmp_path / "site"
    site.mkdir()
    for entry in os.listdir(os.path.dirname(os.path.dirname(jax.__file__))):
        if entry.startswith(NEEDED):
            (site / entry).symlink_to(os.path.join(os.path.dirname(jax.__file__), "..", entry))
    code = (
        "import sys; sys.path[:0] = [{site!r}, {directory!r}]\n"
        "import numpy as np\n"
        "from run import Artefact\n"
        "assert not any(name.startswith(('flax', 'qwix')) for name in sys.modules)\n"
        "ids = np.load({ids!r})\n"
        "at = np.zeros_like(ids) + np.array({at!r}, np.int32)\n"
        "np.save({out!r}, Artefact({directory!r})(ids, positions=at))\n"
    )
    np.save(tmp_path / "ids.npy", ids)
    code = code.format(
        site=str(site), directory=str(directory), ids=str(tmp_path / "ids.npy"),
        out=str(tmp_path / "out.npy"), at=at.tolist(),
    )  # fmt: skip
    bare = {"PATH": os.environ["PATH"], "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], env=bare, capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    return np.load(tmp_path / "out.npy")


def test_it_runs_where_there_is_only_jax(directory, model, tmp_path):
    ids, at = np.asarray(golden.io("llama_yarn")["long_input_ids"][:, :16]), spread(64, 16)
    got = run_bare(directory, ids, at, tmp_path)
    want = model(jnp.asarray(ids), positions=jnp.broadcast_to(jnp.asarray(at), (2, 16)))
    np.testing.assert_allclose(got, want, atol=1e-5)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # qwix calls what flax has deprecated
def test_a_quantised_model_stays_quantised(model, tmp_path):
    """Two int4 stand in one byte of the file; the program dequantises them."""
    pytest.importorskip("qwix", reason="the extra flax-pos[quantize] is not installed")
    quantised = quantize_weights(model, 4, group=16)
    export_model(quantised, tmp_path, platforms=["cpu"])
    found = check_export(tmp_path, quantised)
    assert found, str(found)
    path = ("blocks", 1, "mlp", "down", "kernel")
    rows, columns = params_of(model)[path].shape
    name, stored = ".".join(map(str, path)), SafetensorsFiles(tmp_path).info
    assert name not in stored
    assert stored[f"{name}.array.qvalue"].dtype == "I8"
    assert stored[f"{name}.array.qvalue"].shape == (rows // 2, columns)
    assert stored[f"{name}.array.scale"].shape == (rows // 16, columns)
    ids, at = np.asarray(golden.io("llama_yarn")["long_input_ids"][:, :16]), spread(64, 16)
    got = run_bare(tmp_path, ids, at, tmp_path)
    positions = jnp.broadcast_to(jnp.asarray(at), (2, 16))
    want, exact = (m(jnp.asarray(ids), positions=positions) for m in (quantised, model))
    np.testing.assert_allclose(got, want, atol=1e-5)
    assert np.abs(got - exact).max() > 1e-2


@pytest.mark.slow
def test_the_runner_as_a_command(directory, model):
    ids = jnp.array([[5, 3, 9]])
    done = subprocess.run(
        [sys.executable, str(directory / "run.py"), "5,3,9", "--new", "4"],
        capture_output=True, text=True, env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )  # fmt: skip
    new = generate(model, ids, max_new_tokens=4)[0, 3:]
    assert done.stdout.strip() == ",".join(map(str, new.tolist())), done.stderr


@pytest.mark.slow
def test_programs_hold_neither_weights_nor_tables(directory, tmp_path):
    sizes = {}
    for width, max_len in ((32, 64), (256, 65536)):
        config = ModelConfig(vocab_size=97, width=width, layers=2, heads=4, max_len=max_len)
        big = CausalLM(config, get_scheme("rope")(), rngs=nnx.Rngs(0))
        export_model(big, tmp_path / str(width), platforms=["cpu"])
        sizes[width] = (tmp_path / str(width) / "prefill.jaxexport").stat().st_size
    assert (tmp_path / "256" / "model.safetensors").stat().st_size > 2_000_000
    assert max(sizes.values()) < 64 * 1024
    assert abs(sizes[256] - sizes[32]) < 8 * 1024
    manifest = json.loads((directory / "artefact.json").read_text())
    assert manifest["scheme"]["name"] == "rope"


@pytest.mark.parametrize(
    "name",
    ["gemma2", *(pytest.param(name, marks=pytest.mark.slow)
                 for name in ("gpt2", "mpt", "deepseek_v3", "phi3_longrope", "llama_dynamic"))],
)  # fmt: skip
@pytest.mark.slow
def test_other_models(tmp_path, name):
    model = load_pretrained(golden.DIRECTORY / name)
    export_model(model, tmp_path, platforms=["cpu"])
    found = check_export(tmp_path, model)
    assert found, str(found)
    want = golden.io(name)
    got = load_artefact(tmp_path)(want["long_input_ids"])
    np.testing.assert_allclose(got, want["long_logits"], atol=1e-4)


def test_a_missing_flatbuffers_is_named(model, tmp_path, monkeypatch):
    real = builtins.__import__

    def missing(name, *args, **kwargs):
        if name.startswith("flatbuffers"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setitem(sys.modules, "flatbuffers", None)
    monkeypatch.setattr(builtins, "__import__", missing)
    for call in (lambda: export_model(model, tmp_path), lambda: load_artefact(tmp_path)):
        with pytest.raises(ImportError, match=r"flatbuffers.*flax-pos\[weights\]"):
            call()


# Checking an artefact -----------------------------------------------------------------------------


def test_a_good_artefact_passes(directory, model):
    found = check_export(directory, model)
    assert found.ok, str(found)
    assert "equal to its source at 32 positions from 0 to 63" in found.finding


def spec(model):
    return model.scheme.spec


BROKEN = {
    "rotations are lost": lambda m: get_scheme("none")(),
    "frequencies are in half precision (bfloat16)": lambda m: _Rounded(
        spec=spec(m), dtype="bfloat16", tables=False
    ),
    "the layout is wrong: it is 'interleaved'": lambda m: Rope(
        spec=replace(spec(m), layout="interleaved")
    ),
    "the scaling is dropped": lambda m: Rope(spec=replace(spec(m), scaling=Default())),
    "the scaling's factor on cos and sin is dropped": lambda m: Rope(
        spec=replace(spec(m), scaling=replace(spec(m).scaling, attention_factor=1.0))
    ),
    "it turns the other way": lambda m: Rope(spec=replace(spec(m), reverse=True)),
}


@pytest.mark.parametrize(
    "fault", [f if i < 2 else pytest.param(f, marks=pytest.mark.slow) for i, f in enumerate(BROKEN)]
)
def test_a_broken_artefact_is_told_what_is_wrong(model, tmp_path, fault):
    broken = CausalLM(model.config, BROKEN[fault](model), rngs=nnx.Rngs(0))
    nnx.update(broken, nnx.state(model))
    export_model(broken, tmp_path, platforms=["cpu"])
    found = check_export(tmp_path, model)
    assert not found
    assert found.finding.startswith(fault), str(found)
    assert found.differences[fault] < 1e-4 < found.differences["the source"]


@pytest.mark.slow
def test_any_function_can_be_checked(model):
    call = jax.jit(lambda model, ids, at: model(ids, positions=at))
    assert check_export(lambda ids, positions: call(model, ids, positions), model)
    ignoring = check_export(lambda ids, positions: call(model, ids, None), model)
    assert ignoring.finding.startswith("positions are ignored")
    noisy = check_export(lambda ids, positions: call(model, ids, positions) + 0.1, model)
    assert noisy.finding == "it differs from its source from position 0 on"
    bad = check_export(lambda ids, positions: call(model, ids, positions) * jnp.nan, model)
    assert not bad
    assert bad.differences["the source"] == np.inf


def test_faults_that_change_nothing_are_not_named():
    plain = [name for name, _ in faults(load_pretrained(golden.DIRECTORY / "llama_default"))]
    assert "the scaling is dropped" not in plain
    assert "the base is the default, 10000" not in plain
    assert "the layout is wrong: it is 'half'" not in plain
    assert "rotations are lost" in plain
    assert not list(faults(load_pretrained(golden.DIRECTORY / "gpt2")))


def test_positions_that_are_looked_at():
    assert spread(64, 64).tolist() == list(range(64))
    at = spread(131072, 32)
    assert at[0] == 0
    assert at[-1] == 131071
    assert (np.diff(at) > 0).all()
    with pytest.raises(ValueError, match="tokens=9 must be"):
        check_export(None, load_pretrained(YARN), limit=8, tokens=9)
