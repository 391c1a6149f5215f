// Selection of the largest magnitudes, on all threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels.h"

namespace hvd_compress {

// Entries with magnitude bits >= least, in rising order of the index.
std::vector<Entry> at_least(const float* x, std::size_t n, std::uint32_t least);

// Rising indices of the k largest magnitudes, k <= n < 2**32; of equal ones the smaller index wins.
void largest(const float* x, std::size_t n, std::size_t k, std::int64_t* indices);

}  // namespace hvd_compress
