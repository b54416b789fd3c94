"""Integers of one to eight bits as checkpoints pack them: one after another, the lowest bits first, across words."""

import math

import torch

WORD_BITS = 32
_BYTE_BITS = 8


def num_words(count: int, bits: int) -> int:
    """The 32-bit words that so many integers of so many bits take."""
    return -(-count * bits // WORD_BITS)


def unpack_words(words: torch.Tensor, bits: int, dim: int, size: int) -> torch.Tensor:
    """The codes in 32-bit words.

    Args:
        words: int32 of two dimensions, in the order of bytes that all supported processors have.
        dim: the dimension in which consecutive words hold consecutive codes.
        size: number of codes in it; words may have more.

    Returns:
        uint8, with that many codes in the dimension.
    """
    rows = words.movedim(dim, -1)
    packed = rows.reshape(-1).view(torch.uint8).unflatten(0, (rows.shape[0], -1))
    return unpack_bits(packed, bits, size).movedim(-1, dim)


def unpack_bits(packed: torch.Tensor, bits: int, size: int) -> torch.Tensor:
    """The codes in bytes.

    Args:
        packed: ``[..., bytes]`` uint8.
        size: number of codes in the last dimension; bytes may have more.

    Returns:
        ``[..., size]`` uint8.
    """
    if bits == _BYTE_BITS:
        return packed[..., :size]
    # The shortest run of whole bytes that holds whole codes.
    num_codes = _BYTE_BITS // math.gcd(bits, _BYTE_BITS)
    num_bytes = num_codes * bits // _BYTE_BITS
    if missing := -packed.shape[-1] % num_bytes:
        packed = torch.nn.functional.pad(packed, (0, missing))
    packed = packed.unflatten(-1, (-1, num_bytes))
    codes = packed.new_empty(*packed.shape[:-1], num_codes)
    for index in range(num_codes):
        byte, shift = divmod(index * bits, _BYTE_BITS)
        end = shift + bits
        code = packed[..., byte] >> shift if shift else packed[..., byte]
        if end > _BYTE_BITS:
            code |= packed[..., byte + 1] << (_BYTE_BITS - shift)
        codes[..., index] = code if end == _BYTE_BITS else code & ((1 << bits) - 1)
    return codes.flatten(-2)[..., :size]
