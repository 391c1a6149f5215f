#include "select.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>

#include "pool.h"

namespace hvd_compress {
namespace {

std::uint32_t bits_of(float x) {
    std::uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    return bits & 0x7FFFFFFF;
}

// A bound that at least k magnitudes most likely reach, and not many more.
std::uint32_t likely_bound(const float* x, std::size_t n, std::size_t k) {
    constexpr std::size_t kSample = 1 << 14;
    if (n <= 4 * kSample) return 0;
    const std::size_t stride = n / kSample;
    std::vector<std::uint32_t> sample(kSample);
    for (std::size_t i = 0; i < kSample; ++i) {
        // Not one stride: entries of a column would repeat.
        sample[i] = bits_of(x[i * stride + (i * 2654435761u) % stride]);
    }
    const double expected = static_cast<double>(k) / static_cast<double>(n) * kSample;
    const double rank = expected + 5.0 * std::sqrt(expected) + 16.0;
    if (rank >= kSample - 1) return 0;
    auto place = sample.begin() + static_cast<std::ptrdiff_t>(rank);
    std::nth_element(sample.begin(), place, sample.end(), std::greater<>());
    return *place;
}

}  // namespace

std::vector<Entry> at_least(const float* x, std::size_t n, std::uint32_t least) {
    const std::size_t parts = parts_of(n);
    std::vector<std::vector<Entry>> found(parts);
    parallel(parts, [&](std::size_t part) {
        static thread_local std::unique_ptr<Entry[]> room(new Entry[kPart]);
        const std::size_t begin = part * kPart, size = std::min(kPart, n - begin);
        const std::size_t count = kernels().collect(x + begin, size, static_cast<std::uint32_t>(begin), least, room.get());
        found[part].assign(room.get(), room.get() + count);
    });
    std::size_t total = 0;
    for (const auto& part : found) total += part.size();
    std::vector<Entry> all;
    all.reserve(total);
    for (const auto& part : found) all.insert(all.end(), part.begin(), part.end());
    return all;
}

void largest(const float* x, std::size_t n, std::size_t k, std::int64_t* indices) {
    if (k == 0) return;
    std::vector<Entry> candidates = at_least(x, n, likely_bound(x, n, k));
    // The sample was unlucky.
    if (candidates.size() < k) candidates = at_least(x, n, 0);
    std::vector<std::uint32_t> bits(candidates.size());
    for (std::size_t i = 0; i < candidates.size(); ++i) bits[i] = candidates[i].bits;
    const auto place = bits.begin() + static_cast<std::ptrdiff_t>(k - 1);
    std::nth_element(bits.begin(), place, bits.end(), std::greater<>());
    const std::uint32_t threshold = *place;
    std::size_t ties = k;
    for (const Entry& entry : candidates) ties -= entry.bits > threshold;
    for (const Entry& entry : candidates) {
        if (entry.bits < threshold) continue;
        if (entry.bits == threshold) {
            if (ties == 0) continue;
            --ties;
        }
        *indices++ = entry.index;
    }
}

}  // namespace hvd_compress
