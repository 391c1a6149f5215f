// Selection of the largest magnitudes, on all threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace hvd_compress {

// Entries of an array, each part's own: rising indices, and the bits of their magnitudes.
struct Found {
    std::vector<std::vector<std::uint32_t>> indices, bits;
    std::size_t total = 0;
    // All with these bits or more are there.
    std::uint32_t least = 0;
};

// At least the k largest of the magnitudes with bits >= smallest, or all of these; n < 2**32.
Found likely_largest(const float* x, std::size_t n, std::size_t k, std::uint32_t smallest);

// Finds the entries with magnitude bits in [least, below) and has their indices written, rising, where room(count) points.
void at_least(const float* x, std::size_t n, std::uint32_t least, std::uint32_t below,
              const std::function<std::int64_t*(std::size_t)>& room);

std::size_t count_at_least(const float* x, std::size_t n, std::uint32_t least);

// Rising indices of the k largest magnitudes, k <= n < 2**32; of equal ones the smaller index wins.
void largest(const float* x, std::size_t n, std::size_t k, std::int64_t* indices);

// residual = x + decay * residual, of which no sum may be non-finite, and `largest` of these sums, k > 0.
void accumulate_largest(const float* x, float* residual, float decay, std::size_t n, std::size_t k, std::int64_t* indices);

}  // namespace hvd_compress
