"""The paged key/value cache as bookkeeping: blocks, prefixes, cache groups. No tensors."""

from octavo.cache.block_pool import NULL_BLOCK, BlockPool, PrefixKey
from octavo.cache.hashing import PrefixHasher
from octavo.cache.manager import CacheManager, NewBlocks, RequestCache

__all__ = ["NULL_BLOCK", "BlockPool", "CacheManager", "NewBlocks", "PrefixHasher", "PrefixKey", "RequestCache"]
