#include "allocate.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

#include "pool.h"
#include "select.h"

namespace hvd_compress {
namespace {

constexpr std::uint32_t kInfinity = 0x7F800000, kSmallest = 0x00800000;
constexpr std::size_t kHeader = 40;
// Items are counted by the exponent of their keys and so many bits behind it.
constexpr unsigned kFraction = 8, kShift = 52 - kFraction;

using Counts = std::array<std::size_t, kWidths>;

struct Item {
    double key;
    std::uint32_t index;
    unsigned level;

    // Larger keys come first, of equal ones smaller indices.
    bool operator<(const Item& other) const {
        if (key != other.key) return key > other.key;
        return index != other.index ? index < other.index : level < other.level;
    }
};

// Bits of magnitudes, one for each level of an entry's items.
using Bits = std::array<std::uint32_t, kWidths>;

double magnitude_of(std::uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return static_cast<double>(value);
}

// Bits of the smallest magnitude whose item of each level has this key or a larger one; infinity's where none has.
Bits least_bits(double key, const Ratios& ratios) {
    Bits least;
    for (std::size_t level = 0; level < kWidths; ++level) {
        const float near = static_cast<float>(std::min(key * ratios[level], 0x1.fffffep127));
        std::uint32_t& bits = least[level];
        std::memcpy(&bits, &near, sizeof bits);
        while (bits > 0 && magnitude_of(bits - 1) / ratios[level] >= key) --bits;
        while (bits < kInfinity && magnitude_of(bits) / ratios[level] < key) ++bits;
    }
    return least;
}

std::size_t bin_of(double key) {
    std::uint64_t pattern;
    std::memcpy(&pattern, &key, sizeof pattern);
    return static_cast<std::size_t>(pattern >> kShift);
}

// The smallest key of a bin.
double begin_of(std::size_t bin) {
    const std::uint64_t pattern = static_cast<std::uint64_t>(bin) << kShift;
    double key;
    std::memcpy(&key, &pattern, sizeof key);
    return key;
}

std::size_t index_nbytes(std::size_t n, std::size_t k) {
    if (4 * k >= n) return (n + 7) / 8;
    // The logarithm of their quotient, rounded down.
    const auto low = static_cast<unsigned>(63 - __builtin_clzll(n / k));
    return (k * low + 7) / 8 + (k + ((n - 1) >> low) + 8) / 8;
}

std::size_t section_nbytes(std::size_t n, std::size_t k, unsigned width) {
    return k ? index_nbytes(n, k) + (k * width + 7) / 8 : 0;
}

// Whether entries fit, of which so many get at least 2, at least 4 and 8 bits.
bool fits(const Budget& budget, const Counts& reached) {
    if (budget.codes_alone) return 2 * reached[0] + 2 * reached[1] + 4 * reached[2] <= budget.limit;
    std::size_t nbytes = kHeader;
    for (std::size_t level = 0; level < kWidths; ++level) {
        const std::size_t further = level + 1 < kWidths ? reached[level + 1] : 0;
        nbytes += section_nbytes(budget.n, reached[level] - further, kWidth[level]);
    }
    return nbytes <= budget.limit;
}

// Whether a prefix could fit that reaches at least `least` and at most `most`.
bool may_fit(const Budget& budget, const Counts& least, const Counts& most) {
    if (budget.codes_alone) return fits(budget, least);
    if (least[0] > budget.most) return false;
    std::size_t nbytes = kHeader;
    for (std::size_t level = 0; level < kWidths; ++level) {
        const std::size_t further = level + 1 < kWidths ? most[level + 1] : 0;
        if (least[level] <= further) continue;
        // A section of 2 or 4 bits can shrink by a byte where it gains entries.
        nbytes += section_nbytes(budget.n, least[level] - further, kWidth[level]) - (kWidth[level] < 8);
    }
    return nbytes <= budget.limit;
}

class Search {
   public:
    Search(const Found& found, const Budget& budget, const Ratios& ratios, std::uint32_t largest)
        : found_(found), budget_(budget), ratios_(ratios) {
        std::uint32_t least = kInfinity;
        for (const auto& part : found.bits)
            for (const std::uint32_t bits : part) least = std::min(least, bits);
        // Smaller keys could be those of entries that were not found; and there are none that are smaller still.
        smallest_ = std::max(magnitude_of(found.least), magnitude_of(least) / ratios.back());
        first_ = bin_of(smallest_);
        counts_.resize(bin_of(magnitude_of(largest)) - first_ + 1, Counts{});
        const Bits from = least_bits(smallest_, ratios), all{kInfinity, kInfinity, kInfinity};
        const std::size_t parts = found.bits.size(), shares = std::max<std::size_t>(1, std::min(threads(), parts));
        std::vector<std::vector<Counts>> own(shares, std::vector<Counts>(counts_.size(), Counts{}));
        parallel(shares, [&](std::size_t share) {
            for (std::size_t part = parts * share / shares; part < parts * (share + 1) / shares; ++part)
                each_item(part, from, all, [&](const Item& item) { ++own[share][bin_of(item.key) - first_][item.level]; });
        });
        for (const auto& counts : own)
            for (std::size_t bin = 0; bin < counts.size(); ++bin)
                for (std::size_t level = 0; level < kWidths; ++level) counts_[bin][level] += counts[bin][level];
    }

    // The last item of the longest prefix that fits.
    std::optional<Item> last() const {
        Counts most{};
        for (const Counts& bin : counts_)
            for (std::size_t level = 0; level < kWidths; ++level) most[level] += bin[level];
        for (std::size_t bin = 0; bin < counts_.size(); ++bin) {
            Counts least = most;
            bool any = false;
            for (std::size_t level = 0; level < kWidths; ++level) {
                least[level] -= counts_[bin][level];
                any |= counts_[bin][level] > 0;
            }
            if (any && may_fit(budget_, least, most))
                if (const auto item = last_in(first_ + bin, most)) return item;
            most = least;
        }
        return std::nullopt;
    }

   private:
    // Calls take(item) for the items of a part that belong to magnitudes with bits in [least, below).
    template <typename Take>
    void each_item(std::size_t part, const Bits& least, const Bits& below, const Take& take) const {
        const std::uint32_t *bits = found_.bits[part].data(), *indices = found_.indices[part].data();
        const std::size_t n = found_.bits[part].size();
        for (unsigned level = 0; level < kWidths; ++level) {
            // One comparison for both ends.
            const std::uint32_t start = least[level], span = below[level] - start;
            const double ratio = ratios_[level];
            for (std::size_t i = 0; i < n; ++i)
                if (bits[i] - start < span) take(Item{magnitude_of(bits[i]) / ratio, indices[i], level});
        }
    }

    // The same in a bin, at the end of which so many are reached.
    std::optional<Item> last_in(std::size_t bin, Counts reached) const {
        std::vector<Item> items;
        const Bits from = least_bits(std::max(begin_of(bin), smallest_), ratios_), to = least_bits(begin_of(bin + 1), ratios_);
        for (std::size_t part = 0; part < found_.bits.size(); ++part)
            each_item(part, from, to, [&](const Item& item) { items.push_back(item); });
        std::sort(items.begin(), items.end());
        for (; !items.empty(); items.pop_back()) {
            if (fits(budget_, reached)) return items.back();
            --reached[items.back().level];
        }
        return std::nullopt;
    }

    const Found& found_;
    const Budget& budget_;
    const Ratios& ratios_;
    double smallest_;
    std::size_t first_;
    std::vector<Counts> counts_;
};

// Appends the indices of the magnitudes with bits in [least, below).
void append_inside(const std::uint32_t* bits, const std::uint32_t* indices, std::size_t n, std::uint32_t least,
                   std::uint32_t below, std::vector<std::uint32_t>& to) {
    std::size_t count = to.size();
    to.resize(count + n + 1);
    for (std::size_t i = 0; i < n; ++i) {
        // A branch would often be mispredicted.
        to[count] = indices[i];
        count += bits[i] - least < below - least;
    }
    to.resize(count);
}

}  // namespace

Allocation allocate(const float* x, const Budget& budget, const Ratios& ratios) {
    Allocation result;
    const Found found = likely_largest(x, budget.n, std::min(budget.n, budget.most + 1), kSmallest);
    for (const auto& part : found.bits)
        for (const std::uint32_t bits : part) result.largest = std::max(result.largest, bits);
    if (found.total == 0 || result.largest >= kInfinity) return result;
    const auto last = Search(found, budget, ratios, result.largest).last();
    if (!last) return result;
    // Of equal keys those before the last item are taken, and of its own entry the levels up to its own.
    const Bits before = least_bits(last->key, ratios), behind = least_bits(std::nextafter(last->key, HUGE_VAL), ratios);
    Bits own = before;
    std::copy(behind.begin() + last->level + 1, behind.end(), own.begin() + last->level + 1);
    result.parts.resize(found.bits.size());
    parallel(found.bits.size(), [&](std::size_t part) {
        const auto& indices = found.indices[part];
        const auto first = std::lower_bound(indices.begin(), indices.end(), last->index), end = indices.end();
        const auto next = first != end && *first == last->index ? first + 1 : first;
        for (std::size_t level = 0; level < kWidths; ++level) {
            const auto choose = [&](auto from, auto to, const Bits& least) {
                const std::uint32_t below = level + 1 < kWidths ? least[level + 1] : kInfinity;
                const std::size_t begin = static_cast<std::size_t>(from - indices.begin());
                append_inside(found.bits[part].data() + begin, indices.data() + begin, static_cast<std::size_t>(to - from),
                              least[level], below, result.parts[part][level]);
            };
            choose(indices.begin(), first, before);
            choose(first, next, own);
            choose(next, end, behind);
        }
    });
    return result;
}

}  // namespace hvd_compress
