// Loops over ranges of arrays, once for each instruction set. They know no threads and no Python.
#pragma once

#include <cstddef>
#include <cstdint>

namespace hvd_compress {

// Candidates of a selection: where they are, and the bits of their magnitudes.
struct Entries {
    std::uint32_t* indices;
    std::uint32_t* bits;
};

// The key of one stream of random draws.
struct Key {
    std::uint32_t k0, k1;
};

// Rounding of entries to the levels 0..top of their bucket.
struct Rounding {
    float top;
    unsigned bits;
    // Nearest level instead of a random one of the two around.
    bool nearest;
    Key key;
};

// Sums that a least-squares line through a group of values needs: of the levels j and their squares.
struct Moments {
    std::int64_t j, jj;
};

// Levels base + j * step, j in 0..last.
struct Line {
    double base, step, last;
};

// What is added up of the magnitudes of entries: of all, their squares, of those above or below zero; or ones for those
// that are negative. Magnitudes below 2**-126 count as zero.
enum class Term { all, squares, above, below, negative };

// Rows whose terms are added as (first + second) + (third + fourth).
constexpr std::size_t kRows = 4;

// Products that are added up at once, and the multiple that the length of their sums is.
constexpr std::size_t kTerms = 4, kLanes = 8;

struct Kernels {
    const char* name;
    // out[i] = x[i] + decay * y[i], product and sum each rounded.
    void (*scale_add)(const float* x, const float* y, float decay, float* out, std::size_t n);
    // Whether every x[i] + decay * y[i] is finite.
    bool (*sums_finite)(const float* x, const float* y, float decay, std::size_t n);
    // u = m * u + x, or m * (u + x) with Nesterov; v = v + u, or v + (u + x).
    void (*add_momentum)(const float* x, const float* u, const float* v, float m, bool nesterov, float* out_u, float* out_v,
                         std::size_t n);
    // Whether every v of the above is finite.
    bool (*momentum_finite)(const float* x, const float* u, const float* v, float m, bool nesterov, std::size_t n);
    // out[i] = x[i] - y[i]
    void (*subtract)(const float* x, const float* y, float* out, std::size_t n);
    // out[i] = x[i] * factor
    void (*scale)(const float* x, float factor, float* out, std::size_t n);
    // The same, past the caches: for an array that is larger than they are.
    void (*stream)(const float* x, float factor, float* out, std::size_t n);
    // float16 and back, rounded half to even.
    void (*to_half)(const float* x, std::uint16_t* out, std::size_t n);
    void (*from_half)(const std::uint16_t* x, float* out, std::size_t n);
    // Whether no entry is inf or NaN.
    bool (*all_finite)(const float* x, std::size_t n);
    // counts[bits >> shift] += 1 for the bits of every magnitude.
    void (*count_magnitudes)(const float* x, std::size_t n, unsigned shift, std::int64_t* counts);
    // How many entries have bits >= least.
    std::size_t (*count_at_least)(const float* x, std::size_t n, std::uint32_t least);
    // Writes the entries with least <= bits < below, in order, from `first` on counted; returns how many. `out` has room for n + 16.
    std::size_t (*collect)(const float* x, std::size_t n, std::uint32_t first, std::uint32_t least, std::uint32_t below,
                           Entries out);
    // scale_add to `sums`, which may be y, and `collect` of what it wrote.
    std::size_t (*collect_sums)(const float* x, const float* y, float decay, float* sums, std::size_t n, std::uint32_t first,
                                std::uint32_t least, std::uint32_t below, Entries out);
    // Sum of (2i+1) * words[i] mod 2**32, i counted from `first` on.
    std::uint32_t (*check_word)(const std::uint32_t* words, std::size_t n, std::uint64_t first);
    // Bits of the largest magnitude.
    std::uint32_t (*largest_bits)(const float* x, std::size_t n);
    // codes[i] = sign << (bits - 1) | level of x[i], n <= kCodes entries of one bucket; draws are those of first + i.
    void (*round_levels)(const float* x, std::size_t n, std::uint32_t first, float inverse, const Rounding& how,
                         std::uint8_t* codes);
    // Of the blocks first, first + 1, ... of the k that share out n entries: a random index of each, and their sizes.
    void (*draw_strata)(std::size_t first, std::size_t count, std::size_t n, std::size_t k, Key key, std::int64_t* indices,
                        std::int64_t* sizes);
    // Packs n codes of `bits` bits, least significant first; ceil(n * bits / 8) bytes. Reads up to 7 codes more.
    void (*pack_codes)(const std::uint8_t* codes, std::size_t n, unsigned bits, std::uint8_t* out);
    // Undoes pack_codes. Writes up to 7 codes more.
    void (*unpack_codes)(const std::uint8_t* packed, std::size_t n, unsigned bits, std::uint8_t* codes);
    // out[i] += +-(level * unit) of n codes of one bucket, the sign turned by `negate`; returns the highest level.
    std::uint8_t (*add_levels)(const std::uint8_t* codes, std::size_t n, unsigned bits, float unit, bool negate, float* out);
    // codes[i] = sign << bits | nearest level of |x[i]|.
    void (*nearest_codes)(const float* x, std::size_t n, Line line, unsigned bits, std::int64_t* codes);
    // out[i] = +-(base + level * step) of sign << bits | level, within float's range.
    void (*code_values)(const std::int64_t* codes, std::size_t n, float base, float step, unsigned bits, float* out);
    // The same levels, not written: distances[i] = |x[i]| - low, products[i] = level * distance.
    Moments (*level_moments)(const float* x, std::size_t n, Line line, double low, double* distances, double* products);
    // Bit i of `out`: whether x[i] is below zero, or `zero` for zeros; ceil(n / 8) bytes.
    void (*pack_negative)(const float* x, std::size_t n, bool zero, std::uint8_t* out);
    // out[i] = 1, -1 or 0 by the sign of x[i]; inf and NaN stay. `out` may be x.
    void (*signs)(const float* x, float* out, std::size_t n);
    // sums[i] = terms of entry i of each row, added.
    void (*row_terms)(const float* const rows[kRows], std::size_t n, Term term, double* sums);
    // codes[i] = sign << 7 | biased exponent of the power of two that x[i] is rounded to, less `offset`; draws are those
    // of first + i.
    void (*power_codes)(const float* x, std::size_t n, std::uint32_t first, int offset, Key key, std::uint8_t* codes);
    // out[i] += what bit i of `packed` stands for.
    void (*add_chosen)(const std::uint8_t* packed, std::size_t n, float clear, float set, float* out);
    // out[i] += table[codes[i]], or minus that.
    void (*add_values)(const std::uint8_t* codes, std::size_t n, const float* table, bool negate, float* out);
    // out[i] = x[i] * inverse, a power of two, rounded to the nearest integer, half to even.
    void (*to_integers)(const float* x, std::size_t n, float inverse, double* out);
    // sums[j] += sum of x[i] * y[j * stride + i] over i, for kTerms of j; n is a multiple of kLanes. Those sums are exact.
    void (*add_sums)(const double* x, const double* y, std::size_t stride, std::size_t n, double* sums);
    // sums[i] += sum of x[j] * y[j * stride + i] over kTerms of j.
    void (*add_rows)(const double* x, const double* y, std::size_t stride, std::size_t n, double* sums);
    // out[i] = sums[i] * unit
    void (*scale_sums)(const double* sums, std::size_t n, double unit, float* out);
};

// Codes that the loops above take at once.
constexpr std::size_t kCodes = 4096;

extern const Kernels portable_kernels;
#if defined(__x86_64__)
extern const Kernels avx2_kernels;
extern const Kernels avx512_kernels;
#endif

// The best that this processor can, or what HVD_COMPRESS_ISA asks for.
const Kernels& kernels();

}  // namespace hvd_compress
