#include "tiles.h"

#if defined(OCTAVO_HAS_TILES) && !defined(OCTAVO_EMULATE_TILES)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#endif

namespace octavo {

const char* why_no_tiles() {
#if defined(OCTAVO_HAS_TILES) && !defined(OCTAVO_EMULATE_TILES)
    constexpr unsigned kBFloat16 = 1u << 22, kTiles = 1u << 24, kBytes = 1u << 25;
    unsigned a = 0, b = 0, c = 0, d = 0;
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (~d & (kBFloat16 | kTiles | kBytes)) != 0)
        return "this processor has no AMX for bfloat16 and int8";
#if defined(__linux__)
    constexpr long kRequestPermission = 0x1023, kTileData = 18;  // asm/prctl.h, the number of a state component
    if (syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0) return nullptr;
#endif
    return "the operating system does not let this process use AMX";
#else
    return nullptr;
#endif
}

}  // namespace octavo
