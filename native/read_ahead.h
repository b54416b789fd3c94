// What threads fetch into their caches while they wait: the weights that are read next. Small batches are bound by memory,
// which would be idle in short operations, at the end of long ones, and while the caller prepares the next step.
//
// Threads that wait hold nothing of what they fetch: addresses may be those of weights that were freed meanwhile, which
// does no harm.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <vector>

#include "team.h"

namespace octavo {

class ReadAhead {
   public:
    // Where a thread is.
    struct Reader {
        uint32_t operation = 0;
        const unsigned char* next = nullptr;
        int64_t partner = 0, left = 0;
    };

    // Fetches a piece; false if there is nothing to fetch.
    bool fetch(Reader& reader) {
        const uint32_t operation = operation_.load(std::memory_order_acquire);
        if (reader.operation != operation) {
            const int64_t num_bytes = chunk_bytes_.load(std::memory_order_relaxed);
            const int64_t chunk = next_chunk_.fetch_add(1, std::memory_order_relaxed);
            reader = {operation, first_.load(std::memory_order_relaxed) + chunk * num_bytes,
                      partner_.load(std::memory_order_relaxed), num_bytes};
        }
        if (reader.left <= 0 && !take_kept(reader)) return false;
        fetch_piece(reader.next);
        if (reader.partner != 0) fetch_piece(reader.next + reader.partner);
        reader.next += kPieceBytes;
        reader.left -= kPieceBytes;
        return true;
    }

    // From now on, each thread that waits fetches a chunk of an operation, whose number names it. The first chunk is left
    // to the thread that does not wait.
    void announce(const Stream& stream, uint32_t operation) {
        if (operation_.load(std::memory_order_relaxed) == operation) return;
        first_.store(stream.first, std::memory_order_relaxed);
        chunk_bytes_.store(stream.chunk_bytes, std::memory_order_relaxed);
        partner_.store(stream.partner, std::memory_order_relaxed);
        next_chunk_.store(1, std::memory_order_relaxed);
        operation_.store(operation, std::memory_order_release);
    }

    // What operations read first, as much as the last-level cache is likely to keep, until drop() is called.
    void keep(const Operation* operations, size_t count) {
        std::lock_guard<std::mutex> lock(mutex_);
        kept_.clear();
        int64_t left = kept_bytes();
        for (size_t i = 0; i < count && left > 0; ++i) {
            Stream stream = operations[i].stream;
            if (stream.first == nullptr) continue;
            stream.num_bytes = std::min(stream.num_bytes, left);
            left -= stream.num_bytes;
            kept_.push_back(stream);
        }
        std::reverse(kept_.begin(), kept_.end());
        has_kept_.store(!kept_.empty(), std::memory_order_release);
    }

    void drop() {
        std::lock_guard<std::mutex> lock(mutex_);
        kept_.clear();
        has_kept_.store(false, std::memory_order_relaxed);
    }

   private:
    static constexpr int64_t kPieceBytes = 2048;    // between two looks at whether there is work
    static constexpr int64_t kPartBytes = 1 << 16;  // of what is kept, for a thread at a time

    static void fetch_piece(const unsigned char* from) {
        for (int64_t i = 0; i < kPieceBytes; i += 64) __builtin_prefetch(from + i, 0, 2);
    }

    static int64_t kept_bytes() {
#if defined(_SC_LEVEL3_CACHE_SIZE)
        // Virtual machines may report the caches of the whole host.
        static const int64_t bytes = std::clamp<int64_t>(sysconf(_SC_LEVEL3_CACHE_SIZE) / 8 * 3, 0, 12 << 20);
        return bytes;
#else
        return 0;
#endif
    }

    bool take_kept(Reader& reader) {
        if (!has_kept_.load(std::memory_order_acquire)) return false;
        std::lock_guard<std::mutex> lock(mutex_);
        if (kept_.empty()) {
            has_kept_.store(false, std::memory_order_relaxed);
            return false;
        }
        Stream& stream = kept_.back();
        const int64_t part = std::min(stream.num_bytes, kPartBytes);
        reader.next = stream.first;
        reader.partner = 0;
        reader.left = part;
        stream.first += part;
        stream.num_bytes -= part;
        if (stream.num_bytes == 0) kept_.pop_back();
        return true;
    }

    alignas(64) std::atomic<uint32_t> operation_{0};
    std::atomic<const unsigned char*> first_{nullptr};
    std::atomic<int64_t> chunk_bytes_{0}, partner_{0}, next_chunk_{0};
    std::atomic<bool> has_kept_{false};
    std::mutex mutex_;
    std::vector<Stream> kept_;  // the next one last
};

}  // namespace octavo
