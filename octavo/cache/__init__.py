"""Bookkeeping of the paged key/value cache: blocks, prefixes, cache groups. No tensors; start in ``manager.py``."""

from octavo.cache.block_pool import NULL_BLOCK, BlockPool, prefix_key
from octavo.cache.groups import UNLIMITED
from octavo.cache.hashing import PrefixHasher
from octavo.cache.listeners import BlockListener, StoredBlocks
from octavo.cache.manager import CacheManager, RequestCache
