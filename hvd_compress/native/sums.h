// Sums of the magnitudes of entries, in an order that is the same for any number of threads, on all of them.
#pragma once

#include <cstddef>
#include <vector>

#include "kernels.h"

namespace hvd_compress {

// Sums over each bucket of `size` entries, the last of which may be short: those of all buckets for each of the terms. The
// order is that of folding the next 2**m terms, filled up with zeros: the upper half is added to the lower until one is left.
void magnitude_sums(const float* x, std::size_t n, std::size_t size, const std::vector<Term>& terms, double* sums);

}  // namespace hvd_compress
