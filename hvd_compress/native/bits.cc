#include "bits.h"

#include <atomic>
#include <cstring>
#include <numeric>
#include <utility>
#include <vector>

#include "kernels.h"
#include "pool.h"

namespace hvd_compress {
namespace {

// Bytes of a bitmap that make one part.
constexpr std::size_t kBytes = kPart / 8;

std::uint64_t load(const std::uint8_t* from, std::size_t nbytes) {
    std::uint64_t word = 0;
    if (nbytes >= sizeof word)
        std::memcpy(&word, from, sizeof word);
    else
        std::memcpy(&word, from, nbytes);
    return word;
}

std::size_t ones_of(const std::uint8_t* packed, std::size_t nbytes) {
    std::size_t ones = 0;
    for (std::size_t at = 0; at < nbytes; at += 8)
        ones += static_cast<std::size_t>(__builtin_popcountll(load(packed + at, nbytes - at)));
    return ones;
}

// Ones before each part of a bitmap, and in all of it.
std::vector<std::size_t> ones_before(const std::uint8_t* packed, std::size_t nbytes) {
    const std::size_t parts = (nbytes + kBytes - 1) / kBytes;
    std::vector<std::size_t> ones(parts + 1, 0);
    parallel(parts, [&](std::size_t part) {
        ones[part + 1] = ones_of(packed + part * kBytes, std::min(kBytes, nbytes - part * kBytes));
    });
    std::partial_sum(ones.begin(), ones.end(), ones.begin());
    return ones;
}

// Calls put(position) for each one of a part of a bitmap.
template <typename Put>
void for_ones(const std::uint8_t* packed, std::size_t nbytes, std::size_t part, const Put& put) {
    const std::size_t end = std::min(nbytes, (part + 1) * kBytes);
    for (std::size_t at = part * kBytes; at < end; at += 8) {
        for (std::uint64_t word = load(packed + at, end - at); word; word &= word - 1)
            put(8 * at + static_cast<std::size_t>(__builtin_ctzll(word)));
    }
}

}  // namespace

void pack_bits(const std::int64_t* codes, std::size_t count, unsigned bits, std::uint8_t* out) {
    const std::uint64_t mask = (std::uint64_t{1} << bits) - 1;
    // Every part begins at a byte, because its number of entries is a multiple of 8.
    in_parts(count, [&](std::size_t begin, std::size_t size) {
        std::uint8_t* to = out + begin / 8 * bits;
        std::uint64_t word = 0;
        unsigned filled = 0;
        for (std::size_t i = begin; i < begin + size; ++i) {
            const std::uint64_t code = static_cast<std::uint64_t>(codes[i]) & mask;
            word |= code << filled;
            filled += bits;
            if (filled >= 64) {
                std::memcpy(to, &word, 8);
                to += 8;
                filled -= 64;
                word = filled ? code >> (bits - filled) : 0;
            }
        }
        std::memcpy(to, &word, (filled + 7) / 8);
    });
}

void unpack_bits(const std::uint8_t* packed, std::size_t nbytes, unsigned bits, std::size_t count, std::int64_t* codes) {
    const std::uint64_t mask = (std::uint64_t{1} << bits) - 1;
    in_parts(count, [&](std::size_t begin, std::size_t size) {
        std::size_t at = begin * bits;
        std::size_t i = begin;
        for (; i < begin + size && at / 8 + 8 <= nbytes; ++i, at += bits) {
            std::uint64_t word;
            std::memcpy(&word, packed + at / 8, 8);
            codes[i] = static_cast<std::int64_t>(word >> (at % 8) & mask);
        }
        for (; i < begin + size; ++i, at += bits)
            codes[i] = static_cast<std::int64_t>(load(packed + at / 8, nbytes - at / 8) >> (at % 8) & mask);
    });
}

void unpack_values(const std::uint8_t* packed, unsigned bits, std::size_t count, const float* table, float* out) {
    in_parts(count, [&](std::size_t start, std::size_t length) {
        std::uint8_t codes[kCodes + 8];
        for (std::size_t begin = start; begin < start + length; begin += kCodes) {
            const std::size_t size = std::min(kCodes, start + length - begin);
            kernels().unpack_codes(packed + begin / 8 * bits, size, bits, codes);
            for (std::size_t i = 0; i < size; ++i) out[begin + i] = table[codes[i]];
        }
    });
}

bool set_bits(const std::int64_t* indices, std::size_t count, unsigned low, std::int64_t spread, std::uint8_t* out,
              std::size_t length) {
    std::atomic<bool> good{true};
    in_parts(count, [&](std::size_t begin, std::size_t size) {
        std::size_t current = 0;
        std::uint8_t byte = 0;
        // Where parts meet they may share a byte.
        const auto flush = [&] {
            if (byte) __atomic_fetch_or(out + current, byte, __ATOMIC_RELAXED);
            byte = 0;
        };
        for (std::size_t i = begin; i < begin + size; ++i) {
            const std::size_t place = static_cast<std::size_t>((indices[i] >> low) + static_cast<std::int64_t>(i) * spread);
            if (indices[i] < 0 || place >= length) {
                good = false;
                return;
            }
            if (place / 8 != current) {
                flush();
                current = place / 8;
            }
            byte = static_cast<std::uint8_t>(byte | 1U << (place % 8));
        }
        flush();
    });
    return good;
}

std::size_t count_ones(const std::uint8_t* packed, std::size_t nbytes) {
    return ones_before(packed, nbytes).back();
}

void find_ones(const std::uint8_t* packed, std::size_t nbytes, std::int64_t* positions) {
    const std::vector<std::size_t> ones = ones_before(packed, nbytes);
    parallel(ones.size() - 1, [&](std::size_t part) {
        std::int64_t* out = positions + ones[part];
        for_ones(packed, nbytes, part, [&](std::size_t place) { *out++ = static_cast<std::int64_t>(place); });
    });
}

Fault unpack_rising(const std::uint8_t* lows, const std::uint8_t* high, std::size_t lows_nbytes, std::size_t high_nbytes,
                    unsigned low, std::int64_t n, std::size_t k, std::int64_t* indices) {
    const std::vector<std::size_t> ones = ones_before(high, high_nbytes);
    if (ones.back() != k) return Fault::count;
    const std::uint64_t mask = (std::uint64_t{1} << low) - 1;
    std::atomic<bool> rising{true};
    parallel(ones.size() - 1, [&](std::size_t part) {
        std::size_t i = ones[part], at = i * low;
        std::int64_t last = -1;
        bool good = true;
        for_ones(high, high_nbytes, part, [&](std::size_t place) {
            const std::uint64_t bits = low ? load(lows + at / 8, lows_nbytes - at / 8) >> (at % 8) & mask : 0;
            const std::int64_t index = static_cast<std::int64_t>((place - i) << low | bits);
            good &= index > last;
            indices[i++] = last = index;
            at += low;
        });
        if (!good) rising = false;
    });
    for (const std::size_t first : ones)
        if (first > 0 && first < k && indices[first] <= indices[first - 1]) rising = false;
    if (!rising) return Fault::order;
    return k > 0 && indices[k - 1] >= n ? Fault::range : Fault::none;
}

}  // namespace hvd_compress
