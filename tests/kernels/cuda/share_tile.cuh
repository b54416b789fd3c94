// What a copy of a tile needs, for share_tile.cu.
#pragma once

using uint32 = unsigned int;
using uint64 = unsigned long long;

struct alignas(64) TensorMap {
  uint64 words[16];
};

__device__ inline uint32 shared_address(const void* pointer) {
  return static_cast<uint32>(__cvta_generic_to_shared(pointer));
}
