// What lies where in shared memory: a ring of tiles of x, and one of packed weights; see gemm_layout.cuh.

#pragma once

constexpr int UNIT = 128;                       // values of K whose codes are packed together: a stage of weights
constexpr int UNIT_STEPS = UNIT / STEP_VALUES;  // stages of x
constexpr int CODE_BYTES = UNIT * CODES / 8;    // of a row of W in a stage
constexpr int TERM_BYTES = 4;                   // likewise: its scale and zero, as grouped_terms.py has them
constexpr int BLOCK_CODE_BYTES = BLOCK * CODE_BYTES, BLOCK_TERM_BYTES = BLOCK * TERM_BYTES;
constexpr int STAGING_BYTES = (OWN_ROWS < 64 ? OWN_ROWS : 64) * 128;  // of a warpgroup: rows are written at once

static_assert(CODES == 4, "codes of 4 bits are unpacked");

constexpr int X_PLACE = 0;
constexpr int CODES_PLACE = X_PLACE + STAGES * X_BYTES;
constexpr int STAGING_PLACE = CODES_PLACE + CODE_STAGES * GROUPS * BLOCK_CODE_BYTES;
constexpr int TERMS_PLACE = STAGING_PLACE + GROUPS * STAGING_BYTES;
constexpr int ROW_SCALE_PLACE = TERMS_PLACE + CODE_STAGES * GROUPS * BLOCK_TERM_BYTES;
constexpr int X_FULL_PLACE = ROW_SCALE_PLACE + ROWS * 4;               // a stage of x has been loaded
constexpr int X_EMPTY_PLACE = X_FULL_PLACE + STAGES * 8;               // it has been multiplied
constexpr int CODES_FULL_PLACE = X_EMPTY_PLACE + STAGES * 8;           // a stage of codes has been loaded
constexpr int CODES_EMPTY_PLACE = CODES_FULL_PLACE + CODE_STAGES * 8;  // it is in registers, wherever it is shared
constexpr int DONE_PLACE = CODES_EMPTY_PLACE + CODE_STAGES * 8;        // all parts have been summed
constexpr int MERGED_PLACE = DONE_PLACE + 8;                           // a warpgroup has the sums of the other parts
