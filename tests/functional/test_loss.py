"""The chunked loss equals the dense one, in bounded memory."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from draws import integers, normal

from flax_pos.functional.loss import linear_cross_entropy

V, D = 40, 16
H = normal((3, 7, D))
TABLE = normal((V, D), 1)
LABELS = integers((3, 7), 36, 2)


def dense(h, table, labels, *, counts=None, used=V, scale=1.0, softcap=None, z_loss=0.0):
    """From the formula, in the dtype of NumPy arrays it is given or traced."""
    logits = scale * jnp.einsum("btd,vd->btv", h, table)
    logits = logits if softcap is None else softcap * jnp.tanh(logits / softcap)
    logits = logits[..., :used]
    counts = jnp.ones(labels.shape, bool) if counts is None else counts
    log_z = jnp.log(jnp.sum(jnp.exp(logits), -1))
    right = jnp.take_along_axis(logits, jnp.where(counts, labels, 0)[..., None], -1)[..., 0]
    losses = jnp.where(counts, log_z - right + z_loss * log_z**2, 0)
    return jnp.sum(losses) / jnp.sum(counts).astype(h.dtype)


@pytest.mark.parametrize("chunk", [None, 1, 4, 7, 21, 50])
@pytest.mark.parametrize("axes", ["VD", "DV"])
def test_equals_dense_in_value_and_gradients(chunk, axes):
    labels = LABELS.at[0, :3].set(-100)
    mask = jnp.ones(LABELS.shape, bool).at[2, 4:].set(False)
    options = {"used": 37, "scale": 0.7, "softcap": 5.0, "z_loss": 1e-2}
    want = dense_value_and_grad(labels, mask & (labels != -100), **options)

    def loss(h, table):
        return linear_cross_entropy(
            h,
            table if axes == "VD" else table.T,
            labels,
            table_axes=axes,
            mask=mask,
            vocab_size=37,
            scale=0.7,
            softcap=5.0,
            z_loss=1e-2,
            chunk=chunk,
        )

    value, gradients = jax.jit(jax.value_and_grad(loss, (0, 1)))(H, TABLE)
    assert value.dtype == jnp.float32
    np.testing.assert_allclose(value, want[0], rtol=1e-6)
    for ours, right in zip(gradients, want[1], strict=True):
        np.testing.assert_allclose(ours, right, atol=1e-6)
    assert (gradients[1][37:] == 0).all()
    assert (gradients[0][0, :3] == 0).all()


def dense_value_and_grad(labels, counts, **options):
    with jax.enable_x64(True):
        wide = [jnp.asarray(np.asarray(a), jnp.float64) for a in (H, TABLE)]
        labels, counts = (jnp.asarray(np.asarray(a)) for a in (labels, counts))
        loss = lambda h, t: dense(h, t, labels, counts=counts, **options)
        return jax.tree.map(np.asarray, jax.value_and_grad(loss, (0, 1))(*wide))


def test_reductions():
    labels = LABELS.at[1, 2].set(-100)
    losses = linear_cross_entropy(H, TABLE, labels, reduction="none", chunk=4)
    assert losses.shape == labels.shape
    assert losses[1, 2] == 0
    logits = jnp.einsum("btd,vd->btv", H, TABLE)
    want = -jnp.take_along_axis(jax.nn.log_softmax(logits), LABELS[..., None], -1)[..., 0]
    np.testing.assert_allclose(losses, want.at[1, 2].set(0), rtol=1e-5)
    total = linear_cross_entropy(H, TABLE, labels, reduction="sum")
    np.testing.assert_allclose(total, losses.sum(), rtol=1e-6)
    np.testing.assert_allclose(linear_cross_entropy(H, TABLE, labels), total / 20, rtol=1e-6)


def test_no_token_that_counts_gives_zero_and_no_gradient():
    loss = lambda h: linear_cross_entropy(h, TABLE, jnp.full(LABELS.shape, -100))
    value, gradient = jax.value_and_grad(loss)(H)
    assert value == 0
    assert (gradient == 0).all()


def test_far_logits_do_not_overflow():
    value, gradient = jax.value_and_grad(
        lambda h: linear_cross_entropy(h, TABLE, LABELS, reduction="sum")
    )(1000 * H)
    assert np.isfinite(value)
    assert np.isfinite(gradient).all()


def test_bfloat16_accumulates_in_float32():
    # 2048 tokens in chunks of 4 push one row by 2 at a time: bfloat16 sums would stall at 512.
    h = jnp.ones((2048, 1), jnp.bfloat16)
    labels = jnp.zeros(2048, jnp.int32)
    for dtype in (jnp.bfloat16, jnp.float32):
        table = jnp.zeros((2, 1), dtype)
        loss = lambda t: linear_cross_entropy(h, t, labels, reduction="sum", chunk=4)
        value, gradient = jax.jit(jax.value_and_grad(loss))(table)
        assert (value.dtype, gradient.dtype) == (jnp.float32, dtype)
        np.testing.assert_allclose(value, 2048 * np.log(2), rtol=1e-6)
        np.testing.assert_array_equal(np.asarray(gradient, np.float32), [[-1024], [1024]])


def test_tied_table_receives_both_gradients():
    ids = LABELS[:, ::-1]

    def loss(inputs, outputs):
        return linear_cross_entropy(inputs[ids], outputs, LABELS, chunk=5)

    both = jax.grad(lambda t: loss(t, t))(TABLE)
    apart = jax.grad(loss, (0, 1))(TABLE, TABLE)
    np.testing.assert_allclose(both, apart[0] + apart[1], atol=1e-6)


@pytest.mark.slow
def test_vmap_equals_loop_and_second_order_runs():
    tables = jnp.stack([TABLE, 2 * TABLE])
    f = lambda t: linear_cross_entropy(H, t, LABELS, chunk=5)
    np.testing.assert_allclose(jax.vmap(f)(tables), [f(TABLE), f(2 * TABLE)], rtol=1e-6)
    product = jax.jvp(jax.grad(f), (TABLE,), (TABLE,))[1]
    step = 1e-2
    near = jax.grad(f)((1 + step) * TABLE) - jax.grad(f)((1 - step) * TABLE)
    np.testing.assert_allclose(product, near / (2 * step), atol=2e-4)


def test_memory_does_not_hold_the_logits():
    n, v, d = 4096, 32768, 64
    shapes = [jax.ShapeDtypeStruct(s, jnp.float32) for s in ((4, n // 4, d), (v, d))]
    labels = jax.ShapeDtypeStruct((4, n // 4), jnp.int32)
    loss = lambda h, t, y: linear_cross_entropy(h, t, y, softcap=30.0)
    step = jax.jit(jax.value_and_grad(loss, (0, 1)))
    memory = step.lower(*shapes, labels).compile().memory_analysis()
    assert memory.temp_size_in_bytes < 150e6  # dense logits: 537e6


def test_no_array_has_all_tokens_and_the_vocabulary():
    f = jax.grad(lambda t: linear_cross_entropy(H, t, LABELS, chunk=4))
    text = str(jax.make_jaxpr(f)(TABLE))
    assert f"[6,4,{D}]" in text  # what is kept of h
    for rows in ("21", "24", "3,7", "6,4", "4,6"):
        assert f"[{rows},{V}]" not in text


def test_a_sharded_batch_stays_sharded():
    mesh = jax.make_mesh((4,), ("data",))
    place = lambda a, *spec: jax.device_put(
        a, jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*spec))
    )
    h = normal((8, 6, D))
    labels = jnp.zeros((8, 6), jnp.int32)
    f = jax.jit(lambda h, t, y: linear_cross_entropy(h, t, y, chunk=8))
    args = place(h, "data"), place(TABLE), place(labels, "data")
    np.testing.assert_allclose(f(*args), f(h, TABLE, labels), rtol=1e-6)
    assert "all-gather" not in f.lower(*args).compile().as_text()


def test_labels_out_of_range():
    with pytest.raises(ValueError, match=r"label 37 at \[0, 0\] .* 37 rows"):
        linear_cross_entropy(H, TABLE, LABELS.at[0, 0].set(37), vocab_size=37)
    f = jax.jit(lambda y: linear_cross_entropy(H, TABLE, y, reduction="none"))
    out = f(LABELS.at[0, 0].set(V).at[1, 1].set(-1))
    assert np.isnan(out).sum() == 2
    with pytest.raises(ValueError, match="label -100"):
        linear_cross_entropy(H, TABLE, LABELS.at[0, 0].set(-100), ignore_index=None)
    mask = jnp.ones(LABELS.shape, bool).at[0, 0].set(False)
    assert np.isfinite(linear_cross_entropy(H, TABLE, LABELS.at[0, 0].set(99), mask=mask))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"table_axes": "DxV"}, ValueError, "table_axes must be one of .*got 'DxV'"),
        ({"table_axes": "DV"}, ValueError, r"h must have .*\(3, 7, 40\), got \(3, 7, 16\)"),
        ({"labels": LABELS[:, :5]}, ValueError, r"\(3, 5, 16\), got \(3, 7, 16\)"),
        ({"reduction": "max"}, ValueError, "reduction must be one of .*got 'max'"),
        ({"chunk": 0}, ValueError, "chunk must be at least 1, got 0"),
        ({"vocab_size": 41}, ValueError, r"vocab_size must be in 1 \.\. 40 .*got 41"),
        ({"mask": jnp.ones((3, 7))}, TypeError, "mask must be bool .*got float32"),
        ({"mask": jnp.ones((3, 6), bool)}, TypeError, r"mask must be .*\(3, 6\)"),
        ({"labels": jnp.ones((3, 7))}, TypeError, "label must be integers, got float32"),
    ],
)
def test_bad_arguments_raise(options, error, message):
    with pytest.raises(error, match=message):
        linear_cross_entropy(**{"h": H, "table": TABLE, "labels": LABELS, **options})
