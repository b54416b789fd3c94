// Where a thread of the team runs.
#pragma once

#include <vector>

namespace octavo {

struct Binding {
    std::vector<int> cpus;  // none: wherever its creator may run
    bool one_each = false;  // thread i has cpus[i] for itself

    bool operator==(const Binding& other) const { return cpus == other.cpus && one_each == other.one_each; }
    // Binds the calling thread, number i of the team. CPUs that are gone by now leave it as it is.
    void apply(int i) const;
};

}  // namespace octavo
