// Selection of the largest magnitudes, on all threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

namespace hvd_compress {

// Finds the entries with magnitude bits >= least and has them written, in rising order, where room(count) points to.
void at_least(const float* x, std::size_t n, std::uint32_t least, const std::function<std::int64_t*(std::size_t)>& room);

// Rising indices of the k largest magnitudes, k <= n < 2**32; of equal ones the smaller index wins.
void largest(const float* x, std::size_t n, std::size_t k, std::int64_t* indices);

}  // namespace hvd_compress
