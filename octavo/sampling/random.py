"""Random numbers without state: a request's seed and the number of the token to draw decide everything.

The generator hashes its counter (SplitMix64: Steele, Lea, Flood, "Fast splittable pseudorandom number generators",
OOPSLA 2014), so replaying a request, preempting it or batching it differently repeats the same draws.
"""

from torch import Tensor


def as_signed(value: int) -> int:
    """The 64-bit pattern of a whole number as the signed value that an int64 tensor holds."""
    return ((value + (1 << 63)) % (1 << 64)) - (1 << 63)


_GOLDEN = as_signed(0x9E3779B97F4A7C15)
_FACTOR_1 = as_signed(0xBF58476D1CE4E5B9)
_FACTOR_2 = as_signed(0x94D049BB133111EB)


def uniforms(seeds: Tensor, counters: Tensor) -> Tensor:
    """One number per row, uniform over the multiples of 2⁻⁵² in [0, 1).

    Args:
        seeds: ``[N]`` int64.
        counters: ``[N]`` int64, which of the seed's numbers.

    Returns:
        ``[N]`` float64.
    """
    # Seeds are hashed first: people choose 0, 1, 2 …, and streams must not be shifted copies of each other.
    bits = _mix(_mix(seeds + _GOLDEN) + counters * _GOLDEN)
    return _shift(bits, 12).double() * 2.0**-52


def _mix(z: Tensor) -> Tensor:
    """SplitMix64's finaliser; products wrap around."""
    z = (z ^ _shift(z, 30)) * _FACTOR_1
    z = (z ^ _shift(z, 27)) * _FACTOR_2
    return z ^ _shift(z, 31)


def _shift(z: Tensor, places: int) -> Tensor:
    """Logical shift to the right; torch's own repeats the sign."""
    return (z >> places) & ((1 << (64 - places)) - 1)
