// Entries of arrays by their indices, on all threads. Every index is checked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace hvd_compress {

// Indices and values of the entries that one rank has sent.
struct Sent {
    const std::int64_t* indices;
    const float* values;
    std::size_t count;
};

// Each returns false if an index is not in [0, n); what was written up to then stays.

template <typename T>
bool take(const T* x, std::size_t n, const std::int64_t* indices, std::size_t count, T* out);

// Indices are distinct.
bool scatter_add(float* x, std::size_t n, const Sent& sent);

// x = (x + entries of the first + entries of the second ...) * factor, from zero on if `fresh`; indices rise.
bool sum_entries(float* x, std::size_t n, const std::vector<Sent>& all, bool fresh, float factor);

enum class Distinct { yes, no, outside };

// Whether no index below n occurs twice; those of each rise, or it is outside.
Distinct are_distinct(const std::vector<Sent>& all, std::size_t n);

}  // namespace hvd_compress
