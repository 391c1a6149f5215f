// JointSQ's knapsack: how many bits each entry gets; see hvd_compress/codecs/_allocation.py for what is chosen, and why.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace hvd_compress {

// Widths that an entry can have.
constexpr std::size_t kWidths = 3;
constexpr std::array<unsigned, kWidths> kWidth{2, 4, 8};

// What magnitudes are divided by for the keys of their items; the first is 1, and they rise.
using Ratios = std::array<double, kWidths>;

// What may be spent on n entries: bytes of the payload, or bits of the codes alone. No more than `most` entries can be sent.
struct Budget {
    std::size_t n, most, limit;
    bool codes_alone;
};

struct Allocation {
    // Bits of the largest magnitude; 0 if all are smaller than 2**-126. Of what is not finite nothing is chosen.
    std::uint32_t largest = 0;
    // Rising indices of the entries of each width, by parts of the array.
    std::vector<std::array<std::vector<std::uint32_t>, kWidths>> parts;
};

Allocation allocate(const float* x, const Budget& budget, const Ratios& ratios);

}  // namespace hvd_compress
