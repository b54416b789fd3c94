// The thread team, and operations as it runs them.
//
// An operation is a function over a number of chunks that may run in any order and on any thread; it is complete when
// all its chunks are. Threads take chunks as they get to them, so a thread that the system has suspended delays an
// operation by one chunk at most. A tape is a list of operations that run one after another without going back to the
// caller in between: what a captured graph is to a GPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

namespace octavo {

// Memory that an operation's chunks read one after another, and as many bytes `partner` further on if that is not 0.
struct Stream {
    const unsigned char* first;              // null: none
    int64_t chunk_bytes, partner, num_bytes;  // num_bytes: of all chunks, partners included
};

struct Operation {
    void (*run)(const void* arguments, int64_t chunk);
    int64_t (*count_chunks)(const void* arguments);  // called once, on one thread, when all operations before are done
    Stream stream;                                   // threads that wait for the operation fetch some of it
    alignas(16) unsigned char arguments[224];
};

template <class Arguments, class = void>
struct HasStream : std::false_type {};
template <class Arguments>
struct HasStream<Arguments, std::void_t<decltype(&Arguments::stream)>> : std::true_type {};

// An operation from plain data with the members `int64_t count_chunks() const` and `void run(int64_t chunk) const`, and
// perhaps `Stream stream() const`.
template <class Arguments>
Operation make_operation(const Arguments& arguments) {
    static_assert(std::is_trivially_copyable_v<Arguments> && sizeof(Arguments) <= sizeof(Operation::arguments));
    Operation operation{};
    if constexpr (HasStream<Arguments>::value) operation.stream = arguments.stream();
    operation.run = [](const void* data, int64_t chunk) { static_cast<const Arguments*>(data)->run(chunk); };
    operation.count_chunks = [](const void* data) { return static_cast<const Arguments*>(data)->count_chunks(); };
    std::memcpy(operation.arguments, &arguments, sizeof(arguments));
    return operation;
}

using Tape = std::vector<Operation>;

// Number of threads that operations use from now on, the calling one included.
void set_num_threads(int num_threads);
int num_threads();

// CPUs that the team's own threads may run on from now on: any of them, or one for each thread, where the first is that
// of the calling thread, which is left alone. None: those that their creator may use. Does nothing but on Linux.
void bind_threads(std::vector<int> cpus, bool one_each);

// Runs operations in order on the team and the calling thread; returns when all are complete. Calls from several
// threads run one after another. Operations that repeat are likely to be the next ones that run, too.
void run(const Operation* operations, size_t count, bool repeat = false);

// Memory that an operation leaves results in for the next one; its address may change whenever it grows. Operations
// reserve it while their chunks are counted.
unsigned char* scratch();
void reserve_scratch(size_t num_bytes);

}  // namespace octavo
