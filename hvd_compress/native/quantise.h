// Entries on levels of their buckets' norms, as QSGD has them, on all threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels.h"

namespace hvd_compress {

// Largest magnitude of each bucket of `size` entries, the last of which may be short.
void bucket_maxima(const float* x, std::size_t n, std::size_t size, float* maxima);

// Codes of all entries, packed; buckets whose scale is zero, not finite or too small to divide by get zeros.
void pack_rounded(const float* x, std::size_t n, const float* scales, std::size_t size, const Rounding& how,
                  std::uint8_t* packed);

// Codes that one rank has sent, and the level unit of each bucket.
struct Coded {
    const std::uint8_t* packed;
    const float* units;
};

// x = (x +- decoded of the first +- decoded of the second ...) * factor, from zero on if `fresh`. False if a level is
// above `top`.
bool sum_levels(float* x, std::size_t n, const std::vector<Coded>& all, std::size_t size, unsigned bits, unsigned top,
                bool fresh, bool negate, float factor);

// Codes that one rank has sent, and 2**bits values for each bucket, which they stand for.
struct Tabled {
    const std::uint8_t* packed;
    const float* tables;
};

// x = (x +- values of the first +- values of the second ...) * factor, from zero on if `fresh`; bits <= 8.
void sum_codes(float* x, std::size_t n, const std::vector<Tabled>& all, std::size_t size, unsigned bits, bool fresh,
               bool negate, float factor);

}  // namespace hvd_compress
