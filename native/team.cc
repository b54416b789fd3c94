#include "team.h"

#include "binding.h"
#include "read_ahead.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <thread>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace octavo {
namespace {

inline void pause() {
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// A waiting thread spins for about 100 us, longer than the pauses between operations of a step, and then sleeps.
constexpr int kSpins = 2000;
constexpr int kSpinsBeforeYield = 400;
constexpr std::chrono::microseconds kNotable{300};  // shorter runs say nothing about the system
constexpr int kRunsAlone = 8, kMaxRunsAlone = 256;

int g_num_threads = 1;  // changes only between runs: operations read it to divide their work
Binding& g_binding = *new Binding;  // changes only while there are no workers

class Team {
   public:
    ~Team() = delete;  // lives as long as the process: workers may run until its very end

    // Workers start with the next run.
    void resize(int num_threads) {
        std::lock_guard<std::mutex> one_run(runs_);
        if (num_threads == g_num_threads) return;
        g_num_threads = num_threads;
        stop_workers();
    }

    void bind(Binding binding) {
        std::lock_guard<std::mutex> one_run(runs_);
        if (binding == g_binding) return;
        stop_workers();
        g_binding = std::move(binding);
    }

    void run(const Operation* operations, size_t count, bool repeat) {
        std::lock_guard<std::mutex> one_run(runs_);
        while ((int)workers_.size() + 1 < g_num_threads)
            workers_.emplace_back([this, number = (int)workers_.size() + 1] {
                g_binding.apply(number);
                work();
            });
        if (workers_.empty() || num_runs_alone_ > 0) {
            if (num_runs_alone_ > 0) --num_runs_alone_;
            run_alone(operations, count);
            return;
        }
        operations_ = operations;
        count_ = count;
        is_complete_.store(false, std::memory_order_relaxed);
        const Clock::time_point start = Clock::now();
        Clock::duration waited{0};
        if (repeat) read_ahead_.drop();
        start_from(0);
        while (!is_complete_.load(std::memory_order_acquire))
            if (!run_chunk()) waited += wait_for_chunk();
        if (repeat) read_ahead_.keep(operations, count);
        first_ += (uint32_t)count;
        note(Clock::now() - start, waited);
    }

   private:
    using Clock = std::chrono::steady_clock;

    void stop_workers() {
        {
            std::lock_guard<std::mutex> lock(mutex_);
            is_stopping_ = true;
        }
        wake_.notify_all();
        for (std::thread& worker : workers_) worker.join();
        workers_.clear();
        is_stopping_ = false;
    }

    static void run_alone(const Operation* operations, size_t count) {
        for (size_t i = 0; i < count; ++i) {
            const int64_t chunks = operations[i].count_chunks(operations[i].arguments);
            for (int64_t chunk = 0; chunk < chunks; ++chunk) operations[i].run(operations[i].arguments, chunk);
        }
    }

    // Waits until there is a chunk to take, or nothing to wait for; returns how long it took.
    Clock::duration wait_for_chunk() {
        const Clock::time_point start = Clock::now();
        for (int spins = 0; !is_complete_.load(std::memory_order_acquire) && (uint32_t)ticket_.load() == 0; ++spins) {
            if (read_ahead_.fetch(reader_)) continue;
            if (spins < kSpinsBeforeYield)
                pause();
            else
                sched_yield();  // the thread that has the last chunk may be waiting for this very core
        }
        return Clock::now() - start;
    }

    // If the calling thread did little but wait, the system is giving the other cores to somebody else. Then some runs
    // are done without the team: twice as many each time, until it works again.
    void note(Clock::duration duration, Clock::duration waited) {
        if (2 * waited < duration) {
            if (duration > kNotable) num_runs_alone_next_ = kRunsAlone;
        } else if (duration > kNotable) {
            num_runs_alone_ = num_runs_alone_next_;
            num_runs_alone_next_ = std::min(2 * num_runs_alone_next_, kMaxRunsAlone);
        }
    }

    // Starts the next operation that has chunks, or completes the run.
    void start_from(size_t index) {
        for (; index < count_; ++index) {
            const Operation& operation = operations_[index];
            const int64_t chunks = operation.count_chunks(operation.arguments);
            if (chunks == 0) continue;
            num_chunks_ = chunks;
            num_unfinished_.store(chunks, std::memory_order_relaxed);
            announce_after(index);
            ticket_.store((uint64_t)(first_ + (uint32_t)index) << 32 | (uint64_t)chunks, std::memory_order_seq_cst);
            if (chunks > 1 && num_sleeping_.load(std::memory_order_seq_cst) > 0) {
                { std::lock_guard<std::mutex> lock(mutex_); }
                wake_.notify_all();
            }
            return;
        }
        is_complete_.store(true, std::memory_order_release);
    }

    // Announces the stream that is read soon after an operation.
    void announce_after(size_t index) {
        constexpr size_t kSoon = 4;  // operations; between two GEMMs are those of attention
        for (size_t next = index + 1; next < std::min(count_, index + 1 + kSoon); ++next) {
            if (operations_[next].stream.first == nullptr) continue;
            read_ahead_.announce(operations_[next].stream, first_ + (uint32_t)next);
            return;
        }
    }

    // Takes a chunk of the current operation and runs it; false if there is none to take. Everything about the
    // operation may be read once a chunk is taken, since it cannot end before.
    bool run_chunk() {
        uint64_t ticket = ticket_.load(std::memory_order_acquire);
        while ((uint32_t)ticket != 0) {
            if (!ticket_.compare_exchange_weak(ticket, ticket - 1, std::memory_order_acq_rel)) continue;
            const size_t index = (uint32_t)(ticket >> 32) - first_;
            const Operation& operation = operations_[index];
            operation.run(operation.arguments, num_chunks_ - (int64_t)(uint32_t)ticket);
            if (num_unfinished_.fetch_sub(1, std::memory_order_acq_rel) == 1) start_from(index + 1);
            return true;
        }
        return false;
    }

    void work() {
        int idle = 0;
        ReadAhead::Reader reader;
        while (true) {
            if (run_chunk() || read_ahead_.fetch(reader)) {
                idle = 0;
            } else if (++idle < kSpins) {
                pause();
            } else {
                std::unique_lock<std::mutex> lock(mutex_);
                num_sleeping_.fetch_add(1, std::memory_order_seq_cst);
                wake_.wait(lock, [this] { return is_stopping_ || (uint32_t)ticket_.load() != 0; });
                num_sleeping_.fetch_sub(1, std::memory_order_seq_cst);
                if (is_stopping_) return;
                idle = 0;
            }
        }
    }

    std::mutex runs_;  // one run at a time
    int num_runs_alone_ = 0, num_runs_alone_next_ = kRunsAlone;
    std::vector<std::thread> workers_;
    const Operation* operations_ = nullptr;
    size_t count_ = 0;
    int64_t num_chunks_ = 0;  // of the current operation
    uint32_t first_ = 0;      // sequence number of the run's first operation
    alignas(64) std::atomic<uint64_t> ticket_{0};  // sequence number of the operation, chunks that nobody has taken
    alignas(64) std::atomic<int64_t> num_unfinished_{0};
    alignas(64) std::atomic<bool> is_complete_{true};
    std::atomic<int> num_sleeping_{0};
    ReadAhead read_ahead_;
    ReadAhead::Reader reader_;  // of the calling thread
    std::mutex mutex_;
    std::condition_variable wake_;
    bool is_stopping_ = false;
};

Team* g_team = new Team;
unsigned char* g_scratch = nullptr;
size_t g_scratch_bytes = 0;

// A forked child has none of the threads: its team starts its own.
const int g_at_fork = pthread_atfork(nullptr, nullptr, [] { g_team = new Team; });

}  // namespace

void set_num_threads(int num_threads) { g_team->resize(num_threads); }

int num_threads() { return g_num_threads; }

void bind_threads(std::vector<int> cpus, bool one_each) { g_team->bind({std::move(cpus), one_each}); }

unsigned char* scratch() { return g_scratch; }

void reserve_scratch(size_t num_bytes) {
    if (num_bytes <= g_scratch_bytes) return;
    std::free(g_scratch);
    g_scratch_bytes = (num_bytes + 4095) / 4096 * 4096;
    g_scratch = static_cast<unsigned char*>(std::aligned_alloc(4096, g_scratch_bytes));
    if (g_scratch == nullptr) std::abort();
}

void run(const Operation* operations, size_t count, bool repeat) { g_team->run(operations, count, repeat); }

}  // namespace octavo
