"""RNoPE-SWA, iRoPE, DroPE, windows: which layer, and which stage of training, sees what."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from harness import DIMS, case, close, rope_dots, softmax_rows, weights

from flax_pos.scheme import Wrapper, plan_layers
from flax_pos.schemes.drope import Drope
from flax_pos.schemes.fox import Fox
from flax_pos.schemes.irope import IRope
from flax_pos.schemes.learnable_rope import LearnableRope
from flax_pos.schemes.none import NoPE
from flax_pos.schemes.randomized import Randomized
from flax_pos.schemes.rnope_swa import RNoPESWA
from flax_pos.schemes.rope import Rope
from flax_pos.schemes.window import Window


def test_rnope_swa_sees_all_without_positions_in_every_fourth_layer():
    scheme = RNoPESWA(local_window=5, theta=100.0)
    plan = plan_layers(scheme, 8)
    assert plan.part_of == (0, 0, 0, 1, 0, 0, 0, 1)
    assert plan.period == 4
    local, whole = plan.parts
    assert whole == NoPE()
    assert (local.window, whole.window) == (5, None)
    c = case(local)
    _, _, q, k = c.numpy()
    near = softmax_rows(
        rope_dots(q, k, lambda i, j: i - j, 100.0), seen=lambda i, j: i - 5 < j <= i
    )
    close(weights(local, c), near)
    assert RNoPESWA().for_layer(0).window == 4096


def test_irope_chunks_normalises_and_grows():
    scheme = IRope(local_chunk=5, temperature_length=4)
    local, whole = plan_layers(scheme, 8).parts
    assert (local.chunk, local.window, whole.chunk) == (5, None, None)
    c = case(local)
    _, _, q, k = c.numpy()
    unit = lambda v: v / np.sqrt((v**2).mean(-1, keepdims=True) + 1e-5)
    order = np.array([0, 2, 4, 6, 1, 3, 5, 7])  # interleaved to half
    q, k = unit(q)[..., order], unit(k)[..., order]
    expected = softmax_rows(
        rope_dots(q, k, lambda i, j: i - j, 5e5), seen=lambda i, j: j <= i and i // 5 == j // 5
    )
    close(weights(local, c), expected)
    grown = case(whole)
    factor = 1 + 0.1 * np.log(1 + (np.arange(13) + 1) // 4)
    by_hand = grown._replace(q=grown.q * jnp.asarray(factor, jnp.float32)[None, :, None, None])
    close(weights(whole, grown), weights(NoPE(), by_hand))


@pytest.mark.parametrize("preset", [RNoPESWA, IRope])
def test_presets_have_no_maths_of_their_own(preset):
    scheme = preset()
    assert scheme.for_layer(3) is not scheme
    with pytest.raises(TypeError, match=f"{scheme.name} has no rotate of its own"):
        scheme.rotate({}, None, None, "q")
    with pytest.raises(ValueError, match="period must be at least 2, got 1"):
        preset(period=1)


def test_presets_can_be_swept_over_theta():
    thetas = jnp.array([100.0, 10000.0])
    c = case(Rope())
    sweep = jax.vmap(lambda t: RNoPESWA(theta=t).for_layer(0).features(c.pos, DIMS)["rope_cos"])
    for theta, cos in zip(thetas, sweep(thetas), strict=True):
        close(cos, Rope(theta=float(theta)).features(c.pos, DIMS)["rope_cos"], 1e-5)


def test_drope_is_its_inner_scheme_and_then_nothing():
    c = case(Rope())
    close(weights(Drope(), c), weights(Rope(), c))
    close(weights(Drope(dropped=True), c), weights(NoPE(), c))
    assert Drope(dropped=True).uses == {"init_layer"}  # the parameters stay what they were


def test_drope_keeps_the_parameters_of_what_it_drops():
    before, after = (Drope(inner=LearnableRope(), dropped=d) for d in (False, True))
    key = jax.random.key(0)
    shapes = lambda s: jax.tree.map(jnp.shape, s.init(key, DIMS))
    assert shapes(before) == shapes(after) == shapes(LearnableRope())
    c = case(before)
    close(weights(after, c), weights(NoPE(), c._replace(params={})))


def test_drope_claims_what_is_in_force():
    inner = Window(inner=Randomized(inner=Fox()), window=4)
    names = ("window", "causal_only", "depends_on_length")
    claims = lambda dropped: [getattr(Drope(inner=inner, dropped=dropped), n) for n in names]
    assert claims(False) == [4, True, True]
    assert claims(True) == [None, False, False]


def test_every_hook_and_claim_of_drope_is_switched():
    dropped = Drope(inner=Fox(), dropped=True)
    own = {n for n, v in vars(Drope).items() if isinstance(v, property)}
    hooks = {"positions", "embed", "features", "coords", "rotate", "bias", "scores"}
    claims = {n for n, v in vars(Wrapper).items() if isinstance(v, property)} - {"uses"}
    assert hooks | claims <= own
    assert dropped.bias({}, None, None, 4) is None


@pytest.mark.parametrize("options", [{"window": 4}, {"window": None, "chunk": 4}])
def test_windows_hold_for_any_scheme(options):
    scheme = Window(inner=Fox(), **options)
    c = case(scheme)
    w = weights(scheme, c)
    i, j = np.ogrid[:13, :13]
    seen = (i - 4 < j) if scheme.window else (i // 4 == j // 4)
    np.testing.assert_array_equal(w.max(0) > 0, seen & (j <= i))


def test_a_window_is_never_wider_than_the_one_inside():
    with pytest.raises(ValueError, match="window=512 is wider than that of 'window', which is 4"):
        Window(inner=Window(window=4))
    with pytest.raises(ValueError, match="window=None is wider"):
        Window(inner=Window(window=4), window=None, chunk=8)
    with pytest.raises(ValueError, match="chunks of 8 tokens, and chunk=None takes them away"):
        Window(inner=Window(window=None, chunk=8))
    with pytest.raises(ValueError, match="chunk=6 around a scheme with chunks of 8"):
        Window(inner=Window(window=None, chunk=8), chunk=6)
    inside = Window(inner=Window(window=9), window=4)
    assert (inside.window, inside.for_layer(0).window) == (4, 4)


def test_a_window_around_layers_keeps_what_each_has():
    reach = lambda scheme: [(part.window, part.chunk) for part in map(scheme.for_layer, range(4))]
    swa = RNoPESWA(local_window=8)
    assert reach(Window(inner=swa, window=512)) == [(8, None)] * 3 + [(512, None)]
    assert reach(Window(inner=swa, window=5)) == [(5, None)] * 4
    irope = IRope(local_chunk=8)
    assert reach(Window(inner=irope, window=512)) == [(512, 8)] * 3 + [(512, None)]


@pytest.mark.parametrize("field", ["window", "chunk"])
def test_sizes_are_plain_whole_numbers(field):
    for value, said in ((2.5, "got 2.5"), (True, "got True"), (np.int64(4), "plain data: int")):
        with pytest.raises(TypeError, match=f"{field} must be a whole number.*{said}"):
            Window(**{field: value})
    with pytest.raises(ValueError, match=f"{field} must be at least 1, got 0"):
        Window(**{field: 0})
