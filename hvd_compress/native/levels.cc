#include "levels.h"

#include <atomic>
#include <memory>
#include <vector>

#include "pool.h"

namespace hvd_compress {
namespace {

// Places of the terms that one thread adds up while they stay in its nearest cache, and of all at the end.
constexpr std::size_t kBlock = 512, kSlots = 16 * kBlock;
static_assert(kBlock <= kCodes);

struct Terms {
    double distances[kBlock], products[kBlock];

    void add(const Terms& other) {
        for (std::size_t i = 0; i < kBlock; ++i) distances[i] += other.distances[i];
        for (std::size_t i = 0; i < kBlock; ++i) products[i] += other.products[i];
    }
};

std::size_t reversed(std::size_t x, unsigned bits) {
    std::size_t result = 0;
    for (unsigned i = 0; i < bits; ++i) result |= (x >> i & 1) << (bits - 1 - i);
    return result;
}

double folded(std::vector<double>& terms) {
    for (std::size_t half = terms.size() / 2; half > 0; half /= 2)
        for (std::size_t i = 0; i < half; ++i) terms[i] += terms[i + half];
    return terms[0];
}

}  // namespace

// The order of the sums is that of folding 2**m terms: the upper half is added to the lower until one is left. Terms that
// are kSlots apart are folded first, and in the order of reversed bits those that meet are neighbours: what waits on the
// stack are the sums of 1, 2, 4, ... of them.
Sums level_sums(const float* x, std::size_t n, Line line, double low) {
    unsigned bits = 0;
    while (kSlots << bits < n) ++bits;
    std::vector<double> distances(kSlots, 0.0), products(kSlots, 0.0);
    std::atomic<std::int64_t> j{0}, jj{0};
    parallel(kSlots / kBlock, [&](std::size_t block) {
        std::vector<std::unique_ptr<Terms>> stack;
        for (std::size_t turn = 0; turn < std::size_t{1} << bits; ++turn) {
            const std::size_t begin = reversed(turn, bits) * kSlots + block * kBlock;
            auto terms = std::make_unique<Terms>();
            if (begin < n) {
                const Moments moments = kernels().level_moments(x + begin, std::min(kBlock, n - begin), line, low,
                                                                terms->distances, terms->products);
                j += moments.j;
                jj += moments.jj;
            }
            for (std::size_t met = turn; met & 1; met >>= 1) {
                stack.back()->add(*terms);
                terms = std::move(stack.back());
                stack.pop_back();
            }
            stack.push_back(std::move(terms));
        }
        std::copy(stack[0]->distances, stack[0]->distances + kBlock, &distances[block * kBlock]);
        std::copy(stack[0]->products, stack[0]->products + kBlock, &products[block * kBlock]);
    });
    return {static_cast<double>(j), static_cast<double>(jj), folded(distances), folded(products)};
}

}  // namespace hvd_compress
