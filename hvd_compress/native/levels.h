// Levels fitted to a group of values, as JointSQ has them, on all threads.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels.h"

namespace hvd_compress {

// Sums over the levels j nearest to the magnitudes of a group, and their distances d from `low`.
struct Sums {
    double j, jj, d, jd;
};

Sums level_sums(const float* x, std::size_t n, Line line, double low);

}  // namespace hvd_compress
