#include "sums.h"

#include <algorithm>

#include "pool.h"

namespace hvd_compress {
namespace {

// Sums that are carried while they stay in a thread's nearest cache, and of all at the end.
constexpr std::size_t kBlock = 512, kSlots = 16 * kBlock;
// Terms of a bucket that more than one thread is worth.
constexpr std::size_t kLarge = kPart;
static_assert(kLarge >= kRows * kSlots);

unsigned log2_of(std::size_t power) { return static_cast<unsigned>(__builtin_ctzll(power)); }

std::size_t reversed(std::size_t x, unsigned bits) {
    std::size_t result = 0;
    for (unsigned i = 0; i < bits; ++i) result |= (x >> i & 1) << (bits - 1 - i);
    return result;
}

void add(double* x, const double* y, std::size_t n) {
    for (std::size_t i = 0; i < n; ++i) x[i] += y[i];
}

// The terms of one bucket, whose length is filled up to a power of two. Folded into `slots` sums first: those of the terms
// that are so many apart.
struct Bucket {
    const float* x;
    std::size_t size, length, slots;

    Bucket(const float* start, std::size_t count, std::size_t bucket_size) : x(start), size(count), length(kRows) {
        while (length < bucket_size) length *= 2;
        slots = std::min(kSlots, length / kRows);
    }

    std::size_t width() const { return std::min(kBlock, slots); }
    std::size_t blocks() const { return slots / width(); }
};

// Folds the terms of one block of slots. In the order of reversed bits those that meet are neighbours: what waits in a pile
// are the sums of 1, 2, 4, ... groups of rows.
void fold_block(const Bucket& bucket, std::size_t block, const std::vector<Term>& terms, double* out) {
    const std::size_t width = bucket.width(), rows = bucket.length / bucket.slots, groups = rows / kRows;
    const unsigned bits = log2_of(rows);
    const std::size_t height = (log2_of(groups) + 1) * width;
    std::vector<double> piles(terms.size() * height);
    float filled[kRows][kBlock];
    for (std::size_t group = 0; group < groups; ++group) {
        const float* four[kRows];
        for (std::size_t row = 0; row < kRows; ++row) {
            const std::size_t begin = reversed(kRows * group + row, bits) * bucket.slots + block * width;
            four[row] = bucket.x + begin;
            if (begin + width <= bucket.size) continue;
            const std::size_t left = begin < bucket.size ? bucket.size - begin : 0;
            std::copy(bucket.x + bucket.size - left, bucket.x + bucket.size, filled[row]);
            std::fill(filled[row] + left, filled[row] + width, 0.0f);
            four[row] = filled[row];
        }
        for (std::size_t term = 0; term < terms.size(); ++term) {
            double* top = &piles[term * height] + static_cast<std::size_t>(__builtin_popcountll(group)) * width;
            kernels().row_terms(four, width, terms[term], top);
            for (std::size_t met = group; met & 1; met >>= 1, top -= width) add(top - width, top, width);
        }
    }
    for (std::size_t term = 0; term < terms.size(); ++term)
        std::copy_n(&piles[term * height], width, out + term * bucket.slots + block * width);
}

double folded(double* sums, std::size_t length) {
    for (std::size_t half = length / 2; half > 0; half /= 2) add(sums, sums + half, half);
    return sums[0];
}

}  // namespace

void magnitude_sums(const float* x, std::size_t n, std::size_t size, const std::vector<Term>& terms, double* sums) {
    const std::size_t buckets = (n + size - 1) / size;
    const auto bucket_at = [&](std::size_t number) {
        return Bucket(x + number * size, std::min(size, n - number * size), size);
    };
    const auto finish = [&](std::size_t number, const Bucket& bucket, std::vector<double>& slots) {
        for (std::size_t term = 0; term < terms.size(); ++term)
            sums[term * buckets + number] = folded(&slots[term * bucket.slots], bucket.slots);
    };
    if (buckets == 0) return;
    const Bucket usual = bucket_at(0);
    if (usual.length > kLarge) {
        std::vector<double> slots(terms.size() * usual.slots);
        for (std::size_t number = 0; number < buckets; ++number) {
            const Bucket bucket = bucket_at(number);
            parallel(bucket.blocks(), [&](std::size_t block) { fold_block(bucket, block, terms, slots.data()); });
            finish(number, bucket, slots);
        }
        return;
    }
    // As many buckets as make one part.
    const std::size_t together = kLarge / usual.length;
    parallel((buckets + together - 1) / together, [&](std::size_t part) {
        std::vector<double> slots(terms.size() * usual.slots);
        for (std::size_t number = part * together; number < std::min(buckets, (part + 1) * together); ++number) {
            const Bucket bucket = bucket_at(number);
            for (std::size_t block = 0; block < bucket.blocks(); ++block) fold_block(bucket, block, terms, slots.data());
            finish(number, bucket, slots);
        }
    });
}

}  // namespace hvd_compress
