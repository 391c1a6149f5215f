#include "levels.h"

#include <atomic>
#include <vector>

#include "pool.h"

namespace hvd_compress {
namespace {

// Adds the upper half of 2**m terms to the lower half until one is left: an order that any number of threads can keep.
double folded(std::vector<double>& terms) {
    std::size_t half = terms.size();
    while (half > 1) {
        half /= 2;
        in_parts(half, [&](std::size_t begin, std::size_t size) {
            for (std::size_t i = begin; i < begin + size; ++i) terms[i] += terms[i + half];
        });
    }
    return terms[0];
}

}  // namespace

Sums level_sums(const float* x, std::size_t n, Line line, double low) {
    std::size_t whole = 1;
    while (whole < n) whole *= 2;
    std::vector<double> distances(whole, 0.0), products(whole, 0.0);
    std::atomic<std::int64_t> j{0}, jj{0};
    in_parts(n, [&](std::size_t start, std::size_t length) {
        for (std::size_t begin = start; begin < start + length; begin += kCodes) {
            const std::size_t size = std::min(kCodes, start + length - begin);
            const Moments moments =
                kernels().level_moments(x + begin, size, line, low, distances.data() + begin, products.data() + begin);
            j += moments.j;
            jj += moments.jj;
        }
    });
    return {static_cast<double>(j), static_cast<double>(jj), folded(distances), folded(products)};
}

void nearest_levels(const float* x, std::size_t n, Line line, std::int64_t* levels) {
    in_parts(n, [&](std::size_t at, std::size_t size) { kernels().nearest_levels(x + at, size, line, levels + at); });
}

}  // namespace hvd_compress
