// Products of matrices whose sums are exact, of which one side is narrow, on all threads.
#pragma once

#include <cstddef>

namespace hvd_compress {

// A matrix, row after row. Of each entry counts the integer next to its product with `inverse`, a power of two.
struct Factor {
    const float* entries;
    std::size_t rows, columns;
    float inverse;
};

// out = unit * (x times y), where float64 holds every sum of products of those integers.
void product(const Factor& x, const Factor& y, double unit, float* out);

}  // namespace hvd_compress
