"""Angles without rounding: position times frequency, reduced to one turn in integers.

A frequency is held as the fraction of a turn that one token advances, a 64-bit fixed-point number
in two uint32 words. Its product with an integer position, modulo one turn, is then an integer
product that wraps by itself, so the error does not grow with the position: for every int32
position and static float64 frequencies the angle is within 3e-7 rad of the real product (float32
alone is off by 0.03 rad at position 2**20).

Frequencies known only at run time (a traced base, learned frequencies) are float32 numbers; their
angles are exact for those float32 values, so scores still depend on m - n alone, but the
frequency itself carries float32's relative error of 6e-8.
"""

from fractions import Fraction
from functools import partial
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, UInt

_INV_TWO_PI = Fraction(
    15915494309189533576888376337251436203445964574045644874766734405889679763422653509, 10**83
)
_WORTH_KEEPING = 4096
"""Elements of a table below which computing it again is as cheap as reading it."""
# 1 / (2 pi) in units of 2**-98, as three uint32 words from the lowest up.
_INV_TWO_PI_WORDS = tuple(
    np.uint32(round(_INV_TWO_PI * 2**98) >> (32 * i) & 0xFFFFFFFF) for i in range(3)
)


def turn_words(inv_freq) -> UInt[np.ndarray, "2 F"] | UInt[Array, "2 F"]:
    """Turns per token as 64-bit fixed point: high words, then low words.

    Args:
      inv_freq: `F` radians per token; NumPy float64 (exact, computed now) or a traced or concrete
        JAX float32 array (exact for the float32 values).
    """
    if isinstance(inv_freq, jax.Array):
        return _turn_words_of_float32(inv_freq)
    turns = [
        round(Fraction(float(w)) * _INV_TWO_PI * 2**64) & (2**64 - 1) for w in np.asarray(inv_freq)
    ]
    return np.array([[t >> 32 for t in turns], [t & 0xFFFFFFFF for t in turns]], np.uint32)


def _turn_words_of_float32(inv_freq: Float[Array, " F"]) -> UInt[Array, "2 F"]:
    # |w| = mantissa * 2**(exponent - 24), so turns * 2**64 = (mantissa * C) >> (58 - exponent)
    # with C = 2**98 / (2 pi): a product of 24 by 96 bits, then a shift of its four words.
    fraction, exponent = jnp.frexp(jnp.abs(inv_freq))
    mantissa = (fraction * np.float32(2**24)).astype(jnp.uint32)
    product, carry = [], jnp.zeros_like(mantissa)
    for word in _INV_TWO_PI_WORDS:
        low = mantissa * word
        total = low + carry
        carry = multiply_high(mantissa, word) + (total < low).astype(jnp.uint32)
        product.append(total)
    words = jnp.stack([*product, carry, *[jnp.zeros_like(carry)] * 5])
    shift = jnp.clip(58 - exponent, 0, 127).astype(jnp.uint32)
    at = (shift // 32).astype(jnp.int32)
    bits = shift % 32
    picked = [jnp.take_along_axis(words, (at + i)[None], axis=0)[0] for i in range(3)]
    # A shift by 32 is undefined, so the upper part is shifted in two steps.
    low, high = (
        (a >> bits) | ((b << np.uint32(1)) << (np.uint32(31) - bits)) for a, b in pairwise(picked)
    )
    negative = inv_freq < 0
    return jnp.stack(
        [
            jnp.where(negative, ~high + (low == 0).astype(jnp.uint32), high),
            jnp.where(negative, ~low + np.uint32(1), low),
        ]
    )


def multiply_high(a: UInt[Array, "..."], b) -> UInt[Array, "..."]:
    """The upper word of the 64-bit product of two uint32 arrays."""
    half, mask = np.uint32(16), np.uint32(0xFFFF)
    a_high, a_low, b_high, b_low = a >> half, a & mask, b >> half, b & mask
    middle = a_high * b_low + (a_low * b_low >> half)
    other = a_low * b_high + (middle & mask)
    return a_high * b_high + (middle >> half) + (other >> half)


def turns(positions: Int[Array, "*S"], words) -> UInt[Array, "*BT F"]:
    """`positions * frequency` modulo one turn, in units of 2**-32 turns.

    Args:
      positions: int32 of any sign, `*B T 1` or, one for each pair, `*B T F`.
      words: the result of `turn_words`.
    """
    axes = tuple(range(positions.ndim - 1))
    high, low = (jnp.expand_dims(jnp.asarray(w), axes) for w in (words[0], words[1]))
    p = jax.lax.bitcast_convert_type(positions, jnp.uint32)
    # A negative position reads as p + 2**32, which adds one `low` too many to the upper word.
    excess = jnp.where(positions < 0, low, np.uint32(0))
    return p * high + multiply_high(p, low) - excess


def cos_sin_of_turns(turns: UInt[Array, "*S"], dtype=jnp.float32):
    """Cosine and sine of an angle in units of 2**-32 turns, within 2e-7 (float64: 2e-9).

    The angle is folded to an eighth of a turn around the nearest quarter, where float32 is finest
    and no library function reduces it again; zero gives exactly 1 and 0.
    """
    quarter = (turns + np.uint32(1 << 29)) >> np.uint32(30)
    rest = jax.lax.bitcast_convert_type(turns - (quarter << np.uint32(30)), jnp.int32)
    angle = rest.astype(dtype) * jnp.asarray(2 * np.pi / 2**32, dtype)
    c, s = jnp.cos(angle), jnp.sin(angle)
    swap = (quarter & np.uint32(1)) != 0
    cos, sin = jnp.where(swap, s, c), jnp.where(swap, c, s)
    two = np.uint32(2)
    cos = jnp.where(((quarter + np.uint32(1)) & two) != 0, -cos, cos)
    sin = jnp.where((quarter & two) != 0, -sin, sin)
    return cos, sin


def exact_cos_sin(positions: Int[Array, "*S"], inv_freq, dtype=jnp.float32):
    """Cosine and sine of `positions * inv_freq`, each `*B T F`.

    Args:
      positions: int32 of any sign, `*B T 1` or, one for each pair, `*B T F`.
      inv_freq: `F` radians per token: NumPy float64, or a JAX float32 array, in which case the
        result is differentiable in it.
      dtype: of the result, float32 or float64.
    """
    if isinstance(inv_freq, jax.Array):
        return _differentiable_cos_sin(positions, inv_freq.astype(jnp.float32), dtype)
    return cos_sin_of_words(positions, turn_words(inv_freq), dtype)


@partial(jax.jit, static_argnums=2, inline=True)
def cos_sin_of_words(positions: Int[Array, "*S"], words: UInt[Array, "2 F"], dtype=jnp.float32):
    """The same with frequencies as `turn_words` gives them."""
    make = lambda: cos_sin_of_turns(turns(positions, words), dtype)
    size = positions.size // positions.shape[-1] * words.shape[-1]
    unknown = not isinstance(size, int)  # symbolic, while exporting
    if unknown or size < _WORTH_KEEPING or jax.default_backend() == "gpu":
        return make()
    # Readers would each fuse the tables into their own loop and compute them for every head. A
    # loop that the compiler cannot see through (it runs once) makes it compute them alone. Which
    # way is taken changes nothing but speed; GPUs recompute faster than they loop.
    once = jax.lax.optimization_barrier(jnp.int32(1))
    # Zeros made of the operands, so that inside shard_map they vary over the same devices.
    zero = (positions ^ positions).astype(jnp.uint32) + jnp.expand_dims(
        words[0] ^ words[0], tuple(range(positions.ndim - 1))
    )
    zeros = zero.astype(dtype)
    return jax.lax.fori_loop(0, once, lambda i, _: make(), (zeros, zeros))


@partial(jax.custom_jvp, nondiff_argnums=(2,))
def _differentiable_cos_sin(positions, inv_freq, dtype):
    cos, sin = cos_sin_of_words(positions, turn_words(inv_freq), dtype)
    # Integers hold no NaN.
    known = jnp.expand_dims(jnp.isfinite(inv_freq), tuple(range(positions.ndim - 1)))
    return jnp.where(known, cos, jnp.nan), jnp.where(known, sin, jnp.nan)


@_differentiable_cos_sin.defjvp
def _cos_sin_jvp(dtype, primals, tangents):
    positions, inv_freq = primals
    cos, sin = _differentiable_cos_sin(positions, inv_freq, dtype)
    step = jnp.expand_dims(tangents[1].astype(dtype), tuple(range(positions.ndim - 1)))
    turned = positions.astype(dtype) * step
    return (cos, sin), (-sin * turned, cos * turned)


def float32_cos_sin(positions: Int[Array, "*S"], inv_freq):
    """The same with position, frequency and product each rounded to float32, as most code bases
    do: what a model trained that way saw, and wrong by `6e-8 * position` rad."""
    w = jnp.expand_dims(jnp.asarray(inv_freq, jnp.float32), tuple(range(positions.ndim - 1)))
    angle = positions.astype(jnp.float32) * w
    return jnp.cos(angle), jnp.sin(angle)
