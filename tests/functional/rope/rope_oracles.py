"""Independent references, written from the formulas in NumPy float64 or exact fractions."""

from fractions import Fraction

import numpy as np

# 1 / (2 pi) to 83 digits.
INV_TWO_PI = Fraction(
    15915494309189533576888376337251436203445964574045644874766734405889679763422653509, 10**83
)


def exact_angle(position: int, inv_freq: float) -> float:
    """`position * inv_freq` reduced to [-pi, pi], from exact fractions."""
    turns = Fraction(int(position)) * Fraction(float(inv_freq)) * INV_TWO_PI
    return float(turns - round(turns)) * 2 * np.pi


def exact_angles(positions, inv_freq) -> np.ndarray:
    """float64 `*P F`."""
    flat = [[exact_angle(p, w) for w in inv_freq] for p in np.ravel(positions)]
    return np.array(flat).reshape(*np.shape(positions), len(inv_freq))


def pairs(rotary_dim: int, layout: str, start: int = 0):
    """Channels of both members of every pair as they are read, and as they are written."""
    i = np.arange(rotary_dim // 2)
    half = np.stack([i, i + rotary_dim // 2]) + start
    adjacent = np.stack([2 * i, 2 * i + 1]) + start
    return {
        "half": (half, half),
        "interleaved": (adjacent, adjacent),
        "interleaved_in_half_out": (adjacent, half),
    }[layout]


def rotated(x, angles, layout="half", start=0) -> np.ndarray:
    """float64 `... N H` with every pair turned, one pair at a time as complex numbers.

    `angles` is `... F`; the rotated channels begin at `start`.
    """
    x = np.asarray(x, np.float64)
    out = x.copy()
    read, write = pairs(2 * angles.shape[-1], layout, start)
    for f in range(angles.shape[-1]):
        z = x[..., read[0, f]] + 1j * x[..., read[1, f]]
        z = z * np.exp(1j * angles[..., None, f])
        out[..., write[0, f]], out[..., write[1, f]] = z.real, z.imag
    return out


def rope(x, positions, theta=10000.0, layout="half", rotary_dim=None) -> np.ndarray:
    """float64 RoPE."""
    rotary_dim = np.shape(x)[-1] if rotary_dim is None else rotary_dim
    inv_freq = [theta ** (-2 * i / rotary_dim) for i in range(rotary_dim // 2)]
    return rotated(x, exact_angles(positions, inv_freq), layout)


def unit_error(a, b) -> float:
    """Largest difference, as a plain number for messages."""
    return float(np.max(np.abs(np.asarray(a, np.float64) - np.asarray(b, np.float64))))
