#include "quantise.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>

#include "pool.h"

namespace hvd_compress {
namespace {

static_assert(kPart % kCodes == 0 && kCodes % 8 == 0);

// Calls loop(bucket, begin, size) for the pieces of [begin, begin + length) that lie in one bucket each.
template <typename Loop>
void by_bucket(std::size_t begin, std::size_t length, std::size_t size, const Loop& loop) {
    for (std::size_t at = begin; at < begin + length;) {
        const std::size_t bucket = at / size;
        const std::size_t end = std::min(begin + length, (bucket + 1) * size);
        loop(bucket, at, end - at);
        at = end;
    }
}

}  // namespace

void bucket_maxima(const float* x, std::size_t n, std::size_t size, float* maxima) {
    const std::size_t buckets = (n + size - 1) / size;
    std::vector<std::atomic<std::uint32_t>> most(buckets);
    in_parts(n, [&](std::size_t begin, std::size_t length) {
        by_bucket(begin, length, size, [&](std::size_t bucket, std::size_t at, std::size_t count) {
            const std::uint32_t bits = kernels().largest_bits(x + at, count);
            std::uint32_t before = most[bucket].load(std::memory_order_relaxed);
            while (before < bits && !most[bucket].compare_exchange_weak(before, bits)) {
            }
        });
    });
    for (std::size_t bucket = 0; bucket < buckets; ++bucket) {
        const std::uint32_t bits = most[bucket];
        std::memcpy(maxima + bucket, &bits, sizeof bits);
    }
}

void pack_rounded(const float* x, std::size_t n, const float* scales, std::size_t size, const Rounding& how,
                  std::uint8_t* packed) {
    in_parts(n, [&](std::size_t start, std::size_t length) {
        std::uint8_t codes[kCodes + 8];
        for (std::size_t begin = start; begin < start + length; begin += kCodes) {
            const std::size_t count = std::min(kCodes, start + length - begin);
            by_bucket(begin, count, size, [&](std::size_t bucket, std::size_t at, std::size_t piece) {
                std::uint8_t* to = codes + (at - begin);
                const float scale = scales[bucket], inverse = how.top / scale;
                if (scale > 0 && std::isfinite(scale) && std::isfinite(inverse))
                    kernels().round_levels(x + at, piece, static_cast<std::uint32_t>(at), inverse, how, to);
                else
                    std::memset(to, 0, piece);
            });
            kernels().pack_codes(codes, count, how.bits, packed + begin / 8 * how.bits);
        }
    });
}

bool sum_levels(float* x, std::size_t n, const std::vector<Coded>& all, std::size_t size, unsigned bits, unsigned top,
                bool fresh, bool negate, float factor) {
    std::atomic<bool> good{true};
    in_parts(n, [&](std::size_t start, std::size_t length) {
        std::uint8_t codes[kCodes + 8];
        std::uint8_t most = 0;
        for (std::size_t begin = start; begin < start + length; begin += kCodes) {
            const std::size_t count = std::min(kCodes, start + length - begin);
            if (fresh) std::fill(x + begin, x + begin + count, 0.0f);
            for (const Coded& one : all) {
                kernels().unpack_codes(one.packed + begin / 8 * bits, count, bits, codes);
                by_bucket(begin, count, size, [&](std::size_t bucket, std::size_t at, std::size_t piece) {
                    most = std::max(most, kernels().add_levels(codes + (at - begin), piece, bits, one.units[bucket], negate,
                                                               x + at));
                });
            }
            if (factor != 1.0f) kernels().scale(x + begin, factor, x + begin, count);
        }
        if (most > top) good = false;
    });
    return good;
}

void sum_codes(float* x, std::size_t n, const std::vector<Tabled>& all, std::size_t size, unsigned bits, bool fresh,
               bool negate, float factor) {
    // Where every bucket begins at a byte, single bits need not be unpacked.
    const bool direct = bits == 1 && (size % 8 == 0 || size >= n);
    in_parts(n, [&](std::size_t start, std::size_t length) {
        std::uint8_t room[kCodes + 8];
        for (std::size_t begin = start; begin < start + length; begin += kCodes) {
            const std::size_t count = std::min(kCodes, start + length - begin);
            if (fresh) std::fill(x + begin, x + begin + count, 0.0f);
            for (const Tabled& one : all) {
                const std::uint8_t* const packed = one.packed + begin / 8 * bits;
                if (bits < 8 && !direct) kernels().unpack_codes(packed, count, bits, room);
                const std::uint8_t* const codes = bits < 8 ? room : packed;
                by_bucket(begin, count, size, [&](std::size_t bucket, std::size_t at, std::size_t piece) {
                    const float* const table = one.tables + (bucket << bits);
                    if (direct)
                        kernels().add_chosen(one.packed + at / 8, piece, negate ? -table[0] : table[0],
                                             negate ? -table[1] : table[1], x + at);
                    else
                        kernels().add_values(codes + (at - begin), piece, table, negate, x + at);
                });
            }
            if (factor != 1.0f) kernels().scale(x + begin, factor, x + begin, count);
        }
    });
}

}  // namespace hvd_compress
