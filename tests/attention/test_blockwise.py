"""What blockwise attention promises beyond its values: gradients, transformations, memory."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from draws import normal
from jax.test_util import check_grads

from flax_pos import Coords, Dims, Scheme, attend, get_scheme, list_schemes
from flax_pos.attention import Reach, prepare
from flax_pos.functional.shapes import shapes_inside

DIMS = Dims(width=12, heads=4, kv_heads=2, head_dim=6, layers=1, max_len=64)
LENGTH = 12
BLOCKS = {"implementation": "blockwise", "block_q": 5, "block_k": 4}


def scheme_of(name):
    cls = get_scheme(name)
    return cls(**cls.toy)


def inputs(batch=2, length=LENGTH, dtype=jnp.float32):
    shapes = (DIMS.width,), (4, 6), (2, 6), (2, 5)
    return [normal((batch, length, *shape), n, dtype) for n, shape in enumerate(shapes)]


def index(batch=2, length=LENGTH):
    return jnp.broadcast_to(jnp.arange(length, dtype=jnp.int32), (batch, length))


def params_of(scheme):
    return scheme.layer_params(scheme.init(jax.random.key(1), DIMS), 0)


def layer(scheme, params, x, q, k, v, at, **options):
    features = scheme.features(at.pos, DIMS._replace(length=LENGTH))
    q, k, at = prepare(scheme, params, x, q, k, at, features)
    return attend(scheme, params, q, k, v, at, at, **options)


def both_gradients(run, *args):
    """Values and gradients of a scalar made of `run`, dense and blockwise."""
    return [gradients(run, args, **options) for options in ({"implementation": "dense"}, BLOCKS)]


def gradients(run, args, **options):
    loss = lambda *args: jnp.sum(jnp.sin(run(*args, **options)))
    return jax.jit(jax.value_and_grad(loss, tuple(range(len(args)))))(*args)


def assert_equal(got, wanted, tolerance=1e-4):
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(
            a.astype(jnp.float32), b.astype(jnp.float32), rtol=tolerance, atol=tolerance
        ),
        got,
        wanted,
    )


@pytest.mark.parametrize("hidden", [1, 16, 32, 128])
def test_what_a_scheme_holds_for_each_pair_makes_blocks_smaller(hidden):
    """However wide its network, a block holds no more than two plain blocks of scores do."""
    scheme, length = get_scheme("fire")(hidden=hidden), 2048
    args = jax.eval_shape(lambda: (params_of(scheme), *inputs(1, length), index(1, length)))
    run = lambda params, x, q, k, v, at: layer(
        scheme, params, x, q, k, v, Coords(at, at), implementation="blockwise"
    )
    sizes = [np.prod(shape) for shape in shapes_inside(jax.make_jaxpr(run)(*args).jaxpr)]
    plain = DIMS.heads * 512 * 256
    assert plain / 8 <= max(sizes) < 2 * plain


WINDOW, CHUNK = {"window": 4, "softcap": 2.0}, {"chunk": 5, "scale": 0.3}


@pytest.mark.parametrize(
    ("name", "options"),
    [("t5", WINDOW), ("fox", CHUNK), ("cope", WINDOW), ("stick_breaking", CHUNK)],
)
def test_gradients_with_options_padding_and_segments(name, options):
    scheme = scheme_of(name)
    rows = jnp.array([[-1, -1, *range(10)], [*range(7), *range(5)]], jnp.int32)
    segment = jnp.array([[0, 0] + [1] * 10, [1] * 7 + [2] * 5], jnp.int32)
    at = Coords(rows, jnp.maximum(rows, 0), {}, segment)
    run = lambda params, *xs, **how: layer(scheme, params, *xs, at, **options, **how)
    dense, blocks = both_gradients(run, params_of(scheme), *inputs())
    assert_equal(blocks, dense)


def test_gradients_of_sinks_scale_and_soft_cap():
    at = Coords(index(), index())
    x, q, k, v = inputs()

    def run(sinks, scale, softcap, q, **how):
        return layer(Scheme(), {}, x, q, k, v, at, sinks=sinks, scale=scale, softcap=softcap, **how)

    args = jnp.array([0.5, -1.0, 2.0, 0.0]), jnp.float32(0.4), jnp.float32(2.0), q
    dense, blocks = both_gradients(run, *args)
    assert all(np.abs(g).min() > 0 for g in dense[1][:3])
    assert_equal(blocks, dense)


def test_gradients_of_traced_settings_alone_and_in_a_vmap():
    at, xs = Coords(index(), index()), inputs()

    def run(max_bias, **how):
        return layer(dataclasses.replace(scheme_of("alibi"), max_bias=max_bias), {}, *xs, at, **how)

    dense, blocks = both_gradients(run, jnp.float32(3.0))
    assert float(jnp.abs(dense[1][0])) > 1e-3
    assert_equal(blocks, dense)
    gradient = jax.jit(jax.grad(lambda m: jnp.sum(jnp.sin(run(m, **BLOCKS)))))
    values = jnp.array([3.0, 5.0])
    assert_equal(jax.jit(jax.vmap(gradient))(values), jnp.stack(list(map(gradient, values))))


def test_gradients_of_what_a_scheme_closes_over():
    at, xs = Coords(index(), index()), inputs()

    def run(slope, **how):
        @dataclasses.dataclass(frozen=True, kw_only=True)
        class Closed(Scheme):
            def bias(self, params, q_at, k_at, heads):
                gap = q_at.pos[..., :, None] - k_at.pos[..., None, :]
                return slope * gap[..., None, :, :].astype(jnp.float32)

        return layer(Closed(), {}, *xs, at, **how)

    dense, blocks = both_gradients(run, jnp.float32(0.3))
    assert_equal(blocks, dense)


def test_gradients_of_real_positions():
    # A scheme may place tokens at real numbers that are trained: coords are differentiated too.
    class Slanted(Scheme):
        def bias(self, params, q_at, k_at, heads):
            gap = q_at.pos[..., :, None] - k_at.pos[..., None, :]
            return -jnp.abs(gap)[..., None, :, :]

    xs = inputs()
    run = lambda pos, **how: layer(Slanted(), {}, *xs, Coords(index(), pos), **how)
    dense, blocks = both_gradients(run, 0.37 * index().astype(jnp.float32))
    assert_equal(blocks, dense)


@pytest.mark.parametrize("name", ["fox", "cope"])
def test_gradients_are_those_of_finite_differences(name):
    scheme, at = scheme_of(name), Coords(index(1), index(1))
    run = jax.jit(lambda params, *xs: layer(scheme, params, *xs, at, **BLOCKS))
    check_grads(run, (params_of(scheme), *inputs(1)), 1, ["rev"], atol=2e-2, rtol=2e-2)


def test_16_bit_gradients_near_those_of_32_bits():
    scheme, at = scheme_of("fox"), Coords(index(), index())
    run = lambda params, *xs, **how: layer(scheme, params, *xs, at, **how).astype(jnp.float32)
    wide = gradients(run, (params_of(scheme), *inputs()), **BLOCKS)
    narrow = gradients(run, (params_of(scheme), *inputs(dtype=jnp.bfloat16)), **BLOCKS)
    assert [g.dtype for g in narrow[1][1:]] == [jnp.bfloat16] * 4
    assert_equal(narrow, wide, tolerance=0.08)


def test_transformations_compose():
    """vmap over rows that each have their own padding, jit, remat and scan over layers."""
    scheme = scheme_of("fox")
    params = params_of(scheme)
    rows = jnp.array([[-1, -1, *range(10)], [*range(9), -1, -1, -1]], jnp.int32)
    x, q, k, v = inputs()
    v = jnp.concatenate([v, v[..., :1]], -1)

    def loss(q, options):
        @jax.checkpoint
        def one(q, x, k, v, index):
            at = Coords(index, jnp.maximum(index, 0))
            return layer(scheme, params, x, q, k, v, at, **options)

        step = lambda q, _: (jax.vmap(one)(q, x, k, v, rows), None)
        out, _ = jax.lax.scan(step, q, None, length=2)
        return jnp.sum(out * out)

    run = jax.jit(jax.value_and_grad(loss), static_argnums=1)
    frozen = lambda options: _Options(options)
    assert_equal(run(q, frozen(BLOCKS)), run(q, frozen({"implementation": "dense"})))


class _Options(dict):
    def __hash__(self):
        return hash(tuple(self.items()))


@pytest.mark.slow
def test_second_order():
    """Dense: forward over reverse and reverse over reverse. Blockwise: the latter only."""
    # Without XLA's optimisations this very program gives NaN where its eager run does not.
    jax.config.update("jax_disable_most_optimizations", False)
    scheme, at = scheme_of("t5"), Coords(index(1), index(1))
    x, q, k, v = inputs(1)
    params, direction = params_of(scheme), jnp.ones_like(q)

    def loss(q, **how):
        return jnp.sum(jnp.sin(layer(scheme, params, x, q, k, v, at, **how)))

    dense = functools.partial(loss, implementation="dense")
    along = lambda f: lambda q: jnp.vdot(jax.grad(f)(q), direction)
    wanted = jax.jit(lambda q: jax.jvp(jax.grad(dense), (q,), (direction,))[1])(q)
    assert float(jnp.abs(wanted).max()) > 1e-3
    assert_equal(jax.jit(jax.grad(along(dense)))(q), wanted)
    blocks = functools.partial(loss, **BLOCKS)
    assert_equal(jax.jit(jax.grad(along(blocks)))(q), wanted)
    with pytest.raises(TypeError, match="forward-mode autodiff"):
        jax.jvp(blocks, (q,), (direction,))


# Blocks that are not seen ------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"window": 4}, {"chunk": 4}], ids=str)
def test_unseen_blocks_are_not_computed(options):
    """NaN in a value spoils every row that multiplies it, if only by zero: rows whose blocks the
    causal mask, a window, a chunk or a segment hides must stay clean, and their gradients too."""
    x, q, k, v = inputs(1)
    segment = jnp.where(jnp.arange(LENGTH) < 8, 1, 2).astype(jnp.int32)[None]
    at = Coords(index(1), index(1), {}, segment)
    blocks = {"implementation": "blockwise", "block_q": 4, "block_k": 4, **options}
    run = jax.jit(lambda q, v: layer(Scheme(), {}, x, q, k, v, at, **blocks))
    far = v.at[:, 0].set(jnp.nan)  # the first block
    clean = slice(4, 12) if "chunk" in options else slice(8, 12)
    assert np.isfinite(run(q, far)[:, clean]).all()
    late = v.at[:, 4].set(jnp.nan)  # the second block: later than the first rows
    assert np.isfinite(run(q, late)[:, :4]).all()
    gradient = jax.jit(jax.grad(lambda q: jnp.sum(run(q, late)[:, :4])))(q)
    assert np.isfinite(gradient[:, :4]).all()


@pytest.mark.parametrize("seed", range(20))
def test_visible_blocks_cover_all_that_is_allowed(seed):
    rng = np.random.default_rng(seed)
    length, block_q, block_k = 24, 4, 6
    reach = Reach(
        causal=bool(rng.integers(2)),
        window=[None, 1, 5][rng.integers(3)],
        chunk=[None, 1, 7][rng.integers(3)],
    )
    scrambled = [rng.permutation(length) - rng.integers(0, 6) for _ in range(2)]
    rows = jnp.asarray(np.maximum(scrambled, -1), jnp.int32)
    segment = jnp.asarray(np.sort(rng.integers(0, 3, (2, length))), jnp.int32)
    at = Coords(rows, rows, {}, segment if rng.integers(2) else None)
    visible = reach.visible(at, at, block_q, block_k)
    allowed = reach.allowed(at, at).any((0, 1))
    blocks = allowed.reshape(length // block_q, block_q, length // block_k, block_k).any((1, 3))
    assert visible.shape == blocks.shape
    assert (visible | ~blocks).all()


def test_half_of_the_blocks_of_a_causal_sequence_are_visible():
    at = Coords(index(1, 64), index(1, 64))
    assert int(Reach().visible(at, at, 8, 8).sum()) == 8 * 9 // 2
    assert int(Reach(window=8).visible(at, at, 8, 8).sum()) == 8 + 7
    assert int(Reach(chunk=16).visible(at, at, 8, 8).sum()) == 4 * 3


# Memory ------------------------------------------------------------------------------------------


def temporaries(name, length):
    """MiB of temporaries of value and gradients to parameters, activations, q, k and v: 8 heads of
    64, batch 1."""
    jax.config.update("jax_disable_most_optimizations", False)  # as users compile it
    dims = Dims(width=64, heads=8, kv_heads=8, head_dim=64, layers=1, max_len=length)
    scheme = get_scheme(name)()
    shape = lambda *s: jax.ShapeDtypeStruct((1, length, *s), jnp.float32)
    params = jax.eval_shape(lambda k: scheme.layer_params(scheme.init(k, dims), 0), KEY)
    heads = [shape(8, 64)] * 3

    def loss(params, x, q, k, v, index):
        at = Coords(index, index)
        features = scheme.features(index, dims._replace(length=length))
        q, k, at = prepare(scheme, params, x, q, k, at, features)
        return jnp.sum(attend(scheme, params, q, k, v, at, at, implementation="blockwise") ** 2)

    run = jax.jit(jax.value_and_grad(loss, (0, 1, 2, 3, 4)))
    index = jax.ShapeDtypeStruct((1, length), jnp.int32)
    compiled = run.lower(params, shape(dims.width), *heads, index).compile()
    return compiled.memory_analysis().temp_size_in_bytes / 2**20


KEY = jax.eval_shape(lambda: jax.random.key(0))


def with_bias(name):
    scheme = get_scheme(name)()
    return "bias" in scheme.uses and "scores" not in scheme.uses


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in list_schemes() if with_bias(name)])
def test_bias_schemes_need_at_most_64_mib_at_4096(name):
    used = temporaries(name, 4096)
    assert used <= 64, f"{name}: {used:.1f} MiB of temporaries"


@pytest.mark.slow
def test_memory_grows_linearly():
    small, large = temporaries("fire", 8192), temporaries("fire", 32768)
    assert large <= 4.1 * small, f"{small:.1f} MiB at 8192 and {large:.1f} MiB at 32768"
