#include "binding.h"

#if defined(__linux__)
#include <sched.h>

#include <algorithm>
#endif

namespace octavo {

#if defined(__linux__)
void Binding::apply(int i) const {
    if (cpus.empty()) return;
    const int count = *std::max_element(cpus.begin(), cpus.end()) + 1;
    cpu_set_t* set = CPU_ALLOC(count);
    if (set == nullptr) return;
    const size_t size = CPU_ALLOC_SIZE(count);
    CPU_ZERO_S(size, set);
    if (one_each)
        CPU_SET_S(cpus[i % cpus.size()], size, set);
    else
        for (const int cpu : cpus) CPU_SET_S(cpu, size, set);
    sched_setaffinity(0, size, set);
    CPU_FREE(set);
}
#else
void Binding::apply(int) const {}
#endif

}  // namespace octavo
