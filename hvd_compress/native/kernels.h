// Loops over ranges of arrays, once for each instruction set. They know no threads and no Python.
#pragma once

#include <cstddef>
#include <cstdint>

namespace hvd_compress {

// A candidate of a selection: where it is, and the bits of its magnitude.
struct Entry {
    std::uint32_t index;
    std::uint32_t bits;
};

struct Kernels {
    const char* name;
    // out[i] = x[i] + decay * y[i], product and sum each rounded.
    void (*scale_add)(const float* x, const float* y, float decay, float* out, std::size_t n);
    // out[i] = x[i] - y[i]
    void (*subtract)(const float* x, const float* y, float* out, std::size_t n);
    // Whether no entry is inf or NaN.
    bool (*all_finite)(const float* x, std::size_t n);
    // counts[bits >> shift] += 1 for the bits of every magnitude.
    void (*count_magnitudes)(const float* x, std::size_t n, unsigned shift, std::int64_t* counts);
    // Writes the entries with bits >= least, in order, from `first` on counted; returns how many. `out` has room for n.
    std::size_t (*collect)(const float* x, std::size_t n, std::uint32_t first, std::uint32_t least, Entry* out);
    // Sum of (2i+1) * words[i] mod 2**32, i counted from `first` on.
    std::uint32_t (*check_word)(const std::uint32_t* words, std::size_t n, std::uint64_t first);
};

extern const Kernels portable_kernels;
#if defined(__x86_64__)
extern const Kernels avx2_kernels;
extern const Kernels avx512_kernels;
#endif

// The best that this processor can, or what HVD_COMPRESS_ISA asks for.
const Kernels& kernels();

}  // namespace hvd_compress
