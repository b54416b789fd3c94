"""Random numbers without state: a request's seed and the number of the token to draw decide everything.

The generator hashes its counter, so replaying a request, preempting it or batching it differently repeats the same
draws. It is SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014), whose
products wrap around.
"""

from torch import Tensor

_MASK = (1 << 64) - 1


def _as_signed(value: int) -> int:
    """The 64-bit pattern of a whole number as the signed value that an int64 tensor holds."""
    return ((value + (1 << 63)) % (1 << 64)) - (1 << 63)


_GOLDEN = _as_signed(0x9E3779B97F4A7C15)
_FACTOR_1 = _as_signed(0xBF58476D1CE4E5B9)
_FACTOR_2 = _as_signed(0x94D049BB133111EB)


def stream_key(seed: int) -> int:
    """Where a seed's stream of numbers starts, as a signed 64-bit number.

    The seed is hashed: people choose 0, 1, 2 …, and streams must not be shifted copies of each other.
    """
    z = (seed + 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return _as_signed(z ^ (z >> 31))


def uniforms(keys: Tensor, counters: Tensor) -> Tensor:
    """One number per row, uniform over the multiples of 2⁻⁵² in [0, 1).

    Args:
        keys: ``[N]`` int64, of :func:`stream_key`.
        counters: ``[N]`` int64, which of the stream's numbers.

    Returns:
        ``[N]`` float64.
    """
    z = counters * _GOLDEN + keys
    z = (z ^ _shift(z, 30)) * _FACTOR_1
    z = (z ^ _shift(z, 27)) * _FACTOR_2
    return _shift(z ^ _shift(z, 31), 12).double() * 2.0**-52


def _shift(z: Tensor, places: int) -> Tensor:
    """Logical shift to the right; torch's own repeats the sign."""
    return (z >> places) & ((1 << (64 - places)) - 1)
