#include "select.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "kernels.h"
#include "pool.h"

namespace hvd_compress {
namespace {

// Magnitude bits are below it.
constexpr std::uint32_t kAll = 0x80000000;

// Gathers what loop(begin, size, entries) writes of each part; it returns how many.
template <typename Loop>
Found collect_parts(std::size_t n, const Loop& loop) {
    Found found;
    found.indices.resize(parts_of(n));
    found.bits.resize(parts_of(n));
    in_parts(n, [&](std::size_t begin, std::size_t size) {
        static thread_local std::unique_ptr<std::uint32_t[]> room(new std::uint32_t[2 * (kPart + 16)]);
        const Entries entries{room.get(), room.get() + kPart + 16};
        const std::size_t count = loop(begin, size, entries);
        found.indices[begin / kPart].assign(entries.indices, entries.indices + count);
        found.bits[begin / kPart].assign(entries.bits, entries.bits + count);
    });
    for (const auto& part : found.indices) found.total += part.size();
    return found;
}

Found collect(const float* x, std::size_t n, std::uint32_t least, std::uint32_t below = kAll) {
    Found found = collect_parts(n, [=](std::size_t begin, std::size_t size, Entries entries) {
        return kernels().collect(x + begin, size, static_cast<std::uint32_t>(begin), least, below, entries);
    });
    found.least = least;
    return found;
}

std::uint32_t bits_of(float x) {
    std::uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    return bits & 0x7FFFFFFF;
}

// A bound that at least k magnitudes of value(0), ..., value(n - 1) most likely reach, and not many more.
template <typename Value>
std::uint32_t likely_bound(const Value& value, std::size_t n, std::size_t k) {
    // A larger tensor can afford more of them.
    const std::size_t sample_size = n >= std::size_t{1} << 22 ? 1 << 14 : 1 << 11;
    if (n < 4 * k || n <= 2 * sample_size) return 0;
    const std::size_t stride = n / sample_size;
    std::vector<std::uint32_t> sample(sample_size);
    for (std::size_t i = 0; i < sample_size; ++i) {
        // Not one stride: entries of a column would repeat.
        sample[i] = bits_of(value(i * stride + (i * 2654435761u) % stride));
    }
    const double expected = static_cast<double>(k) / static_cast<double>(n) * static_cast<double>(sample_size);
    const double rank = expected + 5.0 * std::sqrt(expected) + 16.0;
    if (rank >= static_cast<double>(sample_size - 1)) return 0;
    auto place = sample.begin() + static_cast<std::ptrdiff_t>(rank);
    std::nth_element(sample.begin(), place, sample.end(), std::greater<>());
    return *place;
}

// Bits of the k-th largest magnitude, and how many are larger still.
struct Threshold {
    std::uint32_t bits;
    std::size_t above;
};

// By partial sorting, the faster way for a few.
Threshold sorted_threshold(const Found& found, std::size_t k) {
    std::vector<std::uint32_t> all;
    all.reserve(found.total);
    for (const auto& part : found.bits) all.insert(all.end(), part.begin(), part.end());
    const auto place = all.begin() + static_cast<std::ptrdiff_t>(k - 1);
    std::nth_element(all.begin(), place, all.end(), std::greater<>());
    const std::uint32_t bits = *place;
    return {bits, static_cast<std::size_t>(std::count_if(all.begin(), place, [=](std::uint32_t one) { return one > bits; }))};
}

// By two counts of leading bits.
Threshold counted_threshold(const Found& found, std::size_t k) {
    constexpr unsigned kShift = 16;
    constexpr std::size_t kBins = std::size_t{1} << (31 - kShift);
    std::vector<std::size_t> counts(kBins, 0);
    for (const auto& part : found.bits)
        for (const std::uint32_t bits : part) ++counts[bits >> kShift];
    std::size_t bin = kBins - 1, above = 0;
    while (above + counts[bin] < k) above += counts[bin--];
    std::vector<std::size_t> inner(std::size_t{1} << kShift, 0);
    for (const auto& part : found.bits)
        for (const std::uint32_t bits : part)
            if (bits >> kShift == bin) ++inner[bits & ((1U << kShift) - 1)];
    std::size_t low = inner.size() - 1;
    while (above + inner[low] < k) above += inner[low--];
    return {static_cast<std::uint32_t>(bin << kShift | low), above};
}

// Writes the indices of the k largest, rising.
void write_largest(const Found& found, std::size_t k, std::int64_t* indices) {
    constexpr std::size_t kFew = 1 << 15;
    const Threshold threshold = found.total < kFew ? sorted_threshold(found, k) : counted_threshold(found, k);
    std::size_t ties = k - threshold.above;
    for (std::size_t part = 0; part < found.bits.size(); ++part) {
        for (std::size_t i = 0; i < found.bits[part].size(); ++i) {
            const std::uint32_t bits = found.bits[part][i];
            if (bits < threshold.bits) continue;
            if (bits == threshold.bits) {
                if (ties == 0) continue;
                --ties;
            }
            *indices++ = found.indices[part][i];
        }
    }
}

}  // namespace

Found likely_largest(const float* x, std::size_t n, std::size_t k, std::uint32_t smallest) {
    const std::uint32_t bound = likely_bound([=](std::size_t i) { return x[i]; }, n, k);
    Found found = collect(x, n, std::max(bound, smallest));
    // The sample was unlucky.
    if (found.total < k && bound > smallest) found = collect(x, n, smallest);
    return found;
}

void at_least(const float* x, std::size_t n, std::uint32_t least, std::uint32_t below,
              const std::function<std::int64_t*(std::size_t)>& room) {
    const Found found = collect(x, n, least, below);
    std::int64_t* out = room(found.total);
    for (const auto& part : found.indices) out = std::copy(part.begin(), part.end(), out);
}

std::size_t count_at_least(const float* x, std::size_t n, std::uint32_t least) {
    std::atomic<std::size_t> count{0};
    in_parts(n, [&](std::size_t at, std::size_t size) { count += kernels().count_at_least(x + at, size, least); });
    return count;
}

void largest(const float* x, std::size_t n, std::size_t k, std::int64_t* indices) {
    if (k == 0) return;
    Found found = collect(x, n, likely_bound([=](std::size_t i) { return x[i]; }, n, k));
    // The sample was unlucky.
    if (found.total < k) found = collect(x, n, 0);
    write_largest(found, k, indices);
}

void accumulate_largest(const float* x, float* residual, float decay, std::size_t n, std::size_t k, std::int64_t* indices) {
    const auto sum = [=](std::size_t i) { return x[i] + decay * residual[i]; };
    const std::uint32_t least = likely_bound(sum, n, k);
    Found found = collect_parts(n, [=](std::size_t begin, std::size_t size, Entries entries) {
        float* sums = residual + begin;
        return kernels().collect_sums(x + begin, sums, decay, sums, size, static_cast<std::uint32_t>(begin), least, kAll, entries);
    });
    if (found.total < k) found = collect(residual, n, 0);
    write_largest(found, k, indices);
}

}  // namespace hvd_compress
