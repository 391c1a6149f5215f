#include "entries.h"

#include <algorithm>
#include <atomic>

#include "kernels.h"
#include "pool.h"

namespace hvd_compress {
namespace {

// Entries of the sum that one thread works on while they stay in its nearest cache.
constexpr std::size_t kBlock = 4096;
static_assert(kPart % kBlock == 0);

// Entries of an array that no cache near a core holds.
constexpr std::size_t kLarge = std::size_t{1} << 20;

// Adds the entries with indices in [begin, begin + size) to out[0], ..., from `next` on, and moves it.
bool add_range(float* out, std::size_t begin, std::size_t size, const Sent& sent, std::size_t& next) {
    const std::int64_t end = static_cast<std::int64_t>(begin + size);
    for (; next < sent.count && sent.indices[next] < end; ++next) {
        const std::size_t place = static_cast<std::size_t>(sent.indices[next]) - begin;
        if (place >= size) return false;
        out[place] += sent.values[next];
    }
    return true;
}

}  // namespace

template <typename T>
bool take(const T* x, std::size_t n, const std::int64_t* indices, std::size_t count, T* out) {
    std::atomic<bool> good{true};
    in_parts(count, [&](std::size_t begin, std::size_t size) {
        for (std::size_t i = begin; i < begin + size; ++i) {
            const std::size_t place = static_cast<std::size_t>(indices[i]);
            if (place >= n) {
                good = false;
                return;
            }
            out[i] = x[place];
        }
    });
    return good;
}

template bool take(const float*, std::size_t, const std::int64_t*, std::size_t, float*);
template bool take(const std::int64_t*, std::size_t, const std::int64_t*, std::size_t, std::int64_t*);

bool scatter_add(float* x, std::size_t n, const Sent& sent) {
    std::atomic<bool> good{true};
    in_parts(sent.count, [&](std::size_t begin, std::size_t size) {
        for (std::size_t i = begin; i < begin + size; ++i) {
            const std::size_t place = static_cast<std::size_t>(sent.indices[i]);
            if (place >= n) {
                good = false;
                return;
            }
            x[place] += sent.values[i];
        }
    });
    return good;
}

bool sum_entries(float* x, std::size_t n, const std::vector<Sent>& all, bool fresh, float factor) {
    // Whatever reads a large sum finds little of it in a cache anyway, and so the old one need not be loaded.
    const bool past_caches = fresh && n >= kLarge;
    std::atomic<bool> good{true};
    std::atomic<std::size_t> added{0};
    in_parts(n, [&](std::size_t start, std::size_t length) {
        std::vector<std::size_t> next;
        for (const Sent& sent : all) {
            const auto* from = std::lower_bound(sent.indices, sent.indices + sent.count, static_cast<std::int64_t>(start));
            next.push_back(static_cast<std::size_t>(from - sent.indices));
        }
        const std::vector<std::size_t> first = next;
        for (std::size_t begin = start; begin < start + length; begin += kBlock) {
            const std::size_t size = std::min(kBlock, start + length - begin);
            alignas(64) static thread_local float room[kBlock];
            float* out = past_caches ? room : x + begin;
            if (fresh) std::fill(out, out + size, 0.0f);
            for (std::size_t place = 0; place < all.size(); ++place) {
                if (!add_range(out, begin, size, all[place], next[place])) {
                    good = false;
                    return;
                }
            }
            if (past_caches)
                kernels().stream(out, factor, x + begin, size);
            else if (factor != 1.0f)
                kernels().scale(out, factor, out, size);
        }
        for (std::size_t place = 0; place < all.size(); ++place) added += next[place] - first[place];
    });
    // An index that is out of range, or does not rise, may belong to no part.
    std::size_t total = 0;
    for (const Sent& sent : all) total += sent.count;
    return good && added == total;
}

Distinct are_distinct(const std::vector<Sent>& all, std::size_t n) {
    std::atomic<bool> distinct{true};
    std::atomic<std::size_t> seen{0};
    in_parts(n, [&](std::size_t begin, std::size_t size) {
        std::uint64_t taken[kPart / 64] = {};
        for (const Sent& sent : all) {
            const std::int64_t* const end = sent.indices + sent.count;
            const std::int64_t* const from = std::lower_bound(sent.indices, end, static_cast<std::int64_t>(begin));
            const std::int64_t* next = from;
            for (; next < end; ++next) {
                const std::size_t place = static_cast<std::size_t>(*next) - begin;
                if (place >= size) break;
                const std::uint64_t bit = std::uint64_t{1} << (place % 64);
                if (taken[place / 64] & bit) distinct = false;
                taken[place / 64] |= bit;
            }
            seen += static_cast<std::size_t>(next - from);
        }
    });
    std::size_t total = 0;
    for (const Sent& sent : all) total += sent.count;
    if (seen != total) return Distinct::outside;
    return distinct ? Distinct::yes : Distinct::no;
}

}  // namespace hvd_compress
