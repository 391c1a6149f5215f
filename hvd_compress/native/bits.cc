#include "bits.h"

#include <atomic>
#include <cstring>
#include <numeric>
#include <utility>
#include <vector>

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

std::vector<std::size_t> ones_by_part(const std::uint8_t* packed, std::size_t nbytes) {
    std::vector<std::size_t> ones((nbytes + kBytes - 1) / kBytes, 0);
    parallel(ones.size(), [&](std::size_t part) {
        ones[part] = ones_of(packed + part * kBytes, std::min(kBytes, nbytes - part * kBytes));
    });
    return ones;
}

// Calls put(i, position) for the i-th one of a bitmap.
template <typename Put>
void for_ones(const std::uint8_t* packed, std::size_t nbytes, std::vector<std::size_t> ones, const Put& put) {
    std::size_t total = 0;
    for (std::size_t& start : ones) {
        const std::size_t count = start;
        start = total;
        total += count;
    }
    parallel(ones.size(), [&](std::size_t part) {
        std::size_t i = ones[part];
        const std::size_t end = std::min(nbytes, (part + 1) * kBytes);
        for (std::size_t at = part * kBytes; at < end; at += 8) {
            for (std::uint64_t word = load(packed + at, end - at); word; word &= word - 1)
                put(i++, 8 * at + static_cast<std::size_t>(__builtin_ctzll(word)));
        }
    });
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
    std::size_t total = 0;
    for (const std::size_t ones : ones_by_part(packed, nbytes)) total += ones;
    return total;
}

void find_ones(const std::uint8_t* packed, std::size_t nbytes, std::int64_t* positions) {
    for_ones(packed, nbytes, ones_by_part(packed, nbytes),
             [=](std::size_t i, std::size_t place) { positions[i] = static_cast<std::int64_t>(place); });
}

Fault unpack_rising(const std::uint8_t* lows, const std::uint8_t* high, std::size_t lows_nbytes, std::size_t high_nbytes,
                    unsigned low, std::int64_t n, std::size_t k, std::int64_t* indices) {
    std::vector<std::size_t> ones = ones_by_part(high, high_nbytes);
    if (std::accumulate(ones.begin(), ones.end(), std::size_t{0}) != k) return Fault::count;
    const std::uint64_t mask = (std::uint64_t{1} << low) - 1;
    for_ones(high, high_nbytes, std::move(ones), [=](std::size_t i, std::size_t place) {
        const std::size_t at = i * low;
        const std::uint64_t bits = low ? load(lows + at / 8, lows_nbytes - at / 8) >> (at % 8) & mask : 0;
        indices[i] = static_cast<std::int64_t>((place - i) << low | bits);
    });
    std::atomic<bool> rising{true};
    in_parts(k, [&](std::size_t begin, std::size_t size) {
        bool good = true;
        for (std::size_t i = std::max<std::size_t>(begin, 1); i < begin + size; ++i) good &= indices[i] > indices[i - 1];
        if (!good) rising = false;
    });
    if (!rising) return Fault::order;
    return k > 0 && indices[k - 1] >= n ? Fault::range : Fault::none;
}

}  // namespace hvd_compress
