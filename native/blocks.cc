#include "block_pack.h"

namespace octavo {

decltype(Gemm::run_block) find_run_block_of(int32_t block) {
    switch (block) {
        case 0: return run_block<BlockFormat<0>>;
        case 1: case kBlockInt4: return run_block<BlockFormat<1>>;
        case 2: return run_block<BlockFormat<2>>;
        case 3: return run_block<BlockFormat<3>>;
        case 4: case kBlockInt8: return run_block<BlockFormat<4>>;
        case 5: return run_block<BlockFormat<5>>;
        case 6: return run_block<BlockFormat<6>>;
        case 7: return run_block<BlockFormat<7>>;
        case 8: case kBlockMXFP4: return run_block<BlockFormat<8>>;
        case 9: return run_block<BlockFormat<9>>;
        case 10: return run_block<BlockFormat<10>>;
        default: return run_block<BlockFormat<11>>;
    }
}

}  // namespace octavo
