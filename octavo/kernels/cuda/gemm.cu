// GEMMs of few rows for Hopper: y = (x Wᵀ) · row scales · channel scales of float8 (e4m3) values, or y = x Wᵀ of 16-bit
// ones; y may be gated, act(y₁) · y₂ for the halves of W.
//
// A thread block multiplies 64 rows of W per warpgroup by ROWS rows of x. A producer warp keeps a ring in shared memory
// full of tiles of W, another of tiles of x, 128 bytes of K a step; the first does not wait for the kernel before. The
// other warpgroups multiply what lies in the ring: W is wgmma's A, x its B.
//
// A single block would load all of its tiles from the L2 cache, which cannot serve all multiprocessors at the rate at
// which they multiply. So blocks form clusters: SHARE_X blocks of neighbouring tiles of W multiply the same x; each
// loads its share and the copy engine writes it to all of them (multicast). In the same way SHARE_W blocks of
// neighbouring tiles of x share W. PARTS blocks each sum a part of K, exchange their sums through the cluster's shared
// memory, and write the results of some rows each.
//
// Norms of bfloat16 rows need no launch between two GEMMs. The one adds its outputs to the residual stream, and leaves
// the sums times the norm's weight and their sums of squares (ADDED); the other multiplies those weighted rows, and its
// own sums by the rows' inverse root mean squares (NORMED).
//
// Constants, given as macros:
//   GROUPS      warpgroups that multiply, 1 to 3
//   ROWS        rows of x in a tile, see wgmma.cuh
//   STAGES      of the ring
//   SHARE_X, SHARE_W, PARTS: their product is the size of the cluster
//   FLOAT8      whether values are e4m3, with scales
//   HALF        whether outputs, bias and 16-bit values are float16, else bfloat16
//   ACTIVATION  0: none, 1: silu, 2: gelu_tanh
//   NORMED, ADDED: see above

// The assembler bounds an instruction's registers by those at the launch, of which a thread has 128 with four warpgroups.
#if GROUPS == 3 && ROWS == 256
#define MMA_ROWS 128
#else
#define MMA_ROWS ROWS
#endif

#include "hopper.cuh"
#include "wgmma.cuh"

constexpr int CLUSTER = SHARE_X * SHARE_W * PARTS;
constexpr bool GATED = ACTIVATION != 0;
constexpr bool SCALES_ROWS = FLOAT8 || NORMED;
constexpr int BLOCK = 64;        // rows of W in a warpgroup; with a gate, every other eight are the gate's
constexpr int STEP_BYTES = 128;  // of K
constexpr int STEP_VALUES = FLOAT8 ? 128 : 64;
constexpr int THREADS_OF_GROUP = 128;
constexpr int THREADS = (GROUPS + 1) * THREADS_OF_GROUP;  // the last warpgroup produces
constexpr int WEIGHTS = GROUPS * BLOCK;
constexpr int BLOCK_OUTPUTS = GATED ? BLOCK / 2 : BLOCK;
constexpr int BLOCK_BYTES = BLOCK * STEP_BYTES, WEIGHT_BYTES = WEIGHTS * STEP_BYTES, X_BYTES = ROWS * STEP_BYTES;
constexpr int SUMS = ROWS / 2;  // of a thread
constexpr int OWN_ROWS = ROWS / PARTS, OWN_SUMS = SUMS / PARTS;  // of which a thread writes the results
// The tensor cores add float8 products with fewer bits than float32 has. So the sum of every 256 features is added to a
// float32 sum, if a warpgroup has registers for both.
constexpr bool EXACT = FLOAT8 && ROWS <= 128;

static_assert(OWN_ROWS % (GATED ? 32 : 16) == 0, "rows are written by four matrices of eight rows");
static_assert(!(ADDED && (GATED || HALF)) && !(NORMED && (FLOAT8 || HALF)), "the residual stream is bfloat16");
static_assert(GROUPS * (PARTS - 1) * OWN_SUMS * THREADS_OF_GROUP * 4 <= STAGES * X_BYTES, "others' sums fit in the ring");

// Shared memory: the ring, then scales of x's rows and the barriers.
constexpr int X_PLACE = STAGES * WEIGHT_BYTES;
constexpr int ROW_SCALE_PLACE = X_PLACE + STAGES * X_BYTES;
constexpr int FULL_PLACE = ROW_SCALE_PLACE + ROWS * 4;  // a stage has been loaded
constexpr int EMPTY_PLACE = FULL_PLACE + STAGES * 8;    // a stage has been multiplied, here and in blocks that share it
constexpr int DONE_PLACE = EMPTY_PLACE + STAGES * 8;    // all parts have been summed
constexpr int MERGED_PLACE = DONE_PLACE + 8;            // a warpgroup has the sums of the other parts
constexpr int SHARED_BYTES = MERGED_PLACE + GROUPS * 8;

// Which tiles a block has, and who shares them.
struct Place {
    int part, row_rank, weight_rank;  // in the cluster
    int first_step, last_step;
    int row_tile, first_weight_tile, weight_tile_step, num_weight_tiles;

    __device__ __forceinline__ int num_tiles() const {
        return (num_weight_tiles - first_weight_tile + weight_tile_step - 1) / weight_tile_step;
    }

    __device__ __forceinline__ int rank(int row_rank, int weight_rank) const {
        return (part * SHARE_W + row_rank) * SHARE_X + weight_rank;
    }
};

// A position in the ring.
struct Slot {
    int stage = 0;
    u32 phase = 0;

    __device__ __forceinline__ void advance() {
        if (++stage == STAGES) {
            stage = 0;
            phase ^= 1;
        }
    }
};

__device__ __forceinline__ void produce_weights(u32 shared, const TensorMap* map, const Place& place) {
    constexpr int SHARE = WEIGHTS / SHARE_W;
    u16 mask = 0;
    for (int i = 0; i < SHARE_W; i++) mask |= 1 << place.rank(i, place.weight_rank);
    Slot slot;
    for (int tile = place.first_weight_tile; tile < place.num_weight_tiles; tile += place.weight_tile_step) {
        const int row = tile * WEIGHTS + place.row_rank * SHARE;
        for (int step = place.first_step; step < place.last_step; step++) {
            const u32 full = shared + FULL_PLACE + slot.stage * 8;
            const u32 to = shared + slot.stage * WEIGHT_BYTES + place.row_rank * SHARE * STEP_BYTES;
            const int column = step * STEP_VALUES;
            barrier_wait(shared + EMPTY_PLACE + slot.stage * 8, slot.phase ^ 1);
            barrier_arrive_expect(full, WEIGHT_BYTES + X_BYTES);
            if (SHARE_W == 1) {
                GATED ? copy_box_4d(to, map, column, row / 16, full) : copy_box(to, map, column, row, full);
            } else {
                GATED ? multicast_box_4d(to, map, column, row / 16, full, mask)
                      : multicast_box(to, map, column, row, full, mask);
            }
            slot.advance();
        }
    }
}

__device__ __forceinline__ void produce_x(u32 shared, const TensorMap* map, const Place& place) {
    constexpr int SHARE = ROWS / SHARE_X;
    const u16 mask = ((1 << SHARE_X) - 1) << place.rank(place.row_rank, 0);
    const int row = place.row_tile * ROWS + place.weight_rank * SHARE;
    Slot slot;
    for (int tile = place.first_weight_tile; tile < place.num_weight_tiles; tile += place.weight_tile_step) {
        for (int step = place.first_step; step < place.last_step; step++) {
            const u32 full = shared + FULL_PLACE + slot.stage * 8;
            const u32 to = shared + X_PLACE + slot.stage * X_BYTES + place.weight_rank * SHARE * STEP_BYTES;
            barrier_wait(shared + EMPTY_PLACE + slot.stage * 8, slot.phase ^ 1);
            if (SHARE_X == 1) {
                copy_box(to, map, step * STEP_VALUES, row, full);
            } else {
                multicast_box(to, map, step * STEP_VALUES, row, full, mask);
            }
            slot.advance();
        }
    }
}

// A stage as a warpgroup sees it.
struct Consumer {
    u32 shared;
    int group;
    int thread;         // in the warpgroup
    u32 empty_barrier;  // this thread's to arrive at, of stage 0; 0 if it has none
    int num_refills;    // stages that will be loaded again: blocks may be gone when others are released

    __device__ __forceinline__ void issue(const Slot& slot, float (&sums)[SUMS], int accumulates) const {
        barrier_wait(shared + FULL_PLACE + slot.stage * 8, slot.phase);
        const u64 a = describe_tile(shared + slot.stage * WEIGHT_BYTES + group * BLOCK_BYTES);
        const u64 b = describe_tile(shared + X_PLACE + slot.stage * X_BYTES);
        multiply_fence();
#pragma unroll
        for (int i = 0; i < STEP_BYTES / 32; i++) {
#pragma unroll
            for (int row = 0; row < ROWS; row += MMA_ROWS) {
                auto& part = reinterpret_cast<float(&)[MMA_ROWS / 2]>(sums[row / 2]);
                multiply(part, a + 2 * i, b + row * STEP_BYTES / 16 + 2 * i, i > 0 || accumulates);
            }
        }
        multiply_commit();
    }

    __device__ __forceinline__ void release(int stage) {
        if (num_refills-- <= 0 || empty_barrier == 0) return;
        if (CLUSTER == 1) {
            barrier_arrive(empty_barrier + stage * 8);
        } else {
            barrier_arrive_cluster(empty_barrier + stage * 8);
        }
    }
};

// A warpgroup's sums of a tile. All stages but the last are released; `slot` becomes the first of the next tile.
__device__ __forceinline__ void multiply_tile(
    Consumer& consumer, Slot& slot, int num_steps, float (&sums)[SUMS], int& last_stage) {
    if constexpr (!EXACT) {
        for (int step = 0; step < num_steps; step++) {
            consumer.issue(slot, sums, step > 0);
            multiply_wait<1>();
            if (step > 0) consumer.release(last_stage);
            last_stage = slot.stage;
            slot.advance();
        }
        multiply_wait<0>();
    } else {
        float chain[SUMS];
#pragma unroll
        for (int i = 0; i < SUMS; i++) sums[i] = 0;
        int step = 0;
        for (; step + 1 < num_steps; step += 2) {
            consumer.issue(slot, chain, false);
            const int first_stage = slot.stage;
            slot.advance();
            consumer.issue(slot, chain, true);
            multiply_wait<1>();
            consumer.release(first_stage);
            last_stage = slot.stage;
            slot.advance();
            multiply_wait<0>();
            if (step + 2 < num_steps) consumer.release(last_stage);
#pragma unroll
            for (int i = 0; i < SUMS; i++) sums[i] += chain[i];
        }
        if (step < num_steps) {
            consumer.issue(slot, chain, false);
            last_stage = slot.stage;
            slot.advance();
            multiply_wait<0>();
#pragma unroll
            for (int i = 0; i < SUMS; i++) sums[i] += chain[i];
        }
    }
}

// Where a warpgroup finds the sums of other parts: each thread those with the same place in other blocks.
struct Pieces {
    static constexpr int BYTES = OWN_SUMS * THREADS_OF_GROUP * 4;
    u32 first;    // this thread's
    u32 barrier;  // all have come

    __device__ __forceinline__ explicit Pieces(const Consumer& consumer)
        : first(consumer.shared + X_PLACE + consumer.group * (PARTS - 1) * BYTES + consumer.thread * 16),
          barrier(consumer.shared + MERGED_PLACE + consumer.group * 8) {}
};

// Sends each block that has another part of the same tile the sums of those rows that it writes.
__device__ __forceinline__ void send_sums(const Consumer& consumer, const Place& place, const float (&sums)[SUMS]) {
    const Pieces pieces(consumer);
    const int own_rank = place.rank(place.row_rank, place.weight_rank);
    constexpr int PART_RANKS = SHARE_W * SHARE_X;
    // A ring takes in others' sums once no warpgroup needs it any more.
    if (consumer.thread < PARTS) {
        const int rank = own_rank + (consumer.thread - place.part) * PART_RANKS;
        barrier_arrive_cluster(cluster_address(consumer.shared + DONE_PLACE, rank));
    }
    barrier_wait(consumer.shared + DONE_PLACE, 0);
#pragma unroll
    for (int part = 0; part < PARTS; part++) {
        if (part == place.part) continue;
        const int rank = own_rank + (part - place.part) * PART_RANKS;
        const int piece = (place.part - part + PARTS) % PARTS - 1;
        const u32 to = cluster_address(pieces.first + piece * Pieces::BYTES, rank);
        const u32 barrier = cluster_address(pieces.barrier, rank);
#pragma unroll
        for (int i = 0; i < OWN_SUMS; i += 4)
            store_cluster(to + i * THREADS_OF_GROUP * 4, &sums[part * OWN_SUMS + i], barrier);
    }
}

// Adds what the other parts have sent to the block's own sums, which begin at `first`.
__device__ __forceinline__ void add_received(const Consumer& consumer, float (&sums)[SUMS], int first) {
    const Pieces pieces(consumer);
    barrier_wait_cluster(pieces.barrier, 0);
#pragma unroll
    for (int piece = 0; piece < PARTS - 1; piece++) {
#pragma unroll
        for (int i = 0; i < OWN_SUMS; i += 4) {
            const float4 values = load_shared_floats(pieces.first + piece * Pieces::BYTES + i * THREADS_OF_GROUP * 4);
            float* own = &sums[first + i];
            own[0] += values.x, own[1] += values.y, own[2] += values.z, own[3] += values.w;
        }
    }
}

// act(gate) · up: both activations are the gate times a sigmoid.
__device__ __forceinline__ float apply_gate(float gate, float up) {
    const float z = ACTIVATION == 1 ? gate : 1.5957691216057308f * gate * (1.0f + 0.044715f * gate * gate);
    return __fdividef(gate, 1.0f + __expf(-z)) * up;
}

// Two values as 16 bits each, the first in the lower half.
__device__ __forceinline__ u32 pack(float low, float high) {
    u32 result;
#if HALF
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(high), "f"(low));
#else
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(high), "f"(low));
#endif
    return result;
}

__device__ __forceinline__ float widen(u16 value) {
    float result;
#if HALF
    asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(value));
#else
    result = __uint_as_float(u32(value) << 16);
#endif
    return result;
}

// What a thread's sums are multiplied by and added to, for its two rows of W.
struct ChannelPair {
    float first, second;
};

struct Outputs {
    const float* row_scales;     // [M], or sums of squares [M, num_squares]
    const float* weight_scales;  // [N]
    const u16* bias;             // [N], or null
    u16* out;                    // [M, num_outputs], the residual stream if ADDED
    const u16* norm_weight;      // [num_outputs]
    u16* weighted;               // [M, num_outputs]
    float* squares;              // [M, num_outputs / BLOCK, rounded up]
    int num_rows, num_outputs, num_squares, num_features;
    float eps;

    // The factor of a row's sums: its scale, or the inverse root mean square of its inputs.
    __device__ __forceinline__ float row_scale(int row) const {
        if (row >= num_rows) return 0;
        if (FLOAT8) return row_scales[row];
        float sum = 0;
#pragma unroll 16
        for (int i = 0; i < num_squares; i++) sum += row_scales[row * num_squares + i];
        return rsqrtf(sum / num_features + eps);
    }

    // A vector's values for the thread whose first row of W gives this output; the other is the up projection's, or
    // eight outputs further.
    template <typename Load>
    __device__ __forceinline__ ChannelPair pair(int output, Load load) const {
        const int other = GATED ? num_outputs + output : output + 8;
        const bool has_other = GATED ? output < num_outputs : other < num_outputs;
        return {output < num_outputs ? load(output) : 0, has_other ? load(other) : 0};
    }

    __device__ __forceinline__ ChannelPair scales(int output) const {
        if (!FLOAT8) return {1, 1};
        return pair(output, [&](int i) { return weight_scales[i]; });
    }

    __device__ __forceinline__ ChannelPair shifts(int output) const {
        if (bias == nullptr) return {0, 0};
        return pair(output, [&](int i) { return widen(bias[i]); });
    }
};

// Eight outputs of a row, 16 bits each.
struct alignas(16) Piece {
    u32 words[4];

    __device__ __forceinline__ float2 pair(int i) const {
        return make_float2(widen(u16(words[i])), widen(u16(words[i] >> 16)));
    }
};

// Adds eight outputs, which are rounded, to the residual stream, and leaves what the norm behind needs; the sum of squares.
__device__ __forceinline__ float add_piece(
    const Outputs& outputs, u64 place, const Piece& piece, const Piece& residual, const Piece& norm_weight) {
    Piece sums, weighted;
    float square = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float2 result = piece.pair(i), stream = residual.pair(i), factor = norm_weight.pair(i);
        sums.words[i] = pack(result.x + stream.x, result.y + stream.y);
        const float2 sum = sums.pair(i);
        weighted.words[i] = pack(sum.x * factor.x, sum.y * factor.y);
        square += sum.x * sum.x + sum.y * sum.y;
    }
    *reinterpret_cast<Piece*>(outputs.out + place) = sums;
    *reinterpret_cast<Piece*>(outputs.weighted + place) = weighted;
    return square;
}

// How a warpgroup turns its sums, of 64 rows of x at a time, into rows of outputs: through the tile of W that it alone
// has read last.
struct Writer {
    static constexpr int AT_ONCE = OWN_ROWS < 64 ? OWN_ROWS : 64;
    static constexpr int PIECES = BLOCK_OUTPUTS / 8;  // of a row, which as many neighbouring lanes write
    static constexpr int STRIDE = THREADS_OF_GROUP / PIECES;
    static constexpr int COUNT = (AT_ONCE + STRIDE - 1) / STRIDE;  // of a thread

    const Consumer& consumer;
    const Outputs& outputs;
    u32 staging;
    int tile_row;    // of x
    int block;       // of W
    int piece, row;  // the first that this thread writes

    __device__ __forceinline__ Writer(
        const Consumer& consumer, const Outputs& outputs, u32 staging, int tile_row, int block)
        : consumer(consumer),
          outputs(outputs),
          staging(staging),
          tile_row(tile_row),
          block(block),
          piece(consumer.thread % PIECES),
          row(consumer.thread / PIECES) {}

    __device__ __forceinline__ void sync() const { named_barrier(2 + consumer.group, THREADS_OF_GROUP); }

    // Pieces of rows are swizzled, so that those of eight rows lie in different banks.
    __device__ __forceinline__ u32 staged(int row, int piece) const {
        return staging + row * 128 + ((piece ^ (row % 8)) * 16);
    }

    __device__ __forceinline__ int output() const { return block * BLOCK_OUTPUTS + piece * 8; }

    // Where this thread's piece number `i` of a chunk lies in the outputs; false if it is none.
    __device__ __forceinline__ bool find(int chunk, int i, u64& place) const {
        const int local = i * STRIDE + row, m = tile_row + chunk + local;
        place = u64(m) * outputs.num_outputs + output();
        return local < AT_ONCE && m < outputs.num_rows && output() < outputs.num_outputs;
    }

    // Scales, gates and rounds the sums of a chunk, and transposes them.
    __device__ __forceinline__ void stage(
        const float (&sums)[SUMS], int chunk, const ChannelPair& scale, const ChannelPair& shift) const {
        constexpr int BLOCKS = GATED ? 4 : 2;  // of eight rows, in a store
        const int lane = consumer.thread % 32, warp = consumer.thread / 32, matrix = lane / 8;
        const u32 to = staged((GATED ? matrix : matrix / 2) * 8 + lane % 8, GATED ? warp : 2 * warp + matrix % 2);
        const u32 scales = consumer.shared + ROW_SCALE_PLACE + (lane % 4 * 2) * 4;
#pragma unroll
        for (int rows = 0; rows < AT_ONCE; rows += 8 * BLOCKS) {
            u32 packed[4];
#pragma unroll
            for (int i = 0; i < BLOCKS; i++) {
                const int row = chunk + rows + i * 8;
                const float2 row_scale = SCALES_ROWS ? load_shared_pair(scales + row * 4) : make_float2(1, 1);
                const float* own = &sums[row / 2];
                const float a = own[0] * (row_scale.x * scale.first) + shift.first;
                const float b = own[1] * (row_scale.y * scale.first) + shift.first;
                const float c = own[2] * (row_scale.x * scale.second) + shift.second;
                const float d = own[3] * (row_scale.y * scale.second) + shift.second;
                if (GATED) {
                    packed[i] = pack(apply_gate(a, c), apply_gate(b, d));
                } else {
                    packed[2 * i % 4] = pack(a, b);
                    packed[2 * i % 4 + 1] = pack(c, d);
                }
            }
            store_transposed(to + rows * 128, packed[0], packed[1], packed[2], packed[3]);
        }
    }

    // Writes the results of OWN_ROWS rows from the tile's `first_row` on.
    __device__ __forceinline__ void write(
        const float (&sums)[SUMS], int first_row, const ChannelPair& scale, const ChannelPair& shift) const {
        Piece norm_weight{};
        if (ADDED && output() < outputs.num_outputs)
            norm_weight = *reinterpret_cast<const Piece*>(outputs.norm_weight + output());
#pragma unroll
        for (int chunk = first_row; chunk < first_row + OWN_ROWS; chunk += AT_ONCE) {
            u64 place;
            Piece residual[COUNT] = {};
#pragma unroll
            for (int i = 0; ADDED && i < COUNT; i++)
                if (find(chunk, i, place)) residual[i] = *reinterpret_cast<const Piece*>(outputs.out + place);
            if (chunk > first_row) sync();
            stage(sums, chunk, scale, shift);
            sync();
#pragma unroll
            for (int i = 0; i < COUNT; i++) {
                const bool is_there = find(chunk, i, place);
                Piece result{};
                if (is_there) result = load_shared<Piece>(staged(i * STRIDE + row, piece));
                if (ADDED) {
                    float square = is_there ? add_piece(outputs, place, result, residual[i], norm_weight) : 0;
#pragma unroll
                    for (int lanes = 1; lanes < PIECES; lanes *= 2) square += __shfl_xor_sync(~0u, square, lanes);
                    const int num_blocks = (outputs.num_outputs + BLOCK - 1) / BLOCK;
                    if (is_there && piece == 0)
                        outputs.squares[(tile_row + chunk + i * STRIDE + row) * num_blocks + block] = square;
                } else if (is_there) {
                    *reinterpret_cast<Piece*>(outputs.out + place) = result;
                }
            }
        }
    }
};

__device__ __forceinline__ void consume(u32 shared, const Place& place, const Outputs& outputs) {
    Consumer consumer{shared, int(threadIdx.x) / THREADS_OF_GROUP, int(threadIdx.x) % THREADS_OF_GROUP, 0, 0};
    consumer.num_refills = place.num_tiles() * (place.last_step - place.first_step) - STAGES;
    // Threads of a warpgroup arrive at one block each of those that share W or x with it.
    if (consumer.thread < SHARE_X + SHARE_W - 1) {
        const int other_row = consumer.thread - SHARE_X;
        const int row_rank = other_row < 0 ? place.row_rank : other_row + (other_row >= place.row_rank);
        const int rank = place.rank(row_rank, other_row < 0 ? consumer.thread : place.weight_rank);
        const u32 empty = shared + EMPTY_PLACE;
        consumer.empty_barrier = CLUSTER == 1 ? empty : cluster_address(empty, rank);
    }
    const int tile_row = place.row_tile * ROWS;
    wait_for_predecessor();
    if (SCALES_ROWS) {
        for (int i = threadIdx.x; i < ROWS; i += GROUPS * THREADS_OF_GROUP)
            store_shared(shared + ROW_SCALE_PLACE + i * 4, outputs.row_scale(tile_row + i));
        named_barrier(1, GROUPS * THREADS_OF_GROUP);
    }
    const int lane_output = consumer.thread / 32 * (BLOCK_OUTPUTS / 4) + consumer.thread % 32 / 4;
    Slot slot;
    for (int tile = place.first_weight_tile; tile < place.num_weight_tiles; tile += place.weight_tile_step) {
        const int block = tile * GROUPS + consumer.group;
        const ChannelPair scales = outputs.scales(block * BLOCK_OUTPUTS + lane_output);
        const ChannelPair shifts = outputs.shifts(block * BLOCK_OUTPUTS + lane_output);
        float sums[SUMS];
        int last_stage;
        multiply_tile(consumer, slot, place.last_step - place.first_step, sums, last_stage);
        const u32 staging = shared + last_stage * WEIGHT_BYTES + consumer.group * BLOCK_BYTES;
        const Writer writer(consumer, outputs, staging, tile_row, block);
        if (PARTS > 1) send_sums(consumer, place, sums);
#pragma unroll
        for (int part = 0; part < PARTS; part++) {
            if (PARTS > 1 && part != place.part) continue;
            if (PARTS > 1) add_received(consumer, sums, part * OWN_SUMS);
            writer.write(sums, part * OWN_ROWS, scales, shifts);
        }
        fence_async_proxy();
        writer.sync();
        consumer.release(last_stage);
    }
}

// Waits until all blocks of the cluster have initialised their barriers.
__device__ __forceinline__ void join_cluster() {
    if (CLUSTER > 1) cluster_wait();
}

// Waits until no other block can write to this one's memory. Both kinds of warps call this on their own: where their
// code joins, the assembler would bound registers by those at the launch.
__device__ __forceinline__ void leave_cluster() {
    if (CLUSTER == 1) return;
    cluster_arrive();
    cluster_wait();
}

// Grid: clusters that share the tiles of W equally, for each group of SHARE_W tiles of x; with PARTS > 1, each cluster
// has one tile. Clusters of the same tiles of W follow each other.
extern "C" __global__ void __launch_bounds__(THREADS, 1) gemm(
    const __grid_constant__ TensorMap x_map,       // [M, K], boxes of ROWS / SHARE_X rows
    const __grid_constant__ TensorMap weight_map,  // [N, K], boxes of WEIGHTS / SHARE_W; gated [N / 16, 2, 8, K]
    const Outputs outputs,                         // where num_outputs is N, or N / 2 with a gate
    int num_steps,         // of 128 bytes of K
    int num_row_groups,    // of SHARE_W tiles of x
    int num_weight_tiles)  // of WEIGHTS rows
{
    extern __shared__ __align__(1024) u8 memory[];
    const u32 shared = shared_address(memory);
    const int rank = CLUSTER == 1 ? 0 : cluster_rank();
    const int cluster = blockIdx.x / CLUSTER, num_clusters = gridDim.x / CLUSTER;
    Place place;
    place.weight_rank = rank % SHARE_X;
    place.row_rank = rank / SHARE_X % SHARE_W;
    place.part = rank / (SHARE_X * SHARE_W);
    place.first_step = place.part * num_steps / PARTS;
    place.last_step = (place.part + 1) * num_steps / PARTS;
    place.row_tile = cluster % num_row_groups * SHARE_W + place.row_rank;
    place.first_weight_tile = cluster / num_row_groups * SHARE_X + place.weight_rank;
    place.weight_tile_step = num_clusters / num_row_groups * SHARE_X;
    // Blocks of a cluster have the same number of tiles, of which the last may lie beyond W.
    place.num_weight_tiles = (num_weight_tiles + SHARE_X - 1) / SHARE_X * SHARE_X;

    const bool is_producer = threadIdx.x >= GROUPS * THREADS_OF_GROUP;
    const int producer_thread = threadIdx.x - GROUPS * THREADS_OF_GROUP;
    if (producer_thread == 0) {
        for (int i = 0; i < STAGES; i++) {
            barrier_init(shared + FULL_PLACE + i * 8, 1);
            barrier_init(shared + EMPTY_PLACE + i * 8, GROUPS * (SHARE_X + SHARE_W - 1));
        }
        barrier_init(shared + DONE_PLACE, GROUPS * PARTS);
        for (int group = 0; group < GROUPS; group++) {
            const u32 merged = shared + MERGED_PLACE + group * 8;
            barrier_init(merged, 1);
            barrier_arrive_expect(merged, (PARTS - 1) * OWN_SUMS * THREADS_OF_GROUP * 4);
        }
        fence_barrier_init();
        prefetch_map(&weight_map);
        prefetch_map(&x_map);
    }
    if (CLUSTER == 1) {
        __syncthreads();
    } else {
        __syncwarp();
        cluster_arrive();
    }
    if (is_producer) {
        if constexpr (GROUPS > 1) release_registers<GROUPS == 2 ? 40 : 32>();
        // The thread that has initialised the barriers may use its own block's at once.
        if (SHARE_W > 1) join_cluster();
        if (producer_thread == 0) produce_weights(shared, &weight_map, place);
        __syncwarp();
        if (SHARE_W == 1) join_cluster();
        if (producer_thread == 32) {
            wait_for_predecessor();
            launch_dependents();
            produce_x(shared, &x_map, place);
        }
        __syncwarp();
        leave_cluster();
    } else {
        if constexpr (GROUPS > 1) take_registers<GROUPS == 2 ? 232 : 160>();
        join_cluster();
        consume(shared, place, outputs);
        leave_cluster();
    }
}
